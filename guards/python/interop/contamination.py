"""Every way in which stock vLLM 0.32 was seen to answer one request with another one's content, tried
on a guarded pair. Bodies are compared, not only statuses.

    python contamination.py [--policy fail|recompute] [--pair guarded|stock]

With --pair stock it shows what happens without the guard (and is expected to find wrong answers)."""

from __future__ import annotations

import argparse
import copy
import time
from typing import Any

from client import Pair, Verdict, capital
from vllm_pair import PORTS

A, B, C = capital("Paris"), capital("Tokyo"), capital("Cairo")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--policy", default="fail", choices=["fail", "recompute"])
    parser.add_argument("--pair", default="guarded", choices=list(PORTS))
    parser.add_argument("--decode-port", type=int, help="another decode instance than the pair's")
    args = parser.parse_args()
    prefill, decode = PORTS[args.pair]
    pair, verdict = Pair(prefill, args.decode_port or decode), Verdict()
    alone = {prompt: pair.d.complete(prompt, "alone", 6)[1]["choices"][0]["text"] for prompt in (A, B)}
    print(f"alone: A {alone[A]!r}, B {alone[B]!r}")
    if alone[A] == alone[B]:
        raise SystemExit("the model answers both prompts alike: nothing can be seen with it")

    def counted(name: str, work) -> tuple[tuple[int, str], str]:
        """What was answered, and which of the guard's counters moved."""
        pair.d.forget()
        before = pair.guard_counts()
        answer = work()
        time.sleep(1.5)  # statistics travel with the engine's next steps
        after = pair.guard_counts()
        moved = {key: after[key] - before.get(key, 0) for key in after if after[key] != before.get(key)}
        return answer, ", ".join(f"{key} +{value:.0f}" for key, value in sorted(moved.items()))

    def right(name: str, prompt: str, work) -> None:
        answer, moved = counted(name, work)
        ok = answer == (200, alone[prompt]) and (args.pair == "stock" or "verified_total +1" in moved)
        verdict.row(name, f"{answer} [{moved}]", ok)

    def refused(name: str, prompt: str, counter: str, work) -> None:
        answer, moved = counted(name, work)
        if args.policy == "fail":
            ok = answer == (500, "Internal server error")
        else:
            ok = answer == (200, alone[prompt])
        verdict.row(name, f"{answer} [{moved}]", ok and f"{counter} +1" in moved)

    refs: dict[str, Any] = {}

    def ordinary() -> tuple[int, str]:
        # P is asked here, not before: emptying D's prefix cache may take as long as the lease.
        refs.update(pair.prefill(A, "ordinary"))
        return pair.decode(A, refs, "a1")

    right("A with A's references", A, ordinary)
    refused("A with A's consumed references", A, "refused_reuse_total", lambda: pair.decode(A, refs, "a2"))
    refused("B with A's consumed references", B, "refused_lineage_total", lambda: pair.decode(B, refs, "b1"))

    wrong = copy.deepcopy(pair.prefill(A, "wrong"))
    wrong["remote_block_ids"] = [[50 + i for i in range(len(wrong["remote_block_ids"][0]))]]
    refused("A with wrong but in-range blocks", A, "refused_lineage_total", lambda: pair.decode(A, wrong, "a3"))
    wrong["remote_block_ids"] = [[5000 + i for i in range(len(wrong["remote_block_ids"][0]))]]
    refused("A with out-of-range blocks", A, "refused_lineage_total", lambda: pair.decode(A, wrong, "a4"))

    bare = copy.deepcopy(pair.prefill(A, "bare"))
    bare.pop("cofferdam_guard", None)
    refused("A without a guard's reference", A, "refused_unguarded_total", lambda: pair.decode(A, bare, "a5"))

    salted = pair.prefill(A, "salted", cache_salt="tenant-1")
    refused(
        "A of tenant 2 with A's references of tenant 1",
        A,
        "refused_lineage_total",
        lambda: pair.decode(A, salted, "a6", cache_salt="tenant-2"),
    )
    right(
        "A of tenant 1 with its own references",
        A,
        lambda: pair.ask(A, "a7", cache_salt="tenant-1"),
    )
    stale_after_reuse(pair, refused)
    right("B with B's references", B, lambda: pair.ask(B, "b2"))
    verdict.end()


def stale_after_reuse(pair: Pair, refused) -> None:
    """The lease of A's references ends, P gives A's block to another tenant's prompt."""
    refs = pair.prefill(A, "stale")
    block = refs["remote_block_ids"][0][0]
    end = time.monotonic() + 200
    reused = False
    while not reused and time.monotonic() < end:
        pair.p.forget()
        for number in range(40):
            victim = pair.prefill(f"{number} {C} " * 20, f"victim{number}")
            reused = block in victim["remote_block_ids"][0]
            if reused:
                break
    if not reused:
        raise SystemExit("P did not reuse A's block: start the pair with a shorter --lease and fewer blocks")
    refused("A's references after P gave its block away", A, "refused_lease_total", lambda: pair.decode(A, refs, "a8"))


if __name__ == "__main__":
    main()
