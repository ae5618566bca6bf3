// The web page in a real browser: `page.mjs PARROT COORDINATOR KEYED LOADING SHOTS`, four base URLs and a folder for
// pictures.
// See README.md.

import assert from "node:assert/strict";
import { mkdtempSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { chromium } from "playwright-core";

const [parrot, coordinator, keyed, loading, shots] = process.argv.slice(2);
const FLAGS = [
  "--no-sandbox",
  "--disable-gpu",
  "--disable-quic",
  "--no-first-run",
  "--disable-background-networking",
  "--disable-component-update",
  "--disable-sync",
];
const CALL =
  "{tool_call}read{arg_key}path{/arg_key}{arg_value}src/main.rsWAIT{/arg_value}" +
  "{arg_key}lines{/arg_key}{arg_value}3{/arg_value}{/tool_call}";
const TOOL = {
  type: "function",
  function: {
    name: "read",
    parameters: { type: "object", properties: { path: { type: "string" }, lines: { type: "integer" } } },
  },
};

const profile = mkdtempSync(join(tmpdir(), "laguna-page-"));
const browser = await chromium.launchPersistentContext(profile, {
  executablePath: "/usr/bin/chromium",
  headless: true,
  args: FLAGS,
  viewport: { width: 1280, height: 860 },
});
// Whatever the page complains about, and whatever it wants from elsewhere.
const complaints = [];

/** A page of the server at `base`, watched. `expected` are the complaints it may have. */
async function open(base, expected = /^$/, state = "ok") {
  const page = await browser.newPage();
  page.setDefaultTimeout(30_000);
  const complain = (text) => expected.test(text) || complaints.push(text);
  page.on("console", (message) => {
    if (["error", "warning"].includes(message.type())) complain(message.text());
  });
  page.on("pageerror", (error) => complain(String(error)));
  page.on("dialog", (dialog) => complain(`dialog: ${dialog.message()}`) && dialog.dismiss());
  page.on("request", (request) => {
    if (new URL(request.url()).origin !== new URL(base).origin) complain(`asked for ${request.url()}`);
  });
  const response = await page.goto(base);
  const policy = response.headers()["content-security-policy"];
  assert.match(policy, /default-src 'none'/);
  assert.doesNotMatch(policy, /unsafe/);
  await page.locator(`#state[data-state=${state}]`).waitFor();
  return page;
}

async function say(page, text) {
  await page.getByLabel("Message", { exact: true }).fill(text);
  await page.keyboard.press("Enter");
}

const answers = (page) => page.locator("article.assistant");
const over = (page, count) => page.locator(`article.assistant:not([aria-busy]) >> nth=${count - 1}`).waitFor();
const picture = (page, name) => page.screenshot({ path: join(shots, `${name}.png`) });

try {
  await talk(await open(parrot));
  await tools(await open(parrot));
  await hostile(await open(parrot));
  await stop(await open(parrot));
  await refused(await open(parrot, /400 \(Bad Request\)/));
  await cluster(await open(coordinator));
  await key(await open(keyed, /401 \(Unauthorized\)/));
  await load(await open(loading, /^$/, "loading"));
  assert.deepEqual(complaints, []);
} finally {
  await browser.close();
  rmSync(profile, { recursive: true, force: true });
}
console.log("ok");

/** Reasoning while it comes and after, Markdown, what it took, a second turn, a new chat. */
async function talk(page) {
  await page.getByLabel("Thinking").check();
  const text = [
    "SAY First I look.WAIT{/think}## A heading",
    "Some **bold** and `code`, a [link](https://example.org/x), and a [bad one](javascript:alert(1)).",
    "- one\n- two\n  - inner",
    "| a | b |\n|---|---|\n| 1 | 2 |",
    "```rust\nfn main();\n```WAIT",
  ].join("\n\n");
  await page.getByLabel("Message", { exact: true }).fill("first line");
  await page.keyboard.press("Shift+Enter");
  assert.equal(await page.getByLabel("Message", { exact: true }).inputValue(), "first line\n");
  await say(page, text);
  const thought = page.locator(".reasoning");
  await thought.getByText("First I look.").waitFor();
  assert.equal(await thought.evaluate((details) => details.open), true);
  assert.equal(await page.getByRole("button", { name: "Stop" }).isVisible(), true);
  await picture(page, "thinking");
  await over(page, 1);
  assert.equal(await thought.evaluate((details) => details.open), false);
  const answer = answers(page).first();
  assert.equal(await answer.locator("h4").textContent(), "A heading");
  assert.equal(await answer.locator("strong").textContent(), "bold");
  assert.equal(await answer.locator("p code").textContent(), "code");
  assert.deepEqual(await answer.locator("a").evaluateAll((links) => links.map((link) => link.href)), [
    "https://example.org/x",
  ]);
  assert.equal(await answer.locator("li li").textContent(), "inner");
  assert.equal(await answer.locator("td").count(), 2);
  assert.equal(await answer.locator("pre").textContent(), "fn main();");
  assert.match(await answer.locator(".usage").textContent(), /prompt tokens, 3 from the cache · \d+ new · .* tok\/s/);
  await picture(page, "answer");
  await page.emulateMedia({ colorScheme: "dark" });
  await picture(page, "dark");
  await page.setViewportSize({ width: 390, height: 780 });
  await picture(page, "narrow");
  const wide = await page.evaluate(() => document.documentElement.scrollWidth > document.documentElement.clientWidth);
  assert.equal(wide, false, "a narrow page scrolls down only");

  await say(page, "SAY {/think}again");
  await over(page, 2);
  assert.equal(await answers(page).nth(1).locator(".text").textContent(), "again");
  await page.getByRole("button", { name: "New chat" }).click();
  assert.equal(await page.locator("article").count(), 0);
  await page.close();
}

/** A call as it streams, answered by hand; the model sees the result. */
async function tools(page) {
  await page.getByLabel("Tools, as in the API (JSON)").fill(JSON.stringify(TOOL));
  const sent = [];
  page.on("request", (request) => request.method() === "POST" && sent.push(request.postDataJSON()));
  await say(page, `SAY {/think}I look.${CALL}`);
  const call = page.locator(".call");
  await call.getByText("src/main.rs").waitFor();
  // Its arguments come as they are made: the call is not whole yet.
  assert.equal(await page.locator("article[aria-busy] .call").count(), 1);
  await over(page, 1);
  assert.equal(await call.locator("h3 code").textContent(), "read");
  assert.deepEqual(JSON.parse(await call.locator("pre").textContent()), { path: "src/main.rs", lines: 3 });
  await page.getByLabel("Result of read").fill("SAY {/think}fn main");
  await picture(page, "call");
  await page.getByRole("button", { name: "Send result" }).click();
  await over(page, 2);
  const [, assistant, tool] = sent[1].messages;
  assert.deepEqual(sent[0].tools, [TOOL]);
  assert.equal(tool.role, "tool");
  assert.equal(tool.tool_call_id, assistant.tool_calls[0].id);
  assert.equal(tool.content, "SAY {/think}fn main");
  await page.getByLabel("Tools, as in the API (JSON)").fill("{");
  await say(page, "x");
  await page.getByRole("alert").getByText("not JSON").waitFor();
  await page.close();
}

/** Markup in every place where the model or the user can put it stays text. */
async function hostile(page) {
  const bad = `<img src=x onerror="window.hit=1"><script>window.hit=1</script><svg onload="window.hit=1">`;
  await page.getByLabel("Thinking").check();
  await page.getByLabel("Tools, as in the API (JSON)").fill(JSON.stringify(TOOL));
  const call = `{tool_call}read{arg_key}path{/arg_key}{arg_value}${bad}{/arg_value}{/tool_call}`;
  const text = `${bad}{/think}# ${bad}\n\n**${bad}**\n\n- ${bad}\n\n> ${bad}\n\n|${bad}|\n|---|\n|${bad}|\n\n\`\`\`${bad}\n${bad}`;
  await say(page, `SAY ${text}${call}`);
  await over(page, 1);
  await page.locator(".reasoning summary").click();
  assert.match(await page.locator("#log").textContent(), /<script>window\.hit=1<\/script>/);
  assert.equal(await page.locator("#log").locator("img, script, svg, iframe, style").count(), 0);
  assert.equal(await page.evaluate(() => window.hit), undefined);
  await picture(page, "hostile");
  await page.close();
}

/** Stop ends the request on the server; what was said stays, and the talk goes on. */
async function stop(page) {
  await say(page, "SAY {/think}halfWAITWAITWAITWAITWAITWAITWAITWAITWAITWAIT never");
  await answers(page).getByText("half").waitFor();
  const closed = page.waitForEvent("requestfailed", (request) => request.url().endsWith("/v1/chat/completions"));
  await page.getByRole("button", { name: "Stop" }).click();
  await closed;
  await page.getByText("Stopped.").waitFor();
  assert.equal(await answers(page).locator(".text").textContent(), "half");
  await say(page, "SAY {/think}on");
  await over(page, 2);
  assert.equal(await answers(page).nth(1).locator(".text").textContent(), "on");
  await page.close();
}

/** The server's own words, and a way on. */
async function refused(page) {
  await say(page, "word ".repeat(3000));
  await page.getByRole("alert").getByText("maximum context length is 2048 tokens").waitFor();
  assert.equal(await page.getByRole("button", { name: "Try again" }).isVisible(), true);
  await picture(page, "refused");
  await page.close();
}

/** A real model: the shards fill, and count what they do. */
async function cluster(page) {
  const shards = page.locator("#shards li");
  await shards.nth(1).waitFor();
  assert.deepEqual(await shards.locator(".experts").allTextContents(), ["0..128", "128..256"]);
  await page.getByLabel("Most tokens").fill("40");
  await page.getByLabel("Thinking").uncheck();
  await say(page, "def read_lines(path):");
  await over(page, 1);
  assert.notEqual(await answers(page).locator(".text").textContent(), "");
  await page.waitForFunction(() => {
    const texts = (name) => [...document.querySelectorAll(`#shards .${name}`)].map((field) => field.textContent);
    const times = [...texts("round-trip"), ...texts("compute")];
    return times.length === 4 && times.every((text) => /^[\d,.]+ (µs|ms)$/.test(text)) && !texts("calls").includes("0");
  });
  assert.match(await page.locator("#kv-text").textContent(), /of [\d.]+ [kMGT]?B,/);
  await picture(page, "cluster");
  await page.setViewportSize({ width: 390, height: 780 });
  await page.getByRole("button", { name: "Cluster & settings" }).click();
  await shards.first().waitFor({ state: "visible" });
  await picture(page, "narrow-cluster");
  await page.close();
}

/** A server with keys: the page asks for one, says what is wrong with it, and goes on where it was. */
async function key(page) {
  await page.getByLabel("Most tokens").fill("4");
  await say(page, "x = 1");
  await page.getByText("this server asks for an API key").waitFor();
  await page.getByLabel("API key").fill("wrong");
  await page.getByRole("button", { name: "Use key" }).click();
  await page.getByText("the API key is wrong").waitFor();
  await page.getByLabel("API key").fill("sesame");
  await picture(page, "key");
  await page.getByRole("button", { name: "Use key" }).click();
  await page.locator(".usage").waitFor();
  await page.close();
}

/** A server that still loads: the page says so, and a message can be written meanwhile. */
async function load(page) {
  await page.getByText(/waiting for shard 0 \(127\.0\.0\.1:\d+\)/).waitFor();
  await page.getByText("Loading the model").waitFor();
  await page.getByLabel("Message", { exact: true }).fill("early");
  await page.keyboard.press("Enter");
  assert.equal(await page.getByRole("button", { name: "Send" }).isDisabled(), true);
  assert.equal(await page.getByLabel("Message", { exact: true }).inputValue(), "early");
  await picture(page, "loading");
  await page.close();
}
