"""What the scripts share: a router's two requests, metrics, and a verdict that exits non-zero."""

from __future__ import annotations

import copy
import json
import re
import sys
import urllib.error
import urllib.request
from typing import Any


class Server:
    def __init__(self, port: int) -> None:
        self.url = f"http://127.0.0.1:{port}"

    def post(self, path: str, body: dict[str, Any], rid: str, timeout: float = 600) -> tuple[int, Any]:
        headers = {"content-type": "application/json", "X-Request-Id": rid}
        request = urllib.request.Request(self.url + path, json.dumps(body).encode(), headers)
        try:
            with urllib.request.urlopen(request, timeout=timeout) as answer:
                return answer.status, json.load(answer)
        except urllib.error.HTTPError as error:
            return error.code, json.loads(error.read() or b"{}")

    def complete(self, prompt: Any, rid: str, tokens: int, **more: Any) -> tuple[int, Any]:
        body = {"model": "m", "prompt": prompt, "max_tokens": tokens, "temperature": 0} | more
        return self.post("/v1/completions", body, rid)

    def metrics(self) -> dict[str, float]:
        """Sums of all series of each name."""
        with urllib.request.urlopen(self.url + "/metrics", timeout=60) as answer:
            text = answer.read().decode()
        found: dict[str, float] = {}
        for name, value in re.findall(r"^([a-z_:]+)(?:\{[^}]*\})? ([0-9.e+-]+)$", text, re.M):
            found[name] = found.get(name, 0.0) + float(value)
        return found

    def forget(self) -> None:
        """Empties the prefix cache, so that the next request is not answered from it."""
        request = urllib.request.Request(self.url + "/reset_prefix_cache", method="POST")
        urllib.request.urlopen(request, timeout=60).close()


ASK = {
    "do_remote_decode": True,
    "do_remote_prefill": False,
    "remote_engine_id": None,
    "remote_block_ids": None,
    "remote_host": None,
    "remote_port": None,
}


class Pair:
    """What a router does: the prompt to P, P's references with the prompt to D."""

    def __init__(self, prefill: int, decode: int) -> None:
        self.p, self.d = Server(prefill), Server(decode)

    def prefill(self, prompt: Any, rid: str, **more: Any) -> dict[str, Any]:
        status, body = self.p.complete(prompt, rid, 1, kv_transfer_params=ASK, **more)
        if status != 200:
            raise RuntimeError(f"prefill answered {status}: {body}")
        return body["kv_transfer_params"]

    def decode(
        self, prompt: Any, refs: dict[str, Any], rid: str, tokens: int = 6, **more: Any
    ) -> tuple[int, Any]:
        """(status, text), or (status, error message)."""
        refs = copy.deepcopy(refs)
        status, body = self.d.complete(prompt, rid, tokens, kv_transfer_params=refs, **more)
        if status == 200:
            return status, body["choices"][0]["text"]
        return status, body.get("error", {}).get("message", body)

    def ask(self, prompt: Any, rid: str, tokens: int = 6, **more: Any) -> tuple[int, Any]:
        return self.decode(prompt, self.prefill(prompt, rid, **more), rid, tokens, **more)

    def guard_counts(self) -> dict[str, float]:
        """The guard's counters of both sides together, without zeroes."""
        total: dict[str, float] = {}
        for server in (self.p, self.d):
            for name, value in server.metrics().items():
                if name.startswith("cofferdam_guard_") and name.endswith("_total") and value:
                    short = name.removeprefix("cofferdam_guard_")
                    total[short] = total.get(short, 0.0) + value
        return total


class Verdict:
    """Says what was seen, and whether it was what must be seen."""

    def __init__(self) -> None:
        self.failed = 0

    def row(self, name: str, got: Any, right: bool) -> None:
        self.failed += not right
        print(f"{'ok  ' if right else 'FAIL'} {name}: {got}", flush=True)

    def end(self) -> None:
        print("all as it must be" if not self.failed else f"{self.failed} rows are wrong")
        sys.exit(1 if self.failed else 0)


def capital(city: str) -> str:
    return (
        f"The {city} is the capital city. Remember the city {city}. We like {city} very much. "
        "The name of the capital city is"
    )
