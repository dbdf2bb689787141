"""Decode is killed (SIGKILL) while transfers are under way: no client is left waiting, prefill lives, and a
decode that is started again is served.

python killed.py 0.5.23 [--tp 2] [--model FOLDER] [--port 31100] [--stock]
"""

import argparse
import os
import signal
import threading
import time

from pair import Pair, check, finish, prompt

# A client whose engine was killed is told by then; SGLang's own heartbeat takes some seconds.
TOLD_S = 300
# SGLang's own deadlines, 300 s each by default: a request that waits for a decode that is gone ends by them.
DEADLINES = {
    "SGLANG_DISAGGREGATION_BOOTSTRAP_TIMEOUT": "60",
    "SGLANG_DISAGGREGATION_WAITING_TIMEOUT": "60",
}


def main():
    arguments = argparse.ArgumentParser()
    arguments.add_argument("version")
    arguments.add_argument("--tp", type=int, default=1)
    arguments.add_argument("--model")
    arguments.add_argument("--port", type=int, default=31100)
    arguments.add_argument("--stock", action="store_true", help="the same without the guard")
    a = arguments.parse_args()
    pair = Pair(
        a.version,
        not a.stock,
        prefill_pool=8000,
        decode_pool=8000,
        tp=a.tp,
        model=a.model,
        port=a.port,
        env=DEADLINES,
    )
    with pair:
        run(pair)
    finish()


def run(pair):
    alone = pair.generate(prompt(300, 5), 8)
    check(alone[0] == 200, "an answer before", alone[1])
    found, threads = [], []

    def client(seed):
        found.append(pair.generate(prompt(1500, seed), 32, timeout=TOLD_S))

    for seed in range(100, 124):
        threads.append(threading.Thread(target=client, args=(seed,)))
        threads[-1].start()
    time.sleep(0.6)
    began = time.monotonic()
    os.killpg(pair.processes["decode"].pid, signal.SIGKILL)
    for thread in threads:
        thread.join()
    waited = time.monotonic() - began
    kinds = {status: sum(1 for one in found if one[0] == status) for status in {one[0] for one in found}}
    check(len(found) == 24 and 0 not in kinds, "every client was answered", f"{kinds} in {waited:.1f} s")
    check(pair.processes["prefill"].poll() is None, "prefill lives")
    pair.processes["decode"].wait(10)
    pair._start_engine("decode")
    pair._wait("decode", "/health")
    end = time.monotonic() + 90
    again = (0, None)
    while time.monotonic() < end and again[0] != 200:
        again = pair.generate(prompt(300, 5), 8, timeout=30)
        time.sleep(1)
    check(again[:2] == alone[:2], "a decode that was started again is served, with the same answer", again)
    held = pair.metric("prefill", "cofferdam_guard_quarantined_pages")
    print(f"     pages of prefill in quarantine (a write ended without saying so): {held:.0f}", flush=True)


if __name__ == "__main__":
    main()
