// The conversation: sends, shows, stops.

import { chat, useKey } from "./api.js";
import { watch } from "./cluster.js";
import { Answer, count, toolMessage, userMessage } from "./message.js";

const SETTINGS = "laguna-settings";

const element = (id) => document.getElementById(id);
const [log, draft, settings] = [element("log"), element("draft"), element("settings")];

// As the API takes them; the system prompt is added when a request is made.
let messages = [];
// Ends the answer that runs, if one does.
let abort = null;
// The answer whose calls wait for results, if there is one.
let asking = null;
let server = null;
let thinkingChosen = false;
// Whether the reader is at the end of the conversation, and so is to stay there.
let atEnd = true;

// --- sending ------------------------------------------------------------------------------------

async function send(text) {
  add(userMessage(text));
  messages.push({ role: "user", content: text });
  await answer();
}

async function answer() {
  let body;
  try {
    body = request();
  } catch (error) {
    fail(new Answer(), error.message);
    return;
  }
  dropForm();
  const running = (abort = new AbortController());
  const shown = new Answer(giveResults);
  shown.drawn = follow;
  add(shown.root);
  busy(true);
  const seen = { began: performance.now(), first: null, last: null, usage: null, finish: null };
  try {
    for await (const chunk of chat(body, running.signal)) take(chunk, shown, seen);
    conclude(shown, seen, []);
  } catch (error) {
    if (running !== abort) return;
    if (running.signal.aborted) conclude(shown, seen, ["Stopped."]);
    else if (error.status === 401) askKey(shown, error.message);
    else fail(shown, error.message);
  } finally {
    if (running === abort) {
      abort = null;
      busy(false);
    }
  }
}

/** The body for what is said so far, as the settings have it. */
function request() {
  const fields = new FormData(settings);
  const system = fields.get("system").trim();
  const body = {
    model: server?.model ?? "laguna",
    messages: system ? [{ role: "system", content: system }, ...messages] : messages,
    stream: true,
    stream_options: { include_usage: true },
    return_progress: true,
    chat_template_kwargs: { enable_thinking: element("thinking").checked },
  };
  for (const name of ["temperature", "top_p", "top_k", "min_p", "max_tokens", "seed"]) {
    const value = fields.get(name);
    if (value !== "") body[name] = Number(value);
  }
  const tools = fields.get("tools").trim();
  if (tools) {
    try {
      body.tools = [JSON.parse(tools)].flat();
    } catch (error) {
      throw new Error(`The tools in the settings are not JSON: ${error.message}`);
    }
  }
  return body;
}

function take(chunk, shown, seen) {
  if (chunk.usage) seen.usage = chunk.usage;
  if (chunk.prompt_progress) shown.progress(chunk.prompt_progress);
  const choice = chunk.choices[0];
  if (!choice) return;
  seen.finish = choice.finish_reason ?? seen.finish;
  const { content, reasoning_content, reasoning, tool_calls } = choice.delta;
  if (content || reasoning_content || reasoning || tool_calls) {
    seen.last = performance.now();
    seen.first ??= seen.last;
    shown.add(choice.delta);
  }
}

function conclude(shown, seen, notes) {
  if (seen.finish === "length") notes.push("Cut: the limit of tokens was reached.");
  shown.end(usageLine(seen), notes);
  const message = shown.message();
  if (message) messages.push(message);
  if (message?.tool_calls && seen.finish) {
    asking = shown;
    shown.askResults();
  }
  follow();
}

function usageLine({ began, first, last, usage }) {
  if (!usage) return "";
  const cached = usage.prompt_tokens_details?.cached_tokens ?? 0;
  const parts = [
    `${count(usage.prompt_tokens)} prompt tokens${cached ? `, ${count(cached)} from the cache` : ""}`,
    `${count(usage.completion_tokens)} new`,
  ];
  if (first !== null) parts.push(`first after ${((first - began) / 1000).toFixed(1)} s`);
  if (last > first && usage.completion_tokens > 1) {
    parts.push(`${((usage.completion_tokens - 1) / ((last - first) / 1000)).toFixed(1)} tok/s`);
  }
  return parts.join(" · ");
}

