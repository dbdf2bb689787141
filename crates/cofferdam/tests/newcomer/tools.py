"""Tool calls, forms and agents as users of Python packages ask for them. What comes back is looked at: that it is
of the schema, which tool was called with what, and that the tool's result was sent back.

    python tools.py http://127.0.0.1:8080/v1 MODEL [KEY [WORDS]]

What must be answered is demanded (a form, `required`, a tool by its name), so that it holds with any model. WORDS: what
a model of language says that has been told what came of its call ("7 degrees").
"""

import asyncio
import json
import os
import subprocess
import sys
import tempfile
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

URL, MODEL = sys.argv[1], sys.argv[2]
KEY = sys.argv[3] if len(sys.argv) > 3 else "no key"
WORDS = sys.argv[4] if len(sys.argv) > 4 else ""
QUESTION = "How is the weather in Ghent?"
ASKED = [{"role": "user", "content": QUESTION}]
TOLD = "It rains, and it is 7 degrees."
TOWNS = ["Ghent", "Bruges"]
failed = False


class Day(BaseModel):
    """The weather of a day."""

    model_config = ConfigDict(extra="forbid")
    sky: Literal["clear", "cloudy"]
    degrees: int = Field(ge=-40, le=50)


class Weather(BaseModel):
    """How the weather is in a town."""

    town: Literal["Ghent", "Bruges"]


TOOL = {
    "type": "function",
    "function": {
        "name": "weather",
        "description": "How the weather is in a town.",
        "parameters": {
            "type": "object",
            "properties": {"town": {"type": "string", "enum": TOWNS}},
            "required": ["town"],
            "additionalProperties": False,
        },
    },
}
CLOCK = {
    "type": "function",
    "function": {"name": "clock", "parameters": {"type": "object", "properties": {}, "additionalProperties": False}},
}
NAMED = {"type": "function", "function": {"name": "weather"}}


def look(client, what, good, shown):
    global failed
    failed |= not good
    print(f"{'ok  ' if good else 'FAIL'} {client:<13} {what:<22} {' '.join(str(shown).split())[:110]}", flush=True)


def told(client, what, text):
    """The answer of a model that was told what came of its call."""
    look(client, what, bool(text) and WORDS in text, repr(text))


def of_weather(call):
    """Whether a call as OpenAI's API has it is one of `weather`, by its schema."""
    town = json.loads(call.function.arguments).get("town")
    return bool(call.id) and call.function.name == "weather" and town in TOWNS


def joined(chunks):
    """The calls of a stream, put together as its reader does: (id, name, arguments) by their places."""
    calls, reason = {}, None
    for chunk in chunks:
        for choice in chunk.choices:
            reason = choice.finish_reason or reason
            for part in choice.delta.tool_calls or []:
                have = calls.setdefault(part.index, ["", "", ""])
                have[0] += part.id or ""
                have[1] += part.function.name or ""
                have[2] += part.function.arguments or ""
    return [calls[place] for place in sorted(calls)], reason


def openai():
    from openai import OpenAI, pydantic_function_tool

    chat = OpenAI(base_url=URL, api_key=KEY, max_retries=0).chat.completions
    asked = dict(model=MODEL, messages=ASKED, temperature=0, max_tokens=200)
    parsed = chat.parse(**asked, response_format=Day).choices[0].message.parsed
    look("openai", "parse", isinstance(parsed, Day), parsed)
    with chat.stream(**asked, response_format=Day) as events:
        kinds = [event.type for event in events]
        last = events.get_final_completion().choices[0].message
    good = last.parsed == parsed and kinds.count("content.delta") > 2 and kinds[-1] == "content.done"
    look("openai", "parse, streamed", good, last.parsed)
    loose = chat.create(**asked, response_format={"type": "json_object"}).choices[0]
    good = loose.finish_reason == "length" or isinstance(json.loads(loose.message.content), dict)
    look("openai", "json_object", good and loose.message.content.lstrip()[:1] == "{", repr(loose.message.content))

    tools = [TOOL, CLOCK]
    none = chat.create(**asked, tools=tools, tool_choice="none").choices[0].message
    look("openai", "tools, none", bool(none.content) and not none.tool_calls, repr(none.content))
    auto = chat.create(**asked, tools=tools).choices[0]
    good = bool(auto.message.tool_calls) == (auto.finish_reason == "tool_calls")
    look("openai", "tools, auto", good and bool(auto.message.content or auto.message.tool_calls), auto.message)
    one = chat.create(**asked, tools=tools, tool_choice=NAMED, parallel_tool_calls=False).choices[0]
    good = len(one.message.tool_calls) == 1 and of_weather(one.message.tool_calls[0])
    look("openai", "tools, by name", good and one.finish_reason == "tool_calls", one.message.tool_calls[0].function)
    demanded = dict(tools=tools, tool_choice="required", parallel_tool_calls=False)
    any_of = chat.create(**asked, **demanded).choices[0].message.tool_calls
    good = len(any_of) == 1 and (any_of[0].function.name == "clock" or of_weather(any_of[0]))
    look("openai", "tools, required", good, any_of[0].function)
    calls, reason = joined(chat.create(**asked, **demanded, stream=True))
    same = [[call.function.name, call.function.arguments] for call in any_of]
    look("openai", "the same, streamed", [call[1:] for call in calls] == same and reason == "tool_calls", calls)
    helped = chat.parse(**asked, tools=[pydantic_function_tool(Weather)], tool_choice="required")
    arguments = [call.function.parsed_arguments for call in helped.choices[0].message.tool_calls or []]
    good = helped.choices[0].finish_reason == "length" or arguments
    look("openai", "parse, several calls", good and all(isinstance(it, Weather) for it in arguments), arguments[:2])
    again = chat.create(
        **{**asked, "messages": ASKED + [one.message, {
            "role": "tool", "tool_call_id": one.message.tool_calls[0].id, "content": TOLD,
        }]}, tools=tools,
    )
    told("openai", "what came of it", again.choices[0].message.content)


