"""Everything that is shown on real engines, for one version, with one pair guarded and one not.

python run_all.py 0.5.19 [--requests 1000] [--only limits,traffic,overhead,faults]
python run_all.py 0.5.23 --tp 2 --no-stock --only limits,traffic,faults     faults on one rank of two
python run_all.py 0.5.23 --dp 1,2 --no-stock --only limits,traffic,faults   data-parallel ranks of prefill, decode
python run_all.py 0.5.23 --dp 2,2 --only-stock --only rooms   no rank of prefill named, and a wrong one: without the guard
python run_all.py 0.5.23 --tp 2 --dp 2,2 --dp-attention …                   which share the tensor ranks
python run_all.py 0.5.19 --only decode-limits      by itself: the pools are the other way round
python run_all.py 0.5.19 --hold      starts both pairs and keeps them until it is interrupted
python run_all.py 0.5.19 --attach    uses pairs that are held

Faults come last: the late writer goes on for some seconds after its part has ended.
"""

import argparse
import signal
import sys
import threading
import traceback
from pathlib import Path

import decode_limits
import limits
import overhead
import traffic
import transfer_faults
from pair import Pair, check, finish


def main():
    arguments = argparse.ArgumentParser()
    arguments.add_argument("version")
    arguments.add_argument("--requests", type=int, default=1000)
    arguments.add_argument("--only", default="limits,traffic,overhead,faults")
    arguments.add_argument("--hold", action="store_true")
    arguments.add_argument("--attach", action="store_true")
    arguments.add_argument("--no-stock", action="store_true")
    arguments.add_argument("--guard-port", type=int, default=31100)
    arguments.add_argument(
        "--only-stock", action="store_true", help="traffic to the pair without guard"
    )
    arguments.add_argument(
        "--kept",
        type=Path,
        help="answers to traffic: written if it is not there, else compared with",
    )
    arguments.add_argument("--tp", type=int, default=1, help="ranks of each engine")
    arguments.add_argument("--dp", default="1,1", help="data-parallel ranks of prefill, decode: pools of unequal size")
    arguments.add_argument("--dp-attention", action="store_true")
    arguments.add_argument("--model", help="another folder of weights")
    a = arguments.parse_args()
    only = a.only.split(",")
    pools = {"prefill_pool": 2000, "decode_pool": 8000}
    if only == ["decode-limits"]:
        pools = {"prefill_pool": 8000, "decode_pool": 2000}
    shape = {
        "tp": a.tp,
        "dp": tuple(int(n) for n in a.dp.split(",")),
        "dp_attention": a.dp_attention,
        "model": a.model,
        "attach": a.attach,
    }
    guarded = Pair(a.version, True, faults="faults" in only, port=a.guard_port, **shape, **pools)
    stock = Pair(a.version, False, port=a.guard_port + 1000, **shape, **pools)
    if a.no_stock or only == ["faults"]:
        stock = None
    if a.only_stock:
        guarded = None
    with _both(guarded, stock):
        if a.hold:
            print("held", flush=True)
            threading.Event().wait()
        parts = {
            "limits": lambda: limits.run(guarded, stock),
            "decode-limits": lambda: decode_limits.run(guarded, stock),
            "overhead": lambda: overhead.run(guarded, stock),
            "traffic": lambda: traffic.run(
                guarded or stock, stock if guarded else None, a.requests, a.kept
            ),
            "rooms": lambda: transfer_faults.rooms(guarded or stock),
            "faults": lambda: transfer_faults.run(guarded, 1 if a.dp_attention else a.tp),
        }
        for name in only:
            print(f"-- {name}, SGLang {a.version}", flush=True)
            try:
                parts[name]()
            except Exception:
                check(False, f"{name} came to its end", traceback.format_exc())
    finish()


class _both:
    """Two pairs, started side by side."""

    def __init__(self, *pairs):
        self.pairs = [pair for pair in pairs if pair is not None]

    def __enter__(self):
        signal.signal(signal.SIGTERM, lambda *_: sys.exit("ended"))
        faults = []

        def start(pair):
            try:
                pair.__enter__()
            except BaseException as fault:
                faults.append(fault)

        threads = [threading.Thread(target=start, args=(pair,)) for pair in self.pairs]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        if faults:
            self.__exit__()
            raise faults[0]

    def __exit__(self, *_):
        for pair in self.pairs:
            pair.__exit__()


if __name__ == "__main__":
    main()
