"""One verdict for all ranks over a transfer that has failed on any of them.

SGLang's ranks agree on each poll by their own collective: the lowest state wins, and `Failed` is the
lowest. So what one rank refuses in its `poll` has failed on all of them at the same step. What only that
rank knows is told here, once, to the others: why (the client is answered by rank 0), whether its pages
are still read, and whether prefill was told where to write.
"""

from . import decode, source
from .state import Guard, here


def poll_and_all_reduce(original, pollers, gloo_group, *args, **kwargs):
    """`poll_and_all_reduce`: every rank sees the same list, so every rank comes here together."""
    from sglang.srt.disaggregation.base import KVPoll

    polls = original(pollers, gloo_group, *args, **kwargs)
    failed = [at for at, poll in enumerate(polls) if poll == KVPoll.Failed]
    guard = here()
    if failed and guard.ranks.size > 1:
        said = guard.ranks.everyone([_known(guard, pollers[at]) for at in failed])
        for at, *every in zip(failed, *said):
            if _learn(guard, pollers[at], every):
                polls[at] = KVPoll.Transferring
    return polls


def _known(guard: Guard, poller) -> dict:
    room = getattr(poller, "bootstrap_room", None)
    handoff = guard.handoffs.get(room)
    verdict = guard.verdicts.get(room)
    return {
        "verdict": list(verdict[:2]) if verdict is not None else None,
        "busy": source.source_busy(guard, room),
        "unsettled": handoff is not None and handoff.unsettled,
        "told": getattr(poller, "init_time", None) is not None,
    }


def _learn(guard: Guard, poller, every: list[dict]) -> bool:
    """Whether the failure is to be kept back, because some rank's pages are still read."""
    room = getattr(poller, "bootstrap_room", None)
    for verdict in (one["verdict"] for one in every):
        if verdict is not None:
            guard.decide(room, *verdict)
    if guard.role == "decode":
        if getattr(poller, "cofferdam_req", None) is not None and hasattr(poller, "bootstrap_infos"):
            decode._hold_for_proof(guard, poller, any(one["told"] for one in every))
        return False
    if any(one["unsettled"] for one in every) and room in guard.handoffs:
        guard.handoffs[room].unsettled = True
    busy = any(one["busy"] for one in every)
    if busy and not getattr(poller, "cofferdam_held", False):
        poller.cofferdam_held = True
        guard.record.count("sources_held_total")
    return busy