function fail(shown, message) {
  if (!shown.root.isConnected) add(shown.root);
  shown.fail(message, () => {
    shown.root.remove();
    answer();
  });
  follow();
}

function giveResults(results) {
  const { calls } = asking;
  asking = null;
  calls.forEach((call, index) => {
    messages.push({ role: "tool", tool_call_id: call.id, content: results[index] });
    add(toolMessage(call.name, results[index]));
  });
  answer();
}

function askKey(shown, why) {
  shown.root.remove();
  element("why").textContent = why;
  element("unlock").hidden = false;
  element("key").value = "";
  element("key").focus();
}

// --- the page -----------------------------------------------------------------------------------

function add(node) {
  element("welcome")?.remove();
  log.append(node);
  atEnd = true;
  follow();
}

/** Keeps the end in sight, unless the reader has scrolled away from it. */
function follow() {
  if (atEnd) log.scrollTop = log.scrollHeight;
}

function busy(on) {
  element("stop").hidden = !on;
  element("send").hidden = on;
  // Where there is a keyboard of glass, it comes when it is asked for.
  if (on || !matchMedia("(hover: hover)").matches) return;
  (asking?.form.querySelector("textarea") ?? draft).focus({ preventScroll: true });
}

/** A message instead of a result: the form for results goes. */
function dropForm() {
  asking?.form?.remove();
  asking = null;
}

function grow() {
  draft.style.height = "auto";
  draft.style.height = `${draft.scrollHeight + 2}px`;
}

function state(now) {
  server = now ?? server;
  const shown = element("state");
  shown.dataset.state = now?.status ?? "gone";
  const words = { ok: "ready", loading: "loading", unavailable: now?.error?.message ?? "unavailable" };
  shown.textContent = now ? (words[now.status] ?? now.status) : "can’t be reached";
  const loading = now?.status === "loading";
  element("loading").hidden = !loading;
  element("send").disabled = loading;
  if (loading) {
    const bar = element("load");
    // How long others take is not known.
    bar.hidden = now.progress === null;
    bar.value = now.progress ?? 0;
    const share = now.progress === null ? "" : ` (${Math.floor(now.progress * 100)} %)`;
    element("what").textContent = `${now.loading}${share}. You can write meanwhile.`;
  }
  if (!now) return;
  element("model").textContent = now.model;
  document.title = now.model;
  if (!thinkingChosen) element("thinking").checked = now.thinking;
}

element("composer").addEventListener("submit", (event) => {
  event.preventDefault();
  const text = draft.value.trim();
  if (!text || abort || element("send").disabled) return;
  draft.value = "";
  grow();
  send(text);
});

log.addEventListener("scroll", () => {
  atEnd = log.scrollHeight - log.scrollTop - log.clientHeight < 48;
});

draft.addEventListener("input", grow);
draft.addEventListener("keydown", (event) => {
  // While a word is being composed, Enter belongs to the input method.
  if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
  event.preventDefault();
  element("composer").requestSubmit();
});

document.addEventListener("keydown", (event) => {
  if (event.key === "Escape") abort?.abort();
});

element("stop").addEventListener("click", () => abort?.abort());

element("new").addEventListener("click", () => {
  abort?.abort();
  abort = null;
  asking = null;
  messages = [];
  log.replaceChildren();
  busy(false);
});

element("unlock").addEventListener("submit", (event) => {
  event.preventDefault();
  useKey(element("key").value);
  element("unlock").hidden = true;
  answer();
});

element("thinking").addEventListener("change", () => (thinkingChosen = true));

element("panel").addEventListener("click", () => {
  const open = document.body.classList.toggle("panel");
  element("panel").setAttribute("aria-expanded", String(open));
});

settings.addEventListener("submit", (event) => event.preventDefault());
settings.addEventListener("input", () => {
  sessionStorage.setItem(SETTINGS, JSON.stringify([...new FormData(settings)]));
});
for (const [name, value] of JSON.parse(sessionStorage.getItem(SETTINGS) ?? "[]")) {
  const field = settings.elements.namedItem(name);
  if (field) field.value = value;
}

draft.focus();
watch(state);
