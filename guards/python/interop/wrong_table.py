"""A block table that is wrong in mid-answer (`faulty.py`): its reader ends with an error and gives no token
of that step, its neighbours are answered as alone."""

from __future__ import annotations

import threading
import time

from client import Pair, Verdict
from groups import tokens
from vllm_pair import PORTS


def main() -> None:
    pair, verdict = Pair(*PORTS["guarded"]), Verdict()
    prompts = {f"n{at}": tokens(300 + at, at) for at in range(4)}
    alone = {}
    for name, prompt in prompts.items():
        alone[name] = pair.d.complete(prompt, "alone", 40, ignore_eos=True)[1]["choices"][0]["text"]
        pair.d.forget()
    before = pair.guard_counts().get("refused_step_total", 0)
    answers: dict[str, tuple[int, str]] = {}

    def ask(name: str, prompt: list[int]) -> None:
        answers[name] = pair.ask(prompt, name, 40, ignore_eos=True)

    work = [*prompts.items(), ("fault-table", tokens(310, 9))]
    threads = [threading.Thread(target=ask, args=item) for item in work]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    time.sleep(1.5)
    refused = pair.guard_counts().get("refused_step_total", 0) - before
    got = answers.pop("fault-table")
    told = got[0] == 500 and "cofferdam-guard: refused: step" in str(got[1])
    verdict.row("a table that is wrong in mid-answer", f"{got} refused_step +{refused:.0f}", told and refused == 1)
    wrong = {name: got for name, got in answers.items() if got != (200, alone[name])}
    verdict.row(f"{len(answers)} neighbours", wrong or "as alone", not wrong)
    pair.d.forget()
    again = pair.ask(tokens(310, 9), "again", 8)
    verdict.row("the same prompt without the fault", again, again[0] == 200)
    verdict.end()


if __name__ == "__main__":
    main()
