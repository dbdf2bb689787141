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


def rid(kind):
    return f"cofferdam-fault:{kind}:{uuid.uuid4().hex}"


def run(pair):
    known = {seed: pair.generate(prompt(260 + seed, seed), 24)[1] for seed in range(20, 24)}
    check(
        all(isinstance(ids, list) and len(ids) == 24 for ids in known.values()),
        "neighbours answer alone",
    )
    for kind, reasons in KINDS.items():
        _one(pair, kind, reasons, known)
    _late(pair, known)


def _one(pair, kind, reasons, known):
    before = {reason: pair.refused(reason) for reason in reasons}
    found = {}

    def neighbour(seed):
        found[seed] = pair.generate(prompt(260 + seed, seed), 24)

    threads = [threading.Thread(target=neighbour, args=(seed,)) for seed in known]
    for thread in threads[:2]:
        thread.start()
    status, text, seconds = pair.generate(prompt(300, 77), 8, rid=rid(kind))
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
    status, ids, _ = pair.generate(prompt(300, 77), 8)
    check(
        status == 200 and len(ids) == 8,
        f"{kind}: the same prompt without the fault is answered",
        ids,
    )


def _late(pair, known):
    """A finished transfer writes its page again and again, while others own it."""
    alone = {seed: pair.generate(prompt(1800, seed), 200, timeout=120)[1] for seed in (31, 32, 33)}
    status, ids, _ = pair.generate(prompt(300, 78), 4, rid=rid("late"))
    check(status == 200, "late: the request itself is answered", ids)
    before, found, lock = pair.refused(), [], threading.Lock()

    def other(seed):
        answer = pair.generate(prompt(1800, seed), 200, timeout=120)
        with lock:
            found.append((seed, answer[0], answer[1]))

    for _ in range(5):
        threads = [threading.Thread(target=other, args=(seed,)) for seed in alone]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        if pair.refused("step") and pair.refused("foreign"):
            break
    refused = [text for _, status, text in found if status != 200]
    wrong = [seed for seed, status, ids in found if status == 200 and ids != alone[seed]]
    check(
        pair.refused() > before and refused,
        "late: readers of the reused page are refused",
        f"{len(refused)} of {len(found)}; {str(refused[:1])[:150]}",
    )
    check(all("cofferdam-guard: refused" in str(text) for text in refused), "late: and told why")
    check(not wrong, "late: every answer that was given is right", wrong)
    reasons = {r: pair.refused(r) for r in ("step", "foreign", "altered", "torn")}
    print("     late: reasons", reasons, flush=True)
