"""Python clients as their users write them: each chats, each streams, and the words are looked at.

    python sdk.py http://127.0.0.1:8080/v1 MODEL [KEY [WORDS]]

WORDS: what must stand in each answer; a model of language is asked for the capital of Japan.
"""

import os
import subprocess
import sys
import tempfile

URL, MODEL = sys.argv[1], sys.argv[2]
KEY = sys.argv[3] if len(sys.argv) > 3 else "no key"
WORDS = sys.argv[4] if len(sys.argv) > 4 else "Tokyo"
ASKED = [{"role": "user", "content": "What is the capital of Japan?"}]
failed = False


def look(client, what, text, pieces=None):
    """The answer has the words; a stream came in pieces."""
    global failed
    good = WORDS in text and (pieces is None or pieces > 2)
    failed |= not good
    shown = f"{text.strip()!r}" + ("" if pieces is None else f" in {pieces} pieces")
    print(f"{'ok  ' if good else 'FAIL'} {client:<12} {what:<7} {shown}")


def openai():
    from openai import OpenAI

    client = OpenAI(base_url=URL, api_key=KEY)
    answer = client.chat.completions.create(model=MODEL, messages=ASKED, temperature=0)
    look("openai", "chat", answer.choices[0].message.content)
    stream = client.chat.completions.create(
        model=MODEL, messages=ASKED, temperature=0, stream=True, stream_options={"include_usage": True}
    )
    parts = [part.choices[0].delta.content or "" for part in stream if part.choices]
    look("openai", "stream", "".join(parts), len(parts))


def litellm():
    os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"
    import litellm as lite

    asked = dict(
        model="openai/" + MODEL, api_base=URL, api_key=KEY, messages=ASKED, temperature=0
    )
    look("litellm", "chat", lite.completion(**asked).choices[0].message.content)
    parts = [part.choices[0].delta.content or "" for part in lite.completion(stream=True, **asked)]
    look("litellm", "stream", "".join(parts), len(parts))


def langchain():
    from langchain_openai import ChatOpenAI

    model = ChatOpenAI(base_url=URL, api_key=KEY, model=MODEL, temperature=0)
    question = ASKED[0]["content"]
    look("langchain", "chat", model.invoke(question).content)
    parts = [part.content for part in model.stream(question)]
    look("langchain", "stream", "".join(parts), len(parts))


def llm():
    with tempfile.TemporaryDirectory() as place:
        with open(os.path.join(place, "extra-openai-models.yaml"), "w") as file:
            file.write(f"- model_id: here\n  model_name: {MODEL}\n  api_base: {URL}\n  api_key_name: here\n")
        environment = {**os.environ, "LLM_USER_PATH": place, "OPENAI_API_KEY": KEY}
        command = [os.path.join(os.path.dirname(sys.executable), "llm"), "-m", "here"]
        command += ["--key", KEY, "-o", "temperature", "0", ASKED[0]["content"]]
        for what, more in [("chat", ["--no-stream"]), ("stream", [])]:
            said = subprocess.run(command + more, env=environment, capture_output=True, text=True)
            look("llm", what, said.stdout or said.stderr)


for client in (openai, litellm, langchain, llm):
    try:
        client()
    except Exception as error:  # the next one may work, and all are to be seen
        failed = True
        print(f"FAIL {client.__name__:<12} {type(error).__name__}: {error}")
sys.exit(failed)
