"""A pair whose model has several groups of KV caches (sliding windows): ordinary handoffs of every length
around a block and a window, and a fault in each group on its own.

    python groups.py [--window 128] [--block 32]"""

from __future__ import annotations

import argparse
import time

from client import Pair, Verdict
from vllm_pair import PORTS


def tokens(count: int, seed: int) -> list[int]:
    return [100 + (i * 7919 + seed * 104729) % 40000 for i in range(count)]


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--window", type=int, default=128)
    parser.add_argument("--block", type=int, default=32)
    args = parser.parse_args()
    pair, verdict = Pair(*PORTS["guarded"]), Verdict()
    edge = args.window + args.block - 1
    lengths = [7, args.block, args.window, args.window + 1, 400, 401, *(edge + 8 * args.block + d for d in (-1, 0, 1))]
    for length in lengths:
        prompt = tokens(length, length)
        refs = pair.prefill(prompt, f"g{length}")
        before = pair.guard_counts()
        got = pair.decode(prompt, refs, f"g{length}", 12)
        pair.d.forget()
        alone = pair.d.complete(prompt, f"alone{length}", 12)[1]["choices"][0]["text"]
        rows = [sum(1 for block in row if block) for row in refs["remote_block_ids"]]
        after = pair.guard_counts()
        counted = {n: after[n] - before.get(n, 0) for n in after if after[n] != before.get(n, 0)}
        # Prefill gives back, at these lengths, a block that decode reads once more.
        short = (length - args.window + 1) % args.block == 0 and length > args.window
        told = "window" in str(got[1]) or "refused" in str(got[1])
        right = (got[0] == 500 and told) if short else got == (200, alone)
        verdict.row(f"{length} tokens, blocks a group {rows}", f"{got} {counted}", right)
        pair.d.forget()
    for group in range(len(refs["remote_block_ids"])):
        before = pair.guard_counts().get("refused_content_total", 0)
        got = pair.ask(tokens(400, 77), f"fault-flipped-group{group}", 12)
        time.sleep(1.5)
        refused = pair.guard_counts().get("refused_content_total", 0) - before
        verdict.row(f"one byte flipped in group {group}", f"{got} +{refused:.0f}", got[0] == 500 and refused == 1)
        pair.d.forget()
    verdict.end()


if __name__ == "__main__":
    main()
