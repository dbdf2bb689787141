"""A pair whose model has several groups of KV caches (sliding windows): ordinary handoffs of every length
around a block and a window, and a fault in each group on its own.

    python groups.py [--window 128] [--block 32]
    python groups.py --window 0 --pair stock --save s.json    # no windows; nothing is judged, answers are kept
    python groups.py --window 0 --against s.json

An answer is compared with that of decode alone; with `--against`, with another pair's. vLLM's MLA on a CPU computes a
token otherwise as the first after a prompt than as a later one, so there decode alone says nothing of a handoff."""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path

from client import Pair, Verdict
from vllm_pair import PORTS


def tokens(count: int, seed: int) -> list[int]:
    return [100 + (i * 7919 + seed * 104729) % 40000 for i in range(count)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pair", default="guarded", choices=list(PORTS))
    parser.add_argument("--save")
    parser.add_argument("--against")
    parser.add_argument("--window", type=int, default=128)
    parser.add_argument("--block", type=int, default=32)
    args = parser.parse_args()
    pair, verdict = Pair(*PORTS[args.pair]), Verdict()
    other, kept = json.loads(Path(args.against).read_text()) if args.against else {}, {}
    edge = args.window + args.block - 1
    edges = [args.window, args.window + 1, *(edge + 8 * args.block + d for d in (-1, 0, 1))]
    lengths = [7, args.block, 400, 401, *(edges if args.window else (args.block + 1, 1000))]
    for length in lengths:
        prompt = tokens(length, length)
        refs = pair.prefill(prompt, f"g{length}")
        before = pair.guard_counts()
        got = pair.decode(prompt, refs, f"g{length}", 12)
        pair.d.forget()
        kept[str(length)] = got[1]
        alone = pair.d.complete(prompt, f"alone{length}", 12)[1]["choices"][0]["text"]
        alone = other.get(str(length), alone)
        rows = [sum(1 for block in row if block) for row in refs["remote_block_ids"]]
        after = pair.guard_counts()
        counted = {n: after[n] - before.get(n, 0) for n in after if after[n] != before.get(n, 0)}
        # Prefill gives back, at these lengths, a block that decode reads once more.
        short = 0 < args.window < length and (length - args.window + 1) % args.block == 0
        told = "window" in str(got[1]) or "refused" in str(got[1])
        right = (got[0] == 500 and told) if short else got == (200, alone)
        pair.d.forget()
        if not args.save:
            verdict.row(f"{length} tokens, blocks a group {rows}", f"{got[0]} {got[1][-60:]!r} {counted}", right)
    if args.save:
        Path(args.save).write_text(json.dumps(kept))
        return
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
