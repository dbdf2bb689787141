"""What the guard costs, as ratios: a stock and a guarded pair of the same model, both up, asked in
turn. Absolute times on a busy machine mean little; the ratio of medians of alternating requests does.

    python overhead.py [--rounds 40] [--tokens 16]"""

from __future__ import annotations

import argparse
import json
import os
import random
import statistics
import time
import urllib.request
from pathlib import Path

from client import Pair
from vllm_pair import PORTS, RUN


def cpu_seconds(kind: str) -> float:
    """Of all processes of a pair, so far."""
    groups = {int((RUN / f"{kind}-{part}.pid").read_text()) for part in ("prefill", "decode")}
    total = 0
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if os.getpgid(int(process.name)) in groups:
                fields = (process / "stat").read_text().rsplit(")", 1)[1].split()
                total += int(fields[11]) + int(fields[12])
        except (ProcessLookupError, FileNotFoundError):
            continue
    return total / os.sysconf("SC_CLK_TCK")


def timed(pair: Pair, prompt: list[int], rid: str, tokens: int) -> tuple[float, float]:
    """(time to first token from the start of prefill, median time between tokens), in ms."""
    begin = time.perf_counter()
    refs = pair.prefill(prompt, rid)
    body = {"model": "m", "prompt": prompt, "max_tokens": tokens, "temperature": 0, "stream": True}
    body |= {"kv_transfer_params": refs, "ignore_eos": True}
    headers = {"content-type": "application/json", "X-Request-Id": rid}
    request = urllib.request.Request(pair.d.url + "/v1/completions", json.dumps(body).encode(), headers)
    times = []
    with urllib.request.urlopen(request, timeout=600) as answer:
        for line in answer:
            if line.startswith(b"data: {"):
                assert b'"error"' not in line, line
                times.append(time.perf_counter())
    assert len(times) >= tokens, f"{len(times)} events for {tokens} tokens"
    between = [1e3 * (b - a) for a, b in zip(times, times[1:])]
    return 1e3 * (times[0] - begin), statistics.median(between)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--tokens", type=int, default=16)
    parser.add_argument("--lengths", type=int, nargs="*", default=[100, 1000])
    args = parser.parse_args()
    pairs = {kind: Pair(*ports) for kind, ports in PORTS.items()}
    for length in args.lengths:
        seen: dict[str, list[tuple[float, float]]] = {kind: [] for kind in pairs}
        cpu = dict.fromkeys(pairs, 0.0)
        for number in range(-2, args.rounds):
            rng = random.Random(f"{length} {number}")
            prompt = [rng.randrange(100, 40000) for _ in range(length)]
            order = list(pairs) if number % 2 else list(pairs)[::-1]
            for kind in order:
                before = cpu_seconds(kind)
                times = timed(pairs[kind], prompt, f"over{number}", args.tokens)
                if number >= 0:  # the first two warm up
                    seen[kind].append(times)
                    cpu[kind] += cpu_seconds(kind) - before
        first, between = ({k: statistics.median(t[i] for t in v) for k, v in seen.items()} for i in (0, 1))
        for name, of in (("time to first token", first), ("time between tokens", between)):
            ratio = of["guarded"] / of["stock"]
            print(f"{length} tokens, {name}: stock {of['stock']:.1f} ms, guarded {of['guarded']:.1f} ms, ratio {ratio:.3f}")
        each = {kind: 1e3 * seconds / args.rounds for kind, seconds in cpu.items()}
        ratio = each["guarded"] / each["stock"]
        print(f"{length} tokens, CPU a request: stock {each['stock']:.0f} ms, guarded {each['guarded']:.0f} ms, ratio {ratio:.3f}")


if __name__ == "__main__":
    main()