def langchain():
    from langchain_core.messages import HumanMessage, ToolMessage
    from langchain_openai import ChatOpenAI

    model = ChatOpenAI(base_url=URL, api_key=KEY, model=MODEL, temperature=0, max_tokens=200, max_retries=0)
    for method in ("json_schema", "function_calling"):
        day = model.with_structured_output(Day, method=method).invoke(QUESTION)
        look("langchain", f"form, {method}", isinstance(day, Day), repr(day))
    day = model.with_structured_output(Day.model_json_schema(), method="json_schema", strict=True).invoke(QUESTION)
    look("langchain", "form, as a dict", Day(**day) is not None, day)
    raw = model.with_structured_output(None, method="json_mode", include_raw=True).invoke(QUESTION + " Say it in JSON.")
    look("langchain", "form, json_mode", raw["raw"].content.lstrip()[:1] == "{", repr(raw["raw"].content))
    *_, last = model.with_structured_output(Day, method="json_schema").stream(QUESTION)
    look("langchain", "form, streamed", isinstance(last, Day), repr(last))

    for choice in ("any", "weather"):
        bound = model.bind_tools([TOOL], tool_choice=choice, parallel_tool_calls=False)
        said = bound.invoke(QUESTION)
        good = [(it["name"], it["args"]["town"] in TOWNS) for it in said.tool_calls] == [("weather", True)]
        look("langchain", f"tools, {choice}", good, said.tool_calls)
    whole = None
    for part in bound.stream(QUESTION):
        whole = part if whole is None else whole + part
    same = [(it["name"], it["args"]) for it in said.tool_calls]
    look("langchain", "the same, streamed", [(it["name"], it["args"]) for it in whole.tool_calls] == same, whole.tool_calls)
    result = ToolMessage(TOLD, tool_call_id=said.tool_calls[0]["id"], name="weather")
    again = model.bind_tools([TOOL]).invoke([HumanMessage(QUESTION), said, result])
    told("langchain", "what came of it", again.content)


def litellm():
    os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"
    import litellm as lite

    asked = dict(model="openai/" + MODEL, api_base=URL, api_key=KEY, messages=ASKED, temperature=0, max_tokens=200)
    said = lite.completion(**asked, response_format=Day).choices[0].message.content
    look("litellm", "form", Day.model_validate_json(said) is not None, said)
    demanded = dict(tools=[TOOL], tool_choice="required", parallel_tool_calls=False)
    message = lite.completion(**asked, **demanded).choices[0].message
    look("litellm", "tools, required", [of_weather(it) for it in message.tool_calls] == [True], message.tool_calls)
    calls, reason = joined(lite.completion(**asked, **demanded, stream=True))
    same = [[it.function.name, it.function.arguments] for it in message.tool_calls]
    look("litellm", "the same, streamed", [it[1:] for it in calls] == same and reason == "tool_calls", calls)
    result = {"role": "tool", "tool_call_id": message.tool_calls[0].id, "name": "weather", "content": TOLD}
    again = lite.completion(**{**asked, "messages": ASKED + [message.model_dump(), result]}, tools=[TOOL])
    told("litellm", "what came of it", again.choices[0].message.content)


def agents():
    asyncio.run(agents_by_both())


