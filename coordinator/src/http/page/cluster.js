// The cluster, looked at once a second: what `/cluster` tells, as figures and shards.

import { cluster } from "./api.js";
import { count, make } from "./message.js";

const EVERY = 1000;
// Rates are taken over this many looks, so that they can be read.
const LOOKS = 3;

const element = (id) => document.getElementById(id);
let looks = [];

/** Looks again and again; `changed(state)` is told each time, with null while the server can't be reached. */
export async function watch(changed) {
  for (;;) {
    if (!document.hidden) {
      const state = await cluster(AbortSignal.timeout(5000)).catch(() => null);
      if (state?.shards) draw(state);
      else looks = [];
      changed(state);
    }
    await new Promise((done) => setTimeout(done, EVERY));
  }
}

function draw(state) {
  looks = [...looks.slice(-LOOKS), { at: state.uptime_seconds, ...state.tokens }];
  element("decode-rate").textContent = rate("completion");
  element("prompt-rate").textContent = rate("prompt");
  element("running").textContent = count(state.running);
  element("waiting").textContent = count(state.waiting);
  const { active_bytes: active, cached_bytes: cached, budget_bytes: budget } = state.kv;
  const used = active + cached;
  element("kv").value = budget > 0 ? used / budget : 0;
  element("kv-text").textContent = `${bytes(used)} of ${bytes(budget)}, ${bytes(cached)} of it kept for later turns`;
  const exchange = state.exchange_us;
  element("exchange").textContent = exchange
    ? `A sparse layer, there and back: ${micros(exchange.p50)} median, ${micros(exchange.p99)} at worst in 100`
    : "";
  drawShards(state.shards);
}

/** Tokens a second over the last looks. A server that began anew begins at 0 again. */
function rate(what) {
  const [first, last] = [looks[0], looks.at(-1)];
  const [tokens, seconds] = [last[what] - first[what], last.at - first.at];
  return tokens > 0 && seconds > 0 ? `${(tokens / seconds).toFixed(1)} tok/s` : "idle";
}

function drawShards(shards) {
  const root = element("shards");
  while (root.children.length > shards.length) root.lastChild.remove();
  shards.forEach((shard, index) => {
    const item = root.children[index] ?? root.appendChild(empty());
    const set = (name, text) => {
      const field = item.querySelector(`.${name}`);
      if (field.textContent !== text) field.textContent = text;
    };
    item.dataset.up = shard.up;
    set("name", `shard ${shard.shard}`);
    set("up", shard.up ? "up" : "unreachable");
    set("address", shard.address);
    set("experts", shard.experts);
    set("backend", shard.backend);
    set("bytes", bytes(shard.resident_bytes));
    set("round-trip", micros(shard.round_trip_us));
    set("compute", micros(shard.compute_us));
    set("calls", count(shard.calls));
  });
}

function empty() {
  const item = make("li");
  const head = make("p", "head");
  head.append(make("span", "name"), make("span", "up"), make("span", "address"));
  const facts = make("dl");
  for (const [name, label] of [
    ["experts", "Experts"],
    ["bytes", "Weights"],
    ["backend", "Backend"],
    ["calls", "Calls"],
    ["round-trip", "Round trip"],
    ["compute", "Compute per layer"],
  ]) {
    const pair = make("div");
    pair.append(make("dt", "", label), make("dd", name));
    facts.append(pair);
  }
  item.append(head, facts);
  return item;
}

function micros(value) {
  if (value === null) return "–";
  return value < 10_000 ? `${count(Math.round(value))} µs` : `${(value / 1000).toFixed(1)} ms`;
}

function bytes(value) {
  const units = ["B", "kB", "MB", "GB", "TB", "PB", "EB"];
  let unit = 0;
  while (value >= 1000 && unit + 1 < units.length) {
    value /= 1000;
    unit += 1;
  }
  return `${value.toFixed(unit ? 1 : 0)} ${units[unit]}`;
}
