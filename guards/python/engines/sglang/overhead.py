"""What the guard costs: the same requests to a pair with the guard and one without, in turns.

Ratios of medians; processor time is that of all processes of a pair.
"""

import http.client
import json
import statistics
import time

from pair import prompt

SIZES = ((64, 24), (512, 24), (1800, 24))


def one(pair, length, new, seed):
    """(time to first token, median time between tokens) of one streamed request."""
    connection = http.client.HTTPConnection("127.0.0.1", pair.ports["router"], timeout=120)
    body = {
        "input_ids": prompt(length, seed),
        "stream": True,
        "sampling_params": {"max_new_tokens": new, "temperature": 0, "ignore_eos": True},
    }
    began, times = time.monotonic(), []
    connection.request("POST", "/generate", json.dumps(body), {"Content-Type": "application/json"})
    answer = connection.getresponse()
    for line in answer:
        if line.startswith(b"data: {"):
            times.append(time.monotonic())
    connection.close()
    gaps = [b - a for a, b in zip(times, times[1:])]
    return times[0] - began, statistics.median(gaps)


def run(guarded, stock, rounds=60):
    for length, new in SIZES:
        seen = {"guard": [], "stock": []}
        cpu = {"guard": 0.0, "stock": 0.0}
        for i in range(rounds):
            order = (("guard", guarded), ("stock", stock))
            for name, pair in order if i % 2 else reversed(order):
                before = pair.cpu_seconds()
                seen[name].append(one(pair, length, new, 1000 + i))
                cpu[name] += pair.cpu_seconds() - before
        first = {n: statistics.median(t for t, _ in v) for n, v in seen.items()}
        between = {n: statistics.median(g for _, g in v) for n, v in seen.items()}
        print(
            f"{length:5} tokens, {new} new, {rounds} rounds: "
            f"time to first token {first['guard'] / first['stock']:.3f} "
            f"({first['stock'] * 1e3:.0f} -> {first['guard'] * 1e3:.0f} ms), "
            f"between tokens {between['guard'] / between['stock']:.3f} "
            f"({between['stock'] * 1e3:.1f} -> {between['guard'] * 1e3:.1f} ms), "
            f"processor time a request {cpu['guard'] / cpu['stock']:.3f} "
            f"({cpu['stock'] / rounds * 1e3:.0f} -> {cpu['guard'] / rounds * 1e3:.0f} ms)",
            flush=True,
        )
