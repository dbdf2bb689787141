"""Forms, tools and responses, as a user of the `openai` package has them. Argument: URL."""

import json
import sys
from typing import List, Literal, Optional

import openai
from pydantic import BaseModel, Field

client = openai.OpenAI(base_url=sys.argv[1], api_key="-", max_retries=0)
messages = [{"role": "user", "content": "How is the weather in Ghent?"}]
chat = dict(model="small", messages=messages, temperature=1, seed=5)


class Day(BaseModel):
    sky: Literal["clear", "cloudy"]
    degrees: int = Field(ge=-40, le=50)


class Weather(BaseModel):
    town: str = Field(max_length=8)
    days: List[Day] = Field(max_length=2)
    wind: Optional[float] = Field(default=None, ge=0, le=9)


parsed = client.chat.completions.parse(**chat, response_format=Weather)
day = parsed.choices[0].message.parsed
assert isinstance(day, Weather) and parsed.choices[0].finish_reason == "stop", parsed

loose = client.chat.completions.create(
    **chat, response_format={"type": "json_object"}, max_tokens=60
)
assert loose.choices[0].message.content.lstrip().startswith("{"), loose

parameters = {
    "type": "object",
    "properties": {"town": {"type": "string", "enum": ["Ghent", "Bruges"]}},
    "required": ["town"],
    "additionalProperties": False,
}
tools = [
    {"type": "function", "function": {"name": "weather", "parameters": parameters, "strict": True}},
    {"type": "function", "function": {"name": "time", "description": "now", "parameters": {
        "type": "object", "properties": {}, "additionalProperties": False}}},
]


def checked(call):
    assert call.id and call.type == "function", call
    arguments = json.loads(call.function.arguments)
    if call.function.name == "weather":
        assert arguments["town"] in ("Ghent", "Bruges"), call
    else:
        assert call.function.name == "time" and arguments == {}, call


one = client.chat.completions.create(
    **chat, tools=tools, tool_choice={"type": "function", "function": {"name": "weather"}},
    parallel_tool_calls=False,
)
message = one.choices[0].message
assert one.choices[0].finish_reason == "tool_calls" and message.content is None, one
assert [call.function.name for call in message.tool_calls] == ["weather"], one
checked(message.tool_calls[0])

several = client.chat.completions.create(**chat, tools=tools, tool_choice="required", n=2)
for choice in several.choices:
    assert choice.finish_reason in ("tool_calls", "length"), choice
    for call in choice.message.tool_calls or []:
        checked(call)
ids = [call.id for choice in several.choices for call in choice.message.tool_calls or []]
assert ids and len(set(ids)) == len(ids), ids

# A stream gives the same calls.
whole = client.chat.completions.create(
    **chat, tools=tools, tool_choice="required", parallel_tool_calls=False
)
names, arguments, reason = {}, {}, None
for chunk in client.chat.completions.create(
    **chat, tools=tools, tool_choice="required", parallel_tool_calls=False, stream=True
):
    for call in chunk.choices[0].delta.tool_calls or []:
        if call.function.name:
            assert call.id and call.type == "function", call
            names[call.index] = call.function.name
        arguments[call.index] = arguments.get(call.index, "") + (call.function.arguments or "")
    reason = chunk.choices[0].finish_reason or reason
expected = [(call.function.name, call.function.arguments) for call in whole.choices[0].message.tool_calls]
assert [(names[i], arguments[i]) for i in sorted(names)] == expected and reason == "tool_calls"

# What came of a call goes back, and the model answers.
answer = client.chat.completions.create(
    **{**chat, "messages": messages + [
        message.model_dump(exclude_none=True),
        {"role": "tool", "tool_call_id": message.tool_calls[0].id, "content": "rain"},
    ]},
    tools=tools, max_tokens=20,
)
assert answer.choices[0].message.content, answer
assert answer.usage.prompt_tokens > one.usage.prompt_tokens, "calls and results are in the prompt"

flat = [{"type": "function", **tools[0]["function"]}]
response = client.responses.create(
    model="small", input="How is the weather?", instructions="Be brief.", max_output_tokens=12,
    temperature=0, extra_body={"seed": 1},
)
assert response.status in ("completed", "incomplete") and response.output_text, response
assert response.usage.output_tokens <= 12 and response.instructions == "Be brief.", response
called = client.responses.create(
    model="small", input="How is the weather?", tools=flat, tool_choice="required",
    parallel_tool_calls=False,
)
assert called.status == "completed" and called.output[-1].type == "function_call", called
assert json.loads(called.output[-1].arguments)["town"] in ("Ghent", "Bruges"), called
events = list(client.responses.create(
    model="small", input=[
        {"role": "user", "content": [{"type": "input_text", "text": "How is the weather?"}]},
        called.output[-1].model_dump(),
        {"type": "function_call_output", "call_id": called.output[-1].call_id, "output": "rain"},
    ], stream=True, temperature=0, max_output_tokens=12,
))
kinds = [event.type for event in events]
assert kinds[:2] == ["response.created", "response.in_progress"], kinds
assert kinds[-1] in ("response.completed", "response.incomplete"), kinds
assert [event.sequence_number for event in events] == list(range(len(events)))
said = "".join(event.delta for event in events if event.type == "response.output_text.delta")
assert said == events[-1].response.output_text and said, kinds
day = client.responses.parse(model="small", input="The weather?", text_format=Day, temperature=1)
assert isinstance(day.output_parsed, Day), day

for kind, changes in [
    ("previous_response_id", {"previous_response_id": "resp_1"}),
    ("store", {"store": True}),
    ("text.format.schema", {"text": {"format": {"type": "json_schema", "name": "a", "schema": {"not": {}}}}}),
]:
    try:
        client.responses.create(model="small", input="x", **changes)
        raise AssertionError(f"{kind} was taken")
    except openai.BadRequestError as error:
        assert error.param == kind, (kind, error)
try:
    client.embeddings.create(model="small", input="x")
    raise AssertionError("embeddings were given")
except openai.NotFoundError as error:
    assert "no vectors" in error.message, error
print("all good")
