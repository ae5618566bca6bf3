// openai-node and the AI SDK against a parrot: see README.md.

import assert from "node:assert/strict";
import { createAnthropic } from "@ai-sdk/anthropic";
import { createOpenAICompatible } from "@ai-sdk/openai-compatible";
import { generateText, jsonSchema, streamText, tool } from "ai";
import OpenAI from "openai";

const base = process.argv[2];
const schema = { type: "object", properties: { s: { type: "string" }, n: { type: "integer" } } };
const call =
  "{tool_call}f{arg_key}s{/arg_key}{arg_value}héllo\n🌊{/arg_value}{arg_key}n{/arg_key}{arg_value}3{/arg_value}{/tool_call}";
const input = { s: "héllo\n🌊", n: 3 };
const say = (text) => [{ role: "user", content: "SAY " + text }];
const long = "word ".repeat(3000);

const client = new OpenAI({ baseURL: base + "/v1", apiKey: "x", maxRetries: 0 });
const stream = client.chat.completions.stream({
  model: "x",
  messages: say("hm{/think}okWAIT" + call + call),
  tools: [{ type: "function", function: { name: "f", parameters: schema } }],
  stream_options: { include_usage: true },
});
const final = await stream.finalChatCompletion();
const message = final.choices[0].message;
assert.equal(message.content, "ok");
assert.deepEqual(message.tool_calls.map((call) => JSON.parse(call.function.arguments)), [input, input]);
assert.equal(final.choices[0].finish_reason, "tool_calls");
assert.ok(final.usage.total_tokens > 0);
await assert.rejects(client.chat.completions.create({ model: "x", messages: say(long) }), {
  code: "context_length_exceeded",
});
const abort = new AbortController();
const cut = { model: "x", messages: say("{/think}aWAITb"), stream: true };
for await (const _ of await client.chat.completions.create(cut, { signal: abort.signal })) {
  abort.abort();
  break;
}

const format = { type: "json_schema", json_schema: { name: "x", schema: { ...schema, required: ["s", "n"] } } };
const formed = await client.chat.completions.parse({
  model: "x",
  messages: [{ role: "user", content: "BABBLE" }],
  response_format: format,
});
assert.equal(typeof JSON.parse(formed.choices[0].message.content).s, "string");

const tools = { f: tool({ description: "d", inputSchema: jsonSchema(schema) }) };
const strict = { f: tool({ description: "d", inputSchema: jsonSchema({ ...schema, required: ["s", "n"] }) }) };
for (const model of [
  createOpenAICompatible({ name: "laguna", baseURL: base + "/v1", includeUsage: true })("x"),
  createAnthropic({ baseURL: base + "/v1", apiKey: "x" })("x"),
]) {
  const streamed = streamText({ model, prompt: "SAY hm{/think}okWAIT" + call + call, tools, maxRetries: 0 });
  let deltas = 0;
  for await (const part of streamed.fullStream) {
    assert.notEqual(part.type, "error", String(part.error));
    deltas += part.type === "tool-input-delta";
  }
  assert.ok(deltas > 4);
  assert.deepEqual((await streamed.toolCalls).map((call) => call.input), [input, input]);
  assert.deepEqual([await streamed.text, await streamed.reasoningText], ["ok", "hm"]);
  assert.equal(await streamed.finishReason, "tool-calls");
  assert.ok((await streamed.usage).inputTokens > 0);
  const whole = await generateText({ model, prompt: "SAY hm{/think}ok" + call, tools, maxRetries: 0 });
  assert.deepEqual([whole.text, whole.reasoningText, whole.toolCalls[0].input], ["ok", "hm", input]);
  const forced = await generateText({ model, prompt: "BABBLE", tools: strict, toolChoice: "required", maxRetries: 0 });
  assert.ok(forced.toolCalls.length > 0 && forced.text === "");
  for (const { input } of forced.toolCalls) {
    assert.ok(typeof input.s === "string" && Number.isInteger(input.n), JSON.stringify(input));
  }
  await assert.rejects(generateText({ model, prompt: long, maxRetries: 0 }), { statusCode: 400 });
}
console.log("ok");
