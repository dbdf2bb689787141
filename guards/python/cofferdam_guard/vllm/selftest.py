"""Shows that the guard works where it runs: a sound handoff is answered, one with a single flipped
byte is not, and both are counted."""

from __future__ import annotations

import json
import time
import urllib.error
import urllib.request
from typing import Any

PROMPT = "One two three four five six seven eight nine ten eleven twelve"
ASK = {"do_remote_decode": True, "do_remote_prefill": False}
# Statistics travel with an engine's next steps.
COUNT_WAIT_S = 15.0


def run(prefill: str, decode: str, model: str) -> bool:
    """True if everything was as it must be; says what was seen."""
    sound = _handoff(prefill, decode, model, "cofferdam-guard-sound")
    ok = _say("a sound handoff is answered", sound, sound[0] == 200)
    refused = _count(decode, "refused_content_total")
    spoilt = _handoff(prefill, decode, model, "cofferdam-guard-selftest")
    recomputed = spoilt[0] == 200 and spoilt[1] == sound[1]
    ok &= _say("a flipped byte is refused (or its prompt computed anew)", spoilt, spoilt[0] >= 500 or recomputed)
    end = time.monotonic() + COUNT_WAIT_S
    while (now := _count(decode, "refused_content_total")) == refused and time.monotonic() < end:
        time.sleep(0.5)
    ok &= _say("cofferdam_guard_refused_content_total", f"{refused} -> {now}", now == refused + 1)
    return ok


def _say(what: str, got: Any, right: bool) -> bool:
    print(f"{'ok  ' if right else 'FAIL'} {what}: {got}")
    return right


def _handoff(prefill: str, decode: str, model: str, name: str) -> tuple[int, str]:
    # A salt of its own, so that nothing is answered from a prefix cache.
    salt = f"{name}-{time.time_ns()}"
    body = {"model": model, "prompt": PROMPT, "temperature": 0, "cache_salt": salt}
    status, answer = _post(prefill, body | {"max_tokens": 1, "kv_transfer_params": ASK}, name)
    refs = answer.get("kv_transfer_params") or {}
    if status != 200 or "cofferdam_guard" not in refs:
        raise SystemExit(f"prefill answered {status} without a guard's reference: is its guard on?")
    status, answer = _post(decode, body | {"max_tokens": 8, "kv_transfer_params": refs}, name)
    if status == 200:
        return status, answer["choices"][0]["text"]
    return status, answer.get("error", {}).get("message", "")


def _post(url: str, body: dict[str, Any], name: str) -> tuple[int, dict[str, Any]]:
    headers = {"content-type": "application/json", "X-Request-Id": name}
    data = json.dumps(body).encode()
    request = urllib.request.Request(url.rstrip("/") + "/v1/completions", data, headers)
    try:
        with urllib.request.urlopen(request, timeout=120) as answer:
            return answer.status, json.load(answer)
    except urllib.error.HTTPError as error:
        return error.code, json.loads(error.read() or b"{}")


def _count(url: str, name: str) -> float:
    with urllib.request.urlopen(url.rstrip("/") + "/metrics", timeout=30) as answer:
        lines = answer.read().decode().splitlines()
    wanted = f"cofferdam_guard_{name}"
    found = [line for line in lines if line.startswith((wanted + "{", wanted + " "))]
    if not found:
        raise SystemExit(f"{url} has no counter {wanted}: is its guard on?")
    return sum(float(line.rsplit(" ", 1)[1]) for line in found)
