"""What a user of the `openai` package does, with the answers asserted. Arguments: URL, key."""

import sys

import openai

url, key = sys.argv[1:]
client = openai.OpenAI(base_url=url, api_key=key, max_retries=0)
print(f"openai {openai.__version__}")

models = [model.id for model in client.models.list()]
assert models == ["small"], models
assert client.models.retrieve("small").id == "small"

messages = [{"role": "user", "content": "Who are you?"}]
chat = dict(model="small", messages=messages, max_tokens=12, temperature=0)
whole = client.chat.completions.create(**chat, seed=1)
assert whole.choices[0].message.role == "assistant"
text = whole.choices[0].message.content
assert text and whole.choices[0].finish_reason in ("stop", "length"), whole
assert 0 < whole.usage.completion_tokens <= 12, whole.usage
assert whole.usage.total_tokens == whole.usage.prompt_tokens + whole.usage.completion_tokens

chunks = list(
    client.chat.completions.create(**chat, stream=True, stream_options={"include_usage": True})
)
pieces = [chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices]
assert "".join(pieces) == text, (pieces, text)
assert len([piece for piece in pieces if piece]) > 1, "it came in pieces"
assert not chunks[-1].choices and all(chunk.usage is None for chunk in chunks[:-1])
usage = chunks[-1].usage
assert usage.completion_tokens == whole.usage.completion_tokens, usage
assert usage.prompt_tokens == whole.usage.prompt_tokens, usage

told = client.chat.completions.create(**chat, logprobs=True, top_logprobs=3)
logs = told.choices[0].logprobs.content
assert len(logs) == told.usage.completion_tokens and told.choices[0].message.content == text
assert all(len(log.top_logprobs) == 3 and log.logprob <= 0 for log in logs)

completion = client.completions.create(
    model="small", prompt=[1000, 2000, 3000], max_tokens=5, temperature=0, logprobs=2, n=2,
    extra_body={"ignore_eos": True},
)
assert completion.usage.prompt_tokens == 3 and completion.usage.completion_tokens == 10
one, other = completion.choices
assert one.text == other.text and len(one.logprobs.tokens) == 5, "greedy choices are equal"
# The greedy token is the most likely one.
for token, logprob, top in zip(
    one.logprobs.tokens, one.logprobs.token_logprobs, one.logprobs.top_logprobs
):
    assert len(top) == 2 and max(top, key=top.get) == token and top[token] == logprob, top

stop = completion.choices[0].text[:1]
stopped = client.completions.create(
    model="small", prompt=[1000, 2000, 3000], max_tokens=5, temperature=0, stop=[stop]
)
assert stopped.choices[0].finish_reason == "stop" and stop not in stopped.choices[0].text

# Several prompts in one request: each has the answers that it has alone, in order.
prompts = [[1000, 2000], [3000]]
several = dict(model="small", max_tokens=4, n=2, seed=3, extra_body={"ignore_eos": True})
both = client.completions.create(prompt=prompts, **several)
alone = [client.completions.create(prompt=prompt, **several) for prompt in prompts]
assert [choice.index for choice in both.choices] == [0, 1, 2, 3]
assert [c.text for c in both.choices] == [c.text for a in alone for c in a.choices], both
assert both.usage.prompt_tokens == 3 and both.usage.completion_tokens == 16, both.usage

plain = dict(model="small", prompt="The dam", max_tokens=3, temperature=0)
dam = client.completions.create(**plain)
assert client.completions.create(**plain, echo=True).choices[0].text == "The dam" + dam.choices[0].text

# What other servers take and what cannot change an answer does not.
same = client.chat.completions.create(
    **{**chat, "messages": [{**messages[0], "name": "Ada"}]},
    user="u", metadata={"a": "b"}, store=False, service_tier="auto", reasoning_effort="none",
    tools=[{"type": "function", "function": {"name": "f"}}], tool_choice="none",
    extra_body={"chat_template_kwargs": {"unread": 1}, "cache_prompt": True, "n_predict": 12},
)
assert same.choices[0].message.content == text, same


def raised(kind, **changes):
    try:
        client.completions.create(**{"model": "small", "prompt": "x", "max_tokens": 1, **changes})
    except kind as error:
        return error
    raise AssertionError(f"no {kind.__name__} with {changes}")


over = raised(openai.BadRequestError, prompt=[7] * 256)
assert over.status_code == 400 and over.code == "context_length_exceeded", over
assert "256 tokens" in over.message and "255 tokens" in over.message, over
total = raised(openai.BadRequestError, prompt=[7] * 200, max_tokens=57)
assert total.code == "max_tokens_over_context" and total.param == "max_tokens", total
assert raised(openai.NotFoundError, model="other").code == "model_not_found"
tools = raised(openai.BadRequestError, extra_body={"tools": [{"type": "function"}]})
assert tools.code == "unsupported_parameter" and tools.param == "tools", tools

stranger = openai.OpenAI(base_url=url, api_key="wrong", max_retries=0)
try:
    stranger.models.list()
    raise AssertionError("a wrong key was taken")
except openai.AuthenticationError as error:
    assert error.code == "invalid_api_key", error

with client.chat.completions.create(**chat, stream=True) as stream:
    next(iter(stream))  # and leaves
print("all good")
