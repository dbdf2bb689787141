"""A pair whose decode guesses tokens from the prompt (n-gram): drafts are made and rejected, answers are those
of decode alone, and a handoff that is not what was computed is refused.

    vllm_pair.py start guarded --faulty --more='--speculative-config {\\"method\\":\\"ngram\\",…}'; ngram.py"""

from __future__ import annotations

from client import Pair, Verdict
from groups import tokens
from vllm_pair import PORTS


def main() -> None:
    pair, verdict = Pair(*PORTS["guarded"]), Verdict()
    before = pair.guard_counts().get("verified_total", 0)
    for length in (60, 300):
        prompt = (tokens(length // 4, length) * 5)[:length]
        got = pair.ask(prompt, f"d{length}", 16, ignore_eos=True)
        pair.d.forget()
        alone = pair.d.complete(prompt, f"a{length}", 16, ignore_eos=True)[1]["choices"][0]["text"]
        pair.d.forget()
        verdict.row(f"{length} tokens, 16 new: as alone", got[0], got == (200, alone))
    counts = pair.guard_counts()
    right = counts.get("verified_total", 0) - before == 2 and not counts.get("refusals_total")
    verdict.row("verified, none refused", counts, right)
    spec = {
        name: value
        for name, value in pair.d.metrics().items()
        if name.startswith("vllm:spec_decode_num") and name.endswith("tokens_total")
    }
    drafted, taken = (spec.get(f"vllm:spec_decode_num_{what}_tokens_total", 0) for what in ("draft", "accepted"))
    verdict.row("drafts were made and rejected", f"{drafted:.0f} drafted, {taken:.0f} taken", drafted > taken)
    got = pair.ask(tokens(300, 4), "fault-flipped", 8)
    verdict.row("one byte flipped", got, got[0] == 500)
    verdict.end()


if __name__ == "__main__":
    main()
