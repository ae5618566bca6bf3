"""openai-python and anthropic-python against a parrot: see README.md."""

import json
import sys
import time
import typing

import anthropic
import openai
import pydantic

BASE = sys.argv[1]
SCHEMA = {"type": "object", "properties": {"s": {"type": "string"}, "n": {"type": "integer"}}}
CALL = (
    "{tool_call}f{arg_key}s{/arg_key}{arg_value}héllo\n🌊{/arg_value}"
    "{arg_key}n{/arg_key}{arg_value}3{/arg_value}{/tool_call}"
)
ARGUMENTS = {"s": "héllo\n🌊", "n": 3}
STRICT = {**SCHEMA, "required": ["s", "n"], "additionalProperties": False}
BABBLE = [{"role": "user", "content": "BABBLE"}]
LONG = "word " * 3000


def say(text):
    return [{"role": "user", "content": "SAY " + text}]


class Mood(pydantic.BaseModel):
    """What a babbling model answers in the form of."""

    ok: bool
    n: int
    of: typing.Literal["a", "b c"]


def check(arguments):
    assert isinstance(arguments["s"], str) and isinstance(arguments["n"], int), arguments


def fails(error, call):
    try:
        call()
    except error as raised:
        return raised
    raise AssertionError("it did not fail")


# Chat completions
client = openai.OpenAI(base_url=BASE + "/v1", api_key="x", max_retries=0)
tools = [{"type": "function", "function": {"name": "f", "parameters": SCHEMA}}]
chat = client.chat.completions
choice = chat.create(model="x", messages=say("hm{/think}ok" + CALL * 2), tools=tools).choices[0]
assert (choice.message.content, choice.message.reasoning_content) == ("ok", "hm")
assert [json.loads(call.function.arguments) for call in choice.message.tool_calls] == [ARGUMENTS] * 2
assert len({call.id for call in choice.message.tool_calls}) == 2 and choice.finish_reason == "tool_calls"

options = {"include_usage": True}
with chat.stream(model="x", messages=say("hm{/think}ok" + CALL * 2), tools=tools, stream_options=options) as stream:
    kinds = {event.type for event in stream}
    final = stream.get_final_completion()
assert "tool_calls.function.arguments.delta" in kinds and final.usage.total_tokens > 0
calls = final.choices[0].message.tool_calls
assert [json.loads(call.function.arguments) for call in calls] == [ARGUMENTS] * 2

parsed = chat.parse(model="x", messages=BABBLE, response_format=Mood).choices[0].message
assert isinstance(parsed.parsed, Mood) and parsed.reasoning_content
strict = [{"type": "function", "function": {"name": "f", "parameters": STRICT, "strict": True}}]
for choice in ["required", {"type": "function", "function": {"name": "f"}}]:
    forced = chat.create(model="x", messages=BABBLE, tools=strict, tool_choice=choice).choices[0]
    assert forced.finish_reason == "tool_calls" and not forced.message.content
    for call in forced.message.tool_calls:
        check(json.loads(call.function.arguments))

began = time.time()
chunks = chat.create(model="x", messages=say("{/think}aWAITb"), stream=True)
assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == "ab"
assert time.time() - began > 2

logprobs = chat.create(model="x", messages=say("{/think}abc"), logprobs=True, top_logprobs=2).choices[0].logprobs
assert all(len(token.top_logprobs) == 2 for token in logprobs.content)

for arguments, code, param in [
    ({"n": 2}, "unsupported_parameter", "n"),
    ({"temperature": "hot"}, None, "temperature"),
    ({"messages": say(LONG)}, "context_length_exceeded", "messages"),
]:
    raised = fails(openai.BadRequestError, lambda: chat.create(**{"model": "x", "messages": say("a"), **arguments}))
    assert (raised.code, raised.param) == (code, param), raised

stream = chat.create(model="x", messages=say("{/think}aWAITb"), stream=True)
next(iter(stream))
stream.close()

# Models, completions
model = client.models.list().data[0].id
assert client.models.retrieve(model).id == model
assert client.completions.create(model="x", prompt="<user>SAY abc</user>").choices[0].text == "abc"

# Responses
tool = {"type": "function", "name": "f", "parameters": SCHEMA, "strict": False}
response = client.responses.create(model="x", input="SAY hm{/think}ok" + CALL, tools=[tool])
assert response.output_text == "ok"
assert [item.type for item in response.output] == ["reasoning", "message", "function_call"]
with client.responses.stream(model="x", input="SAY hm{/think}ok" + CALL, tools=[tool]) as stream:
    for _ in stream:
        pass
    final = stream.get_final_response()
assert (final.status, json.loads(final.output[2].arguments)) == ("completed", ARGUMENTS)

assert isinstance(client.responses.parse(model="x", input="BABBLE", text_format=Mood).output_parsed, Mood)

# Messages
client = anthropic.Anthropic(base_url=BASE, api_key="x", max_retries=0)
tools = [{"name": "f", "input_schema": SCHEMA}]
ask = {"model": "c", "max_tokens": 300, "tools": tools}
message = client.messages.create(messages=say("hm{/think}ok" + CALL), **ask)
assert [block.type for block in message.content] == ["thinking", "text", "tool_use"]
assert (message.content[2].input, message.stop_reason) == (ARGUMENTS, "tool_use")
with client.messages.stream(messages=say("hm{/think}okWAIT" + CALL * 2), **ask) as stream:
    for _ in stream:
        pass
    final = stream.get_final_message()
assert [block.type for block in final.content] == ["thinking", "text", "tool_use", "tool_use"]
assert final.content[3].input == ARGUMENTS and final.usage.output_tokens > 0
forced = client.messages.create(
    model="c", max_tokens=1900, messages=BABBLE, tools=[{"name": "f", "input_schema": STRICT, "strict": True}],
    tool_choice={"type": "tool", "name": "f", "disable_parallel_tool_use": True},
)
assert [block.type for block in forced.content if block.type != "thinking"] == ["tool_use"], forced
check(forced.content[-1].input)
history = say("x") + [
    {"role": "assistant", "content": [block.model_dump() for block in final.content]},
    {"role": "user", "content": [{"type": "tool_result", "tool_use_id": final.content[2].id, "content": "r"}]},
]
assert client.messages.create(messages=history, **ask).stop_reason == "end_turn"
counted = client.messages.count_tokens(model="c", messages=say("hm{/think}ok"), tools=tools).input_tokens
assert counted > 10 and client.models.list().data[0].id == model
raised = fails(anthropic.BadRequestError, lambda: client.messages.create(messages=say(LONG), **ask))
assert "prompt is too long" in str(raised)
print("ok")
