"""Faults made on purpose in the transfer: refused, counted, and the neighbours' answers right.

A request asks for its fault by its `rid` (the guard obeys with COFFERDAM_GUARD_FAULTS=1 only).
"""

import json
import random
import threading
import uuid

from pair import check, prompt

# Kind -> reasons that may be given for it.
KINDS = {
    "lost": {"unwritten"},
    "lost-bytes": {"altered"},
    "other": {"foreign"},
    "flip": {"altered"},
    "rank": {"identity"},
}


# A router tries a refused request five times; on a loaded machine that takes its time.
SLOW_S = 240


def rid(kind):
    return f"cofferdam-fault:{kind}:{uuid.uuid4().hex}"


def run(pair, ranks=1):
    """With several ranks each fault is made on the last one only: its rank alone finds it."""
    known = {seed: _neighbour(pair, seed)[1] for seed in range(20, 24)}
    check(
        all(isinstance(ids, list) and len(ids) == 24 for ids in known.values()),
        "neighbours answer alone",
    )
    where = f"@{ranks - 1}" if ranks > 1 else ""
    for kind, reasons in KINDS.items():
        _one(pair, kind + where, reasons, known)
    if pair.dp["prefill"] > 1:
        _another_ranks_room(pair)
    _late(pair, "late" + where)


def _last(pair):
    """The last data-parallel rank of each: there the faults are made."""
    return (pair.dp["prefill"] - 1, pair.dp["decode"] - 1) if pair.several else None


def _neighbour(pair, seed):
    at = (seed % pair.dp["prefill"], seed // 2 % pair.dp["decode"]) if pair.several else None
    return pair.generate(prompt(260 + seed, seed), 24, timeout=SLOW_S, at=at)


def _elsewhere(pair, finder):
    """What the other data-parallel ranks have refused."""
    return sum(pair.refused(role=finder, rank=rank) for rank in range(pair.dp[finder] - 1))


def rooms(pair):
    """What becomes of a request that names no rank of prefill, and of one whose room another rank has too."""
    for odd in (0, 1):
        room, body = random.getrandbits(62) * 2 + odd, pair._body(prompt(300, 81), 8)
        legs = pair.legs(body, room=room)
        for leg in legs.values():
            leg.pop("disagg_prefill_dp_rank", None)
            leg.pop("routed_dp_rank", None)
        found = {}

        def ask(name, leg, found=found):
            found[name] = pair.post("/generate", leg, name, 20)

        threads = [threading.Thread(target=ask, args=one) for one in legs.items()]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        for name, (status, text, _) in sorted(found.items()):
            print(f"     no rank named, room {odd} of 2, {name}: {status} {text[:150]}", flush=True)
    _another_ranks_room(pair)


def _another_ranks_room(pair):
    """Two requests of one room on two ranks of prefill, and decode is told the wrong one: without the guard it
    attends to another's prompt."""
    alone = [pair.generate(prompt(300, seed), 8, timeout=SLOW_S, at=_last(pair))[1] for seed in (79, 80)]
    room, found = random.getrandbits(63), {}

    def other():
        body = pair._body(prompt(300, 79), 8)
        found["other"] = pair.post("/generate", pair.legs(body, (0, 0), room=room)["prefill"], "prefill", SLOW_S)

    before = pair.refused("identity", "prefill", 0)
    thread = threading.Thread(target=other)
    thread.start()
    legs = pair.legs(pair._body(prompt(300, 80), 8), _last(pair), told=0, room=room)
    status, text, seconds = pair.post("/generate", legs["decode"], "decode", SLOW_S)
    thread.join()
    if not pair.guard:
        said = json.loads(text).get("output_ids") if status == 200 else text[:150]
        print(f"     without the guard: {said}; its own answer {alone[1]}, the other's {alone[0]}", flush=True)
        return
    told = status == 500 and "cofferdam-guard: refused: identity" in str(text)
    check(told, "another rank's room: refused", f"{status} {str(text)[:150]} {seconds:.2f} s")
    check(found["other"][0] == 500, "another rank's room: and the other request with it", found["other"][:2])
    check(pair.refused("identity", "prefill", 0) > before, "another rank's room: counted where it was asked for")


def _one(pair, kind, reasons, known):
    finder = "prefill" if kind.startswith("rank") else "decode"
    rank = pair.dp[finder] - 1 if pair.dp[finder] > 1 else None
    before = {reason: pair.refused(reason, finder, rank) for reason in reasons}
    elsewhere, found, at = _elsewhere(pair, finder), {}, _last(pair)

    def neighbour(seed):
        found[seed] = _neighbour(pair, seed)

    threads = [threading.Thread(target=neighbour, args=(seed,)) for seed in known]
    for thread in threads[:2]:
        thread.start()
    status, text, seconds = pair.generate(prompt(300, 77), 8, rid=rid(kind), timeout=SLOW_S, at=at)
    for thread in threads[2:]:
        thread.start()
    for thread in threads:
        thread.join()
    told = status == 500 and "cofferdam-guard: refused" in str(text)
    check(told, f"{kind}: refused", f"{status} {str(text)[:150]} {seconds:.2f} s")
    counted = any(pair.refused(r, finder, rank) > before[r] for r in reasons)
    where = "" if rank is None else f" on data-parallel rank {rank} of {finder} alone"
    counted = counted and _elsewhere(pair, finder) == elsewhere
    check(counted, f"{kind}: counted as {'/'.join(reasons)}{where}")
    right = all(found[seed][:2] == (200, ids) for seed, ids in known.items())
    check(right, f"{kind}: four neighbours' answers are right", "" if right else found)
    status, ids, _ = pair.generate(prompt(300, 77), 8, timeout=SLOW_S, at=at)
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
    alone, elsewhere = _together(pair, seeds), _elsewhere(pair, "decode")
    check(all(a[0] == 200 for a in alone.values()), "late: readers alone are answered")
    status, ids, _ = pair.generate(prompt(1900, 78), 4, rid=rid(kind), timeout=SLOW_S, at=_last(pair))
    check(status == 200, "late: the request itself is answered", ids)
    before, given, refused = pair.refused(), 0, []
    for _ in range(4):
        for seed, (status, said) in _together(pair, seeds).items():
            if status == 200:
                given += 1
                check.wrong = getattr(check, "wrong", 0) + (said != alone[seed][1])
            else:
                refused.append(said)
    here_alone = _elsewhere(pair, "decode") == elsewhere
    check(pair.refused() > before and here_alone, "late: readers of the page are refused, and nobody elsewhere")
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
        found[seed] = pair.generate(prompt(1800, seed), 16, timeout=SLOW_S, at=_last(pair))[:2]

    threads = [threading.Thread(target=one, args=(seed,)) for seed in seeds]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return found
