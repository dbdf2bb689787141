"""Faults made on purpose in the transfer: refused, counted, and the neighbours' answers right.

A request asks for its fault by its `rid` (the guard obeys with COFFERDAM_GUARD_FAULTS=1 only).
"""

import threading
import uuid

from pair import check, prompt

# Kind -> reasons that may be given for it.
KINDS = {
    "lost": {"unwritten"},
    "lost-bytes": {"altered"},
    "other": {"foreign"},
    "flip": {"altered"},
}


# A router tries a refused request five times; on a loaded machine that takes its time.
SLOW_S = 240


def rid(kind):
    return f"cofferdam-fault:{kind}:{uuid.uuid4().hex}"


def run(pair, ranks=1):
    """With several ranks each fault is made on the last one only: its rank alone finds it."""
    known = {
        seed: pair.generate(prompt(260 + seed, seed), 24, timeout=SLOW_S)[1]
        for seed in range(20, 24)
    }
    check(
        all(isinstance(ids, list) and len(ids) == 24 for ids in known.values()),
        "neighbours answer alone",
    )
    where = f"@{ranks - 1}" if ranks > 1 else ""
    for kind, reasons in KINDS.items():
        _one(pair, kind + where, reasons, known)
    _late(pair, "late" + where)


def _one(pair, kind, reasons, known):
    before = {reason: pair.refused(reason) for reason in reasons}
    found = {}

    def neighbour(seed):
        found[seed] = pair.generate(prompt(260 + seed, seed), 24, timeout=SLOW_S)

    threads = [threading.Thread(target=neighbour, args=(seed,)) for seed in known]
    for thread in threads[:2]:
        thread.start()
    status, text, seconds = pair.generate(prompt(300, 77), 8, rid=rid(kind), timeout=SLOW_S)
    for thread in threads[2:]:
        thread.start()
    for thread in threads:
        thread.join()
    told = status == 500 and "cofferdam-guard: refused" in str(text)
    check(told, f"{kind}: refused", f"{status} {str(text)[:150]} {seconds:.2f} s")
    check(
        any(pair.refused(r) > before[r] for r in reasons), f"{kind}: counted as {'/'.join(reasons)}"
    )
    right = all(found[seed][:2] == (200, ids) for seed, ids in known.items())
    check(right, f"{kind}: four neighbours' answers are right", "" if right else found)
    status, ids, _ = pair.generate(prompt(300, 77), 8, timeout=SLOW_S)
    check(
        status == 200 and len(ids) == 8,
        f"{kind}: the same prompt without the fault is answered",
        ids,
    )


def _late(pair, kind):
    """A finished transfer writes a page and its old tag again and again, while others own it. A
    router that tries again after a refusal gives the client the right answer all the same."""
    seeds = (31, 32, 33, 34)
    # Before and after, so many pages are asked for that the allocator comes round to all of them.
    alone = _together(pair, seeds)
    check(all(a[0] == 200 for a in alone.values()), "late: readers alone are answered")
    status, ids, _ = pair.generate(prompt(1900, 78), 4, rid=rid(kind), timeout=SLOW_S)
    check(status == 200, "late: the request itself is answered", ids)
    before, given, refused = pair.refused(), 0, []
    for _ in range(4):
        for seed, (status, said) in _together(pair, seeds).items():
            if status == 200:
                given += 1
                check.wrong = getattr(check, "wrong", 0) + (said != alone[seed][1])
            else:
                refused.append(said)
    check(pair.refused() > before, "late: readers of the page are refused")
    check(
        all("cofferdam-guard: refused" in text for text in refused),
        "late: and told why",
        refused[:1],
    )
    check(given and not check.wrong, f"late: {given} answers that were given are right")
    reasons = {r: pair.refused(r) for r in ("step", "foreign", "altered", "torn")}
    print("     refused so far by reason:", reasons, flush=True)


def _together(pair, seeds):
    """(status, answer) of long prompts sent at once."""
    found = {}

    def one(seed):
        found[seed] = pair.generate(prompt(1800, seed), 16, timeout=SLOW_S)[:2]

    threads = [threading.Thread(target=one, args=(seed,)) for seed in seeds]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return found
