"""Ordinary traffic: mixed lengths, concurrency 8, clients that leave, a few over-long prompts.

Answers must be those of the same engine without the guard (greedy), with no false alarm, and
nothing may be left behind: pages, memory, threads.
"""

import http.client
import json
import random
import threading
import time

from pair import check, prompt

LEAVES_EVERY = 12
OVERLONG_EVERY = 50


def plan(count, seed=5):
    """(number, prompt tokens, new tokens, what): the same list for every run."""
    dice = random.Random(seed)
    for i in range(count):
        length = dice.choice((1, 3, 17, 64, 200, dice.randint(1, 700), dice.randint(1, 1993)))
        what = (
            "leaves"
            if i % LEAVES_EVERY == 7
            else "overlong"
            if i % OVERLONG_EVERY == 11
            else "asks"
        )
        yield i, 2100 if what == "overlong" else length, dice.randint(1, 24), what


def drive(pair, count, concurrency=8):
    """Sends the plan; gives number -> (status, answer)."""
    todo, answers, lock = list(plan(count)), {}, threading.Lock()

    def worker():
        while True:
            with lock:
                if not todo:
                    return
                i, length, new, what = todo.pop(0)
            if what == "overlong" and not pair.guard:
                continue  # 0.5.23 would answer after five minutes; `limits.py` shows it
            if what == "leaves":
                _leave_early(pair, length, i)
                continue
            status, text, _ = pair.generate(prompt(length, i), new, timeout=240)
            with lock:
                answers[i] = (what, status, text)

    threads = [threading.Thread(target=worker) for _ in range(concurrency)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return answers


def _leave_early(pair, length, i):
    """A client that asks for a long answer and goes: at once, soon, or after the first tokens."""
    body = {
        "input_ids": prompt(length, i),
        "stream": True,
        "sampling_params": {"max_new_tokens": 48, "temperature": 0, "ignore_eos": True},
    }
    asked = pair.legs(body, pair._turn()) if pair.direct else {"router": body}
    open_ones = {
        name: http.client.HTTPConnection("127.0.0.1", pair.ports[name], timeout=60) for name in asked
    }
    try:
        for name, connection in open_ones.items():
            connection.request(
                "POST", "/generate", json.dumps(asked[name]), {"Content-Type": "application/json"}
            )
        if i % 3 == 1:
            time.sleep(0.05)
        elif i % 3 == 2:
            list(open_ones.values())[-1].getresponse().read(64)
    except OSError:
        pass
    finally:
        for connection in open_ones.values():
            connection.close()


def _read(kept):
    """Answers of an earlier run of the same plan, and how much memory each engine took for it."""
    found = json.loads(kept.read_text())
    return {int(number): answer for number, answer in found["answers"].items()}, found["grown_mb"]


def _reference(stock, count):
    """Stock's answers. What it left unanswered (seen with clients that leave beside it) is asked
    again by itself: the question here is whether answers are the same."""
    reference = drive(stock, count)
    for i, length, new, what in plan(count):
        if what == "asks" and reference[i][1] != 200:
            print(f"     without the guard, request {i}: {reference[i][1:]}", flush=True)
            status, text, _ = stock.generate(prompt(length, i), new, timeout=240)
            reference[i] = (what, status, text)
    return reference


def run(pair, stock, count, kept=None):
    warm = drive(pair, 24)
    del warm
    before, alarms, began = pair.residue(), pair.refused(), time.monotonic()
    answers = drive(pair, count)
    seconds = time.monotonic() - began
    after = pair.residue()["processes"]
    grown = {role: after[role]["rss_mb"] - before["processes"][role]["rss_mb"] for role in after}
    asked = {i: a for i, a in answers.items() if a[0] == "asks"}
    check(
        all(a[1] == 200 for a in asked.values()) and len(asked) > count * 0.8,
        f"{len(asked)} requests answered",
        f"{seconds:.0f} s",
    )
    others_grew = {}
    if kept is not None and not kept.exists():
        kept.write_text(json.dumps({"answers": answers, "grown_mb": grown}))
        print(f"     answers kept in {kept.name}", flush=True)
    elif stock is not None or kept is not None:
        reference, others_grew = (_reference(stock, count), {}) if stock is not None else _read(kept)
        wrong = {i: (a, reference[i]) for i, a in asked.items() if list(a) != list(reference[i])}
        check(not wrong, f"{len(asked)} answers equal the others", list(wrong.items())[:2])
    if not pair.guard:
        print(f"     before {before['processes']}, after {after}", flush=True)
        return
    rejected = [a for a in answers.values() if a[0] == "overlong"]
    check(
        all(a[1] == 400 and "exceeds the maximum" in str(a[2]) for a in rejected),
        f"{len(rejected)} over-long prompts: 400",
    )
    check(
        pair.refused() == alarms,
        "no false alarm",
        f"{count} requests, {seconds:.0f} s, with clients that leave",
    )
    after = pair.settle()
    check(after["used"] == {"prefill": 0, "decode": 0}, "no page is left in use", after["used"])
    check(
        pair.metric("decode", "cofferdam_guard_quarantined_pages") == 0, "nothing is in quarantine"
    )
    # Stock has had the same requests: SGLang itself grows with its first long prompts.
    others = stock.residue()["processes"] if stock is not None else before["processes"]
    for role in ("prefill", "decode"):
        b, a = before["processes"][role], after["processes"][role]
        check(
            a["threads"] <= b["threads"] + 1,
            f"{role}: threads",
            f"{b['threads']} -> {a['threads']}",
        )
        other = others[role]["rss_mb"] + others_grew.get(role, 0)
        check(
            a["rss_mb"] <= max(b["rss_mb"], other) + 64,
            f"{role}: memory",
            f"{b['rss_mb']} -> {a['rss_mb']} MB, without the guard {other} MB",
        )
        check(a["alive"], f"{role}: is alive")
