"""Decode is killed (SIGKILL) while it fetches blocks, in the middle of ordinary traffic: no client is left waiting, no
answer is wrong, prefill lives and gets its blocks back when their leases end, and a decode that is started again is
served.

    python vllm_pair.py start guarded --model TINY --dtype float32 --lease 20 [--tp 2]
    python killed.py --model TINY --dtype float32 [--pair stock] [--tp 2] [--lease 20] [--against stock.json]

The traffic is that of ordinary.py, eight clients, some of which leave. COFFERDAM_HALFWAY names an empty folder, also
when the pair is started: `calm/` keeps every fetch open as long as the file `hold` is in it."""

from __future__ import annotations

import argparse
import http.client
import json
import os
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from client import Pair, Verdict
from ordinary import alone, at_rest, one
from vllm_pair import HERE, PORTS, RUN

CLIENTS, TOLD_S = 8, 60
HALFWAY = Path(os.environ["COFFERDAM_HALFWAY"])


class Traffic:
    """Clients that ask as long as a decode is there."""

    def __init__(self, pair: Pair, kind: str, requests: int) -> None:
        self.pair, self.kind = pair, kind
        self.there = threading.Event()
        self.there.set()
        self.began: dict[int, float] = {}
        # The answer, and when it was told.
        self.found: dict[int, tuple[str | None, float]] = {}
        self.pool = ThreadPoolExecutor(CLIENTS)
        self.open = [self.pool.submit(self.ask, number) for number in range(requests)]

    def ask(self, number: int) -> None:
        self.there.wait()
        self.began[number] = time.monotonic()
        try:
            got = one(self.pair, self.kind, number)[1]
        except (OSError, RuntimeError, http.client.HTTPException) as fault:
            got = f"no answer: {type(fault).__name__}"
        self.found[number] = (got, time.monotonic())

    def until(self, number: int) -> None:
        while len(self.found) < number:
            time.sleep(0.01)

    def waiting(self) -> bool:
        return len(self.began) > len(self.found)

    def end(self) -> None:
        for one_of_them in self.open:
            one_of_them.result()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pair", default="guarded", choices=list(PORTS))
    parser.add_argument("--model", required=True)
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--tp", type=int, default=1)
    parser.add_argument("--lease", type=int, default=20)
    parser.add_argument("--requests", type=int, default=300)
    parser.add_argument("--against", help="answers of another pair, as ordinary.py saves them")
    args = parser.parse_args()
    print(f"-- killed, vLLM, {args.pair}, TP {args.tp}", flush=True)
    pair, verdict = Pair(*PORTS[args.pair]), Verdict()
    traffic = Traffic(pair, args.pair, args.requests)
    traffic.until(args.requests // 3)
    met, at = kill(traffic, args.pair, args.tp)
    verdict.row("ranks of decode that were killed with a fetch open", met, met == args.tp)
    wait_for(lambda: not traffic.waiting(), TOLD_S)
    cut = [(got, ended - at) for got, ended in traffic.found.values() if ended > at]
    told = sorted({str(got)[:90] for got, _ in cut})
    last = max(after for _, after in cut)
    verdict.row(f"clients told within {TOLD_S} s", f"{len(cut)} in {last:.1f} s: {told}", not traffic.waiting())
    leases(pair, verdict, at, args.lease)
    again = [sys.executable, str(HERE / "vllm_pair.py"), "start", args.pair, "--only", "decode", "--model", args.model]
    subprocess.run([*again, "--dtype", args.dtype, "--tp", str(args.tp), "--lease", str(args.lease)], check=True)
    traffic.there.set()
    traffic.end()
    answers = {number: got for number, (got, _) in traffic.found.items() if got is not None}
    bad = {n for n, got in answers.items() if got.startswith(("HTTP ", "no answer"))}
    late = [answers[n] for n in bad if traffic.began[n] > at]
    served = sum(1 for n in answers if n not in bad and traffic.began[n] > at)
    verdict.row("a decode that was started again is served", f"{served} answers, errors: {late[:3]}", served > 0 and not late)
    pair.d.forget()
    good = [n for n in answers if n not in bad]
    differ = [n for n in good if answers[n] != alone(pair, n)]
    verdict.row(f"{len(good)} answers, not those without a handoff", differ[:5], bool(good) and not differ)
    if args.against:
        other = json.loads(Path(args.against).read_text())
        differ = [n for n in good if answers[n] != other[str(n)]]
        verdict.row(f"{len(good)} answers, not those of the other pair", differ[:5], not differ)
    wait_for(lambda: at_rest(pair), args.lease + 60)
    verdict.row("all blocks of both free again", pair.d.metrics()["vllm:kv_cache_usage_perc"], at_rest(pair))
    if args.pair == "guarded":
        counts = pair.guard_counts()
        print(f"     the guard since decode was started again, and prefill's: {counts}", flush=True)
        alarms = {name: n for name, n in counts.items() if name.startswith("refused_content")}
        verdict.row("refusals for content", alarms, not alarms)
    verdict.end()


def kill(traffic: Traffic, kind: str, ranks: int) -> tuple[int, float]:
    """Ends decode when each rank of it has a fetch open: how many had, and when it was."""
    hold = HALFWAY / "hold"
    hold.touch()
    met = lambda: len([one for one in HALFWAY.iterdir() if one != hold])
    wait_for(lambda: met() >= ranks, 60)
    traffic.there.clear()
    os.killpg(int((RUN / f"{kind}-decode.pid").read_text()), signal.SIGKILL)
    at = time.monotonic()
    hold.unlink()
    return met(), at


def leases(pair: Pair, verdict: Verdict, at: float, lease: int) -> None:
    used = pair.p.metrics()["vllm:kv_cache_usage_perc"]
    while pair.p.metrics()["vllm:kv_cache_usage_perc"] and time.monotonic() < at + lease + 60:
        time.sleep(0.5)
        pair.p.complete([5, 6, 7], "tick", 1)  # an idle engine looks at its leases with the next step only
    left, took = pair.p.metrics()["vllm:kv_cache_usage_perc"], time.monotonic() - at
    verdict.row("prefill's part in use after the kill, and when its blocks were free", f"{used:.3f}, {left} at {took:.0f} s", not left)


def wait_for(true, within_s: float) -> None:
    end = time.monotonic() + within_s
    while not true() and time.monotonic() < end:
        time.sleep(0.1)


if __name__ == "__main__":
    main()
