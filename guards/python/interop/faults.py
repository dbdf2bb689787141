"""Faults made on purpose in the transfer of a guarded pair started with --faulty: each is refused and
counted, and the neighbours that are served at the same time get their right answers.

    python faults.py [--rank 1] [unwritten] [foreign] [flipped] [late]    # default: all, on all ranks"""

from __future__ import annotations

import sys
import threading
import time

from client import Pair, Verdict
from vllm_pair import PORTS

FAULTS = ("unwritten", "foreign", "flipped", "late")  # of faulty.py, which needs vLLM to be read


def document(number: int) -> str:
    facts = " ".join(f"Document {number}, fact {i}: the code is {number * 7 + i}." for i in range(8))
    return facts + f" The secret code of document {number} is"


def main() -> None:
    pair, verdict = Pair(*PORTS["guarded"]), Verdict()
    prompts = [document(number) for number in range(4)]
    alone = [pair.d.complete(p, "alone", 12)[1]["choices"][0]["text"] for p in prompts]
    victim = document(77)
    words = sys.argv[1:]
    where, ranks = "", 1
    if words[:1] == ["--rank"]:
        # Both ranks of two verify each neighbour; one of them refuses the victim.
        where, ranks, words = f"@{words[1]}", 2, words[2:]
    for fault in words or FAULTS:
        pair.d.forget()
        before = pair.guard_counts()
        answers: dict[str, tuple[int, str]] = {}

        def ask(key: str, prompt: str, rid: str) -> None:
            answers[key] = pair.ask(prompt, rid, 12)

        work = [("victim", victim, f"fault-{fault}{where}")]
        work[:0] = [(f"n{i}", prompt, f"neighbour{i}-{fault}") for i, prompt in enumerate(prompts)]
        threads = [threading.Thread(target=ask, args=item) for item in work]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        time.sleep(1.5)
        after = pair.guard_counts()
        refused = after.get("refused_content_total", 0) - before.get("refused_content_total", 0)
        verified = after.get("verified_total", 0) - before.get("verified_total", 0)
        got = answers["victim"]
        told = got[0] == 500 and got[1].startswith("cofferdam-guard: refused")
        # With one bad rank of two the other has verified its own share of the victim.
        right = told and refused == 1 and verified == len(prompts) * ranks + (ranks - 1)
        verdict.row(f"{fault}: the request", f"{got}, refused_content +{refused:.0f}", right)
        neighbours = [answers[f"n{i}"] for i in range(len(prompts))]
        same = neighbours == [(200, text) for text in alone]
        verdict.row(f"{fault}: {len(prompts)} neighbours", f"verified +{verified:.0f}", same)
        pair.d.forget()
        again = pair.ask(victim, f"again-{fault}", 12)
        text = pair.d.complete(victim, "alone", 12)[1]["choices"][0]["text"]
        verdict.row(f"{fault}: the same prompt again, without a fault", again, again == (200, text))
    verdict.end()


if __name__ == "__main__":
    main()
