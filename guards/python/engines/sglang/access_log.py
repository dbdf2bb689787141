"""Requests to a stock pair, past its router, and an access log of them for `cofferdam watch`.

    python access_log.py VERSION OUT.jsonl [MODEL] [REQUESTS]     # with pair.py's environment

Each request goes to prefill and decode at once, as a router would send it, so that both say how
many tokens its prompt had. One in twenty is longer than prefill's limit of 1,993 tokens."""

from __future__ import annotations

import http.client
import json
import random
import sys
import threading
import time

from pair import Pair, prompt

ROUTE = "/v1/completions"
FIELDS = """[fields]
time = "time"
seconds = ["ttft_s"]
prompt_tokens = "decode.prompt_tokens"
completion_tokens = "decode.completion_tokens"
sent_tokens = "sent_tokens"
prefill_tokens = "prefill.prompt_tokens"
decode_tokens = "decode.prompt_tokens"
id = "id"
tenant = "tenant"
worker = "worker"
status = "status"
"""


def post(port: int, body: dict, timeout: float) -> http.client.HTTPResponse:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=timeout)
    connection.request("POST", ROUTE, json.dumps(body), {"Content-Type": "application/json"})
    return connection.getresponse()


def prefill(port: int, body: dict, timeout: float, said: dict) -> None:
    try:
        answer = post(port, body, timeout)
        text = answer.read()
        said["status"] = answer.status
        said["usage"] = json.loads(text).get("usage") if answer.status == 200 else None
    except (OSError, ValueError) as fault:
        said["fault"] = repr(fault)


def decode(port: int, body: dict, timeout: float) -> tuple[int, float | None, dict]:
    """Status, seconds to the first text, usage."""
    began, first, usage = time.monotonic(), None, {}
    answer = post(port, body, timeout)
    for line in answer:
        if not line.startswith(b"data: {"):
            continue
        event = json.loads(line[6:])
        if first is None and event.get("choices"):
            first = time.monotonic() - began
        usage = event.get("usage") or usage
    return answer.status, first, usage


def one(pair: Pair, n: int, length: int, timeout: float = 120.0) -> dict:
    body = {
        "model": "m",
        "prompt": list(prompt(length, n)),
        "max_tokens": 2,
        "temperature": 0,
        "bootstrap_host": "127.0.0.1",
        "bootstrap_port": (pair.ports["prefill"] + 7000) % 60000,
        "bootstrap_room": random.getrandbits(62),
    }
    line = {
        "time": time.time(),
        "id": f"r{n}",
        "tenant": f"tenant-{n % 3}",
        "worker": "p0>d0",
        "sent_tokens": length,
    }
    said: dict = {}
    other = threading.Thread(
        target=prefill, args=(pair.ports["prefill"], body, timeout, said), daemon=True
    )
    other.start()
    streamed = {**body, "stream": True, "stream_options": {"include_usage": True}}
    try:
        line["status"], line["ttft_s"], line["decode"] = decode(
            pair.ports["decode"], streamed, timeout
        )
    except OSError as fault:
        line["status"], line["fault"] = 599, repr(fault)
    other.join(timeout)
    line["prefill"] = said.get("usage") or {}
    line["prefill_status"] = said.get("status")
    return line


def lengths(count: int) -> list[int]:
    """Two lengths, so that each is soon learned; one in twenty over the limit, all different."""
    draw = random.Random(7)
    usual = (16, 256)
    return [draw.randrange(1994, 3900) if n % 20 == 19 else usual[n % 2] for n in range(count)]


def run(pair: Pair, out: str, count: int) -> None:
    with open(out, "w") as log:
        for n, length in enumerate(lengths(count)):
            log.write(json.dumps(one(pair, n, length)) + "\n")
    with open(out + ".toml", "w") as fields:
        fields.write(FIELDS)


def main() -> None:
    version, out = sys.argv[1:3]
    model = sys.argv[3] if len(sys.argv) > 3 else None
    count = int(sys.argv[4]) if len(sys.argv) > 4 else 1000
    with Pair(
        version,
        False,
        prefill_pool=2000,
        decode_pool=8000,
        model=model,
        arguments=["--dtype", "float32"],
    ) as pair:
        run(pair, out, count)


if __name__ == "__main__":
    main()
