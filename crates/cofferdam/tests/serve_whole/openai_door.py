"""What tokens cannot carry, through the door, as the openai client asks for it."""
import sys
from openai import BadRequestError, OpenAI

client = OpenAI(base_url=sys.argv[1], api_key="none", max_retries=0, timeout=30)
model = client.models.list().data[0].id
ask = dict(
    model=model, messages=[{"role": "user", "content": "what is there"}], max_tokens=5,
    extra_body={"ignore_eos": True},
    tools=[{"type": "function", "function": {"name": "look", "parameters": {"type": "object"}}}],
)
whole = client.chat.completions.create(**ask)
call = whole.choices[0].message.tool_calls[0].function
assert call.name == "look", whole
said, usage = "", None
options = {"include_usage": True}
for chunk in client.chat.completions.create(**ask, stream=True, stream_options=options):
    usage = chunk.usage or usage
    for choice in chunk.choices:
        for part in choice.delta.tool_calls or []:
            said += part.function.arguments or ""
assert said == call.arguments, (said, call.arguments)
assert usage.prompt_tokens == whole.usage.prompt_tokens and usage.completion_tokens == 5, usage
# What came of the call goes back.
ask["messages"] += [
    whole.choices[0].message.model_dump(exclude_none=True),
    {"role": "tool", "tool_call_id": "call_1", "content": "a star"},
]
longer = client.chat.completions.create(**ask, n=2)
assert len(longer.choices) == 2 and longer.usage.prompt_tokens > usage.prompt_tokens, longer
form = {"type": "json_schema", "json_schema": {"name": "x", "schema": {"type": "object"}}}
del ask["tools"]
ask["messages"] = ask["messages"][:1]
assert client.chat.completions.create(**ask, response_format=form).choices[0].message.content
try:
    client.chat.completions.create(**ask, audio={"voice": "x", "format": "wav"})
    raise AssertionError("taken")
except BadRequestError as error:
    assert error.code == "unsupported_parameter" and error.param == "audio", error
print("all good")
