"""Decode is killed (SIGKILL) while it fetches blocks: no client is left waiting, no answer is wrong, prefill lives and
gets its blocks back when their leases end, and a decode that is started again is served.

    python vllm_pair.py start guarded --model TINY --dtype float32 --lease 20
    python killed.py --model TINY --dtype float32 [--pair stock] [--tp 2] [--lease 20]

COFFERDAM_HALFWAY names an empty folder, also when the pair is started: `calm/` keeps every fetch open as long as the
file `hold` is in it."""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

from client import Pair, Verdict
from ordinary import at_rest, prompt_of
from vllm_pair import HERE, PORTS, RUN

CLIENTS, TOLD_S = 8, 60
HALFWAY = Path(os.environ["COFFERDAM_HALFWAY"])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pair", default="guarded", choices=list(PORTS))
    parser.add_argument("--model", required=True)
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--tp", default="1")
    parser.add_argument("--lease", default="20")
    args = parser.parse_args()
    print(f"-- killed, vLLM, {args.pair}, TP {args.tp}", flush=True)
    pair, verdict = Pair(*PORTS[args.pair]), Verdict()
    prompts = [prompt_of(number) * 3 for number in range(1, CLIENTS + 1)]
    before = [pair.ask(prompt, f"before{at}", 8) for at, prompt in enumerate(prompts)]
    verdict.row("answers before", [status for status, _ in before], all(s == 200 for s, _ in before))
    pair.d.forget()
    found: dict[int, tuple[object, float]] = {}

    def client(at: int) -> None:
        try:
            got: object = pair.ask(prompts[at], f"killed{at}", 8)
        except OSError as fault:
            got = type(fault).__name__
        found[at] = (got, time.monotonic())

    hold = HALFWAY / "hold"
    hold.touch()
    threads = [threading.Thread(target=client, args=(at,)) for at in range(CLIENTS)]
    for thread in threads:
        thread.start()
    end = time.monotonic() + 60
    while len(met := [one for one in HALFWAY.iterdir() if one != hold]) < int(args.tp) and time.monotonic() < end:
        time.sleep(0.01)
    group = int((RUN / f"{args.pair}-decode.pid").read_text())
    os.killpg(group, signal.SIGKILL)
    at = time.monotonic()
    hold.unlink()
    verdict.row("ranks of decode that were killed with a fetch open", len(met), len(met) == int(args.tp))
    for thread in threads:
        thread.join()
    last = max(when for _, when in found.values()) - at
    told = sorted({str(got)[:60] for got, _ in found.values()})
    verdict.row(f"clients answered within {TOLD_S} s", f"{len(found)} in {last:.1f} s: {told}", last < TOLD_S)
    wrong = [n for n, (got, _) in found.items() if isinstance(got, tuple) and got[0] == 200 and got != before[n]]
    verdict.row("wrong answers", wrong, not wrong)
    used = pair.p.metrics()["vllm:kv_cache_usage_perc"]
    while pair.p.metrics()["vllm:kv_cache_usage_perc"] and time.monotonic() < at + int(args.lease) + 60:
        time.sleep(0.5)
        pair.p.complete([5, 6, 7], "tick", 1)  # an idle engine looks at its leases with the next step only
    left = pair.p.metrics()["vllm:kv_cache_usage_perc"]
    took = time.monotonic() - at
    verdict.row("prefill's part in use after the kill, and when its blocks were free", f"{used:.3f}, {left} at {took:.0f} s", not left)
    again = [sys.executable, str(HERE / "vllm_pair.py"), "start", args.pair, "--only", "decode", "--model", args.model]
    subprocess.run([*again, "--dtype", args.dtype, "--tp", args.tp, "--lease", args.lease], check=True)
    got = pair.ask(prompts[0], "again", 8)
    verdict.row("a decode that was started again is served, with the same answer", got, got == before[0])
    verdict.row("both at rest", at_rest(pair), True)
    verdict.end()


if __name__ == "__main__":
    main()