async def agents_by_both():
    """A tool that must be called is called, and what it says is in the next prompt, by both of OpenAI's APIs."""
    import agents as sdk
    from openai import AsyncOpenAI

    sdk.set_tracing_disabled(True)
    client = AsyncOpenAI(base_url=URL, api_key=KEY, max_retries=0)
    asked = []

    @sdk.function_tool
    def weather(town: Literal["Ghent", "Bruges"]) -> str:
        """How the weather is in a town."""
        asked.append(town)
        return TOLD

    def judged(what, run):
        outputs = [item.output for item in run.new_items if isinstance(item, sdk.ToolCallOutputItem)]
        before, after = [it.usage.input_tokens for it in run.raw_responses]
        good = len(asked) == 1 and asked[0] in TOWNS and outputs == [TOLD] and after > before
        look("openai-agents", what, good, f"weather({asked}), prompts of {before} and {after} tokens")
        told("openai-agents", "", run.final_output)
        asked.clear()

    for kind in (sdk.OpenAIChatCompletionsModel, sdk.OpenAIResponsesModel):
        name = "chat" if kind is sdk.OpenAIChatCompletionsModel else "responses"
        settings = dict(temperature=0, max_tokens=200, include_usage=True)
        agent = sdk.Agent(
            name="Clerk", instructions="Be brief.", tools=[weather],
            model_settings=sdk.ModelSettings(**settings, tool_choice="required", parallel_tool_calls=False),
            model=kind(model=MODEL, openai_client=client),
        )
        if WORDS or name == "chat":
            judged(name, await sdk.Runner.run(agent, QUESTION))
            run = sdk.Runner.run_streamed(agent, QUESTION)
            said = [event.data async for event in run.stream_events() if event.type == "raw_response_event"]
            deltas = [it.delta for it in said if it.type == "response.output_text.delta"]
            judged(f"{name}, streamed", run)
            good = len(deltas) > 2 and "".join(deltas) == run.final_output
            look("openai-agents", f"{name}, in pieces", good, f"{len(deltas)} pieces")
        else:  # it takes a response that is cut for a fault, and a model of random weights never ends by itself
            once = agent.clone(tool_use_behavior="stop_on_first_tool")
            whole, streamed = await sdk.Runner.run(once, QUESTION), sdk.Runner.run_streamed(once, QUESTION)
            kinds = [event.type async for event in streamed.stream_events()]
            good = whole.final_output == streamed.final_output == TOLD and asked[0] == asked[1] and asked[0] in TOWNS
            look("openai-agents", f"{name}, whole, streamed", good and len(asked) == 2, f"{asked}, {len(kinds)} events")
            asked.clear()
        typed = agent.clone(output_type=Day, tools=[], model_settings=sdk.ModelSettings(**settings))
        day = (await sdk.Runner.run(typed, QUESTION)).final_output
        look("openai-agents", f"{name}, a form", isinstance(day, Day), repr(day))


def pydantic():
    from pydantic_ai import Agent, NativeOutput, ToolOutput
    from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel
    from pydantic_ai.providers.openai import OpenAIProvider

    for kind in (OpenAIChatModel, OpenAIResponsesModel):
        name = "chat" if kind is OpenAIChatModel else "responses"
        model = kind(MODEL, provider=OpenAIProvider(base_url=URL, api_key=KEY))
        settings = dict(temperature=0, max_tokens=200)
        for how in (ToolOutput, NativeOutput):
            day = Agent(model, output_type=how(Day), model_settings=settings).run_sync(QUESTION).output
            look("pydantic-ai", f"{name}, {how.__name__}", isinstance(day, Day), repr(day))
        asked = []
        # A function as the answer: the model must call it, and what it returns is the answer.

        def weather(town: Literal["Ghent", "Bruges"]) -> str:
            """How the weather is in a town."""
            asked.append(town)
            return TOLD

        said = Agent(model, output_type=weather, model_settings=settings).run_sync(QUESTION).output
        look("pydantic-ai", f"{name}, a function", said == TOLD and len(asked) == 1 and asked[0] in TOWNS, asked)
        said = Agent(model, tools=[weather], model_settings=settings).run_sync(QUESTION).output
        look("pydantic-ai", f"{name}, auto", bool(said), repr(said))


def llm():
    with tempfile.TemporaryDirectory() as place:
        with open(os.path.join(place, "extra-openai-models.yaml"), "w") as file:
            file.write(
                f"- model_id: here\n  model_name: {MODEL}\n  api_base: {URL}\n  api_key_name: here\n"
                "  supports_schema: true\n  supports_tools: true\n"
            )
        environment = {**os.environ, "LLM_USER_PATH": place}
        command = [os.path.join(os.path.dirname(sys.executable), "llm"), "-m", "here", "--key", KEY]
        command += ["-o", "temperature", "0", "-o", "max_tokens", "200", QUESTION]
        for what, more in [("form", ["--no-stream"]), ("form, streamed", [])]:
            more += ["--schema", json.dumps(Day.model_json_schema())]
            said = subprocess.run(command + more, env=environment, capture_output=True, text=True)
            good = said.returncode == 0 and Day.model_validate_json(said.stdout)
            look("llm", what, bool(good), said.stdout.strip() or said.stderr)
        said = subprocess.run(
            command + ["--functions", "def clock():\n    'The time.'\n    return '12:00'"],
            env=environment, capture_output=True, text=True,
        )
        look("llm", "tools", said.returncode == 0 and bool(said.stdout.strip()), repr(said.stdout or said.stderr))


for client in (openai, langchain, litellm, agents, pydantic, llm):
    try:
        client()
    except Exception as error:  # the next one may work, and all are to be seen
        failed = True
        print(f"FAIL {client.__name__:<13} {type(error).__name__}: {error}")
        if os.environ.get("TRACE"):
            import traceback

            traceback.print_exc()
sys.exit(failed)
