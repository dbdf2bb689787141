"""Decode is killed (SIGKILL) while transfers to it are under way: no client is left waiting, no answer is wrong,
prefill lives, and a decode that is started again is served.

python killed.py 0.5.23 [--tp 2] [--dp 2,2] [--model FOLDER] [--port 31100] [--stock] [--router] [--as-shipped]

The clients ask both engines themselves, as a router does; `--router`: SGLang's own router asks, and asks again when
decode is gone. `--as-shipped`: with SGLang's own deadlines of 300 s instead of 60 s.
"""

import argparse
import os
import shutil
import signal
import tempfile
import threading
import time
from pathlib import Path

from pair import Pair, check, finish, prompt

CLIENTS = 24
# A prefill that waits for a decode that is gone ends by these: 300 s each by default.
DEADLINES = {
    "SGLANG_DISAGGREGATION_BOOTSTRAP_TIMEOUT": "60",
    "SGLANG_DISAGGREGATION_WAITING_TIMEOUT": "60",
}


def main():
    arguments = argparse.ArgumentParser()
    arguments.add_argument("version")
    arguments.add_argument("--tp", type=int, default=1)
    arguments.add_argument("--dp", default="1,1", help="data-parallel ranks of prefill, decode")
    arguments.add_argument("--model")
    arguments.add_argument("--port", type=int, default=31100)
    arguments.add_argument("--stock", action="store_true", help="the same without the guard")
    arguments.add_argument("--router", action="store_true")
    arguments.add_argument("--as-shipped", action="store_true")
    arguments.add_argument("--told-s", type=float, default=90, help="by when every client must be answered")
    a = arguments.parse_args()
    halfway = Path(tempfile.mkdtemp())
    pair = Pair(
        a.version,
        not a.stock,
        prefill_pool=32000,
        decode_pool=32000,
        tp=a.tp,
        dp=tuple(int(n) for n in a.dp.split(",")),
        model=a.model,
        port=a.port,
        router=a.router,
        env={"COFFERDAM_HALFWAY": str(halfway), **({} if a.as_shipped else DEADLINES)},
        paths=[str(Path(__file__).parent / "changed")],
    )
    print(f"-- killed, SGLang {a.version}, TP {a.tp}, DP {a.dp}, {'stock' if a.stock else 'guarded'}", flush=True)
    try:
        with pair:
            run(pair, halfway, a.told_s)
    finally:
        shutil.rmtree(halfway)
    finish()


def run(pair, halfway, told_s):
    # Each prompt goes to the same data-parallel ranks every time.
    at = lambda seed: (seed % pair.dp["prefill"], seed // 2 % pair.dp["decode"])
    if pair.with_router:
        ask = lambda seed, **more: pair.generate(prompt(1500, seed), 32, **more)
    else:
        ask = lambda seed, **more: pair.handoff(prompt(1500, seed), 32, at=at(seed), **more)
    alone = {seed: ask(seed)[:2] for seed in range(CLIENTS)}
    check(all(status == 200 for status, _ in alone.values()), "an answer to each prompt before")
    killed = threading.Event()
    found, threads = [], []

    def client(seed):
        while not killed.is_set():
            began = time.monotonic()
            answer = ask(seed, timeout=told_s + 400)
            found.append((seed, answer, began, time.monotonic()))

    for seed in range(CLIENTS):
        threads.append(threading.Thread(target=client, args=(seed,)))
        threads[-1].start()
    met = kill_in_mid_transfer(pair, halfway)
    gone = time.monotonic()
    killed.set()
    check(met == ranks(pair), "decode was killed with a transfer of every rank half way", f"{met} ranks")
    for thread in threads:
        thread.join()
    after = [one for one in found if one[3] > gone]
    kinds = {status: sum(1 for one in after if one[1][0] == status) for status in {one[1][0] for one in after}}
    last = max(one[3] for one in found) - gone
    check(len(after) == CLIENTS and last <= told_s, f"every client was answered within {told_s:.0f} s", f"{kinds} in {last:.1f} s")
    for seed, answer, began, ended in sorted(after, key=lambda one: one[3]):
        print(f"     {ended - gone:6.1f} s  {answer[0]} {str(answer[1])[:200]}", flush=True)
    wrong = [one[0] for one in found if one[1][0] == 200 and one[1][:2] != alone[one[0]]]
    check(not wrong, "no answer is another than before", f"{len(found)} answers, wrong: {wrong}")
    check(pair.processes["prefill"].poll() is None, "prefill lives")
    pair._start_engine("decode")
    pair._wait("decode", "/health")
    end = time.monotonic() + 90
    again = (0, None)
    while time.monotonic() < end and again[0] != 200:
        again = ask(5, timeout=30)
        time.sleep(1)
    check(again[:2] == alone[5], "a decode that was started again is served, with the same answer", again[:2])
    held = pair.metric("prefill", "cofferdam_guard_quarantined_pages")
    print(f"     pages of prefill in quarantine (a write ended without saying so): {held:.0f}", flush=True)


def ranks(pair):
    return pair.tp * pair.dp["prefill"]


def kill_in_mid_transfer(pair, halfway, within_s=60):
    """Kills decode when a transfer of each of prefill's ranks has written half of its bytes and not the rest (see
    changed/halfway.py); the rest is then written to whoever is not there. The ranks whose transfers were met."""
    hold, end = halfway / "hold", time.monotonic() + within_s
    hold.touch()
    while len(met := [one for one in halfway.iterdir() if one != hold]) < ranks(pair) and time.monotonic() < end:
        time.sleep(0.01)
    os.killpg(pair.processes["decode"].pid, signal.SIGKILL)
    pair.processes["decode"].wait(10)
    hold.unlink()
    return len(met)


if __name__ == "__main__":
    main()
