"""Prompts around prefill's limit, prefill pool 2,000 and decode pool 8,000, through the router.

    python limits.py 0.5.19            with the guard
    python limits.py 0.5.19 --stock    without: shows what happens then (asserts nothing)

The longest prompt that prefill takes is pool - 7 = 1,993. Its answer must be the one that the same
engine gives without a guard; 1,994 and 2,500 must be the original 400, soon, and nothing else.
"""

import argparse
import json

from pair import Pair, check, finish


def prompt(n, seed=0):
    return [3000 + (i * 7919 + seed * 104729) % 40000 for i in range(n)]


def main():
    arguments = argparse.ArgumentParser()
    arguments.add_argument("version")
    arguments.add_argument("--stock", action="store_true")
    arguments.add_argument("--answers", help="file with stock's answers: written by --stock, else compared")
    a = arguments.parse_args()
    with Pair(a.version, not a.stock, prefill_pool=2000, decode_pool=8000) as pair:
        # Decode's pool first gets somebody's text.
        for seed in range(1, 5):
            pair.generate(prompt(1900, seed), 4)
        answers = {}
        for n in (100, 1993):
            status, ids, seconds = pair.generate(prompt(n), 8, timeout=120)
            answers[str(n)] = ids
            check(a.stock or status == 200 and any(ids), f"{n} tokens: an answer", f"{status} {ids} {seconds:.2f} s")
        if a.answers and a.stock:
            json.dump(answers, open(a.answers, "w"))
        elif a.answers:
            check(answers == json.load(open(a.answers)), "the same answers as without the guard")
        for n in (1994, 2000, 2500):
            status, text, seconds = pair.generate(prompt(n), 8, timeout=15 if a.stock else 30)
            facts = f"{status} {str(text)[:160]} {seconds:.3f} s"
            if a.stock:
                print(f"stock, {n} tokens: {facts}", flush=True)
                continue
            right = f"Input length ({n} tokens) exceeds the maximum allowed length (1994 tokens)"
            check(status == 400 and right in str(text), f"{n} tokens: the original 400", facts)
            check(seconds < 1.0, f"{n} tokens: in under a second", f"{seconds:.3f} s")
        if not a.stock:
            chat(pair)
            status, ids, _ = pair.generate(prompt(100), 8)
            check(ids == answers["100"], "a neighbour afterwards is answered as before", ids)
            check(pair.metric("prefill", "cofferdam_guard_rejected_total") >= 3, "rejections are counted")
            check(pair.metric("decode", "cofferdam_guard_refused_total") == 0, "nothing was refused")
    finish()


def chat(pair):
    """OpenAI's endpoint, plain and streamed."""
    body = {"model": "x", "max_tokens": 8, "temperature": 0,
            "messages": [{"role": "user", "content": " the" * 2500}]}
    status, text, seconds = pair.post("/v1/chat/completions", body)
    check(status == 400 and "exceeds the maximum allowed length" in text, "chat, over-long: 400",
          f"{status} {text[:140]} {seconds:.3f} s")
    status, text, seconds = pair.post("/v1/chat/completions", {**body, "stream": True})
    check("exceeds the maximum allowed length" in text and '"content":"' not in text.replace('"content":""', ""),
          "chat, over-long, streamed: the error and no text", f"{status} {text[:140]!r} {seconds:.3f} s")


if __name__ == "__main__":
    main()
