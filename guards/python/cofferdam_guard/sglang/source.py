"""Until when prefill keeps the pages that it sends.

SGLang frees a failed request's pages at once, also while a transfer reads them: whoever gets
them next is then sent to somebody else's decode. Here a failure is told to the scheduler when
the last write that is queued or running has ended. A write that ended without saying whether it
will still happen proves nothing, ever: its pages stay, prefill answers no question about it, its
client is answered.
"""

import threading
import time
from http import HTTPStatus
from types import SimpleNamespace

from .. import causes
from . import prefill
from .state import Guard, Handoff, here

_NO_CODE = SimpleNamespace(co_names=())


def counting_queue(base):
    """A transfer queue that knows which chunks are not finished: a worker that comes back for the
    next one has finished the last."""

    class CountingQueue(base):
        cofferdam = True

        def put(self, item):
            if item is not None:
                guard = here()
                with guard.lock:
                    guard.outstanding[item.room] = guard.outstanding.get(item.room, 0) + 1
            super().put(item)

        def get(self):
            guard = here()
            done, guard.local.chunk = getattr(guard.local, "chunk", None), None
            if done is not None:
                with guard.lock:
                    left = guard.outstanding.get(done.room, 1) - 1
                    if left > 0:
                        guard.outstanding[done.room] = left
                    else:
                        guard.outstanding.pop(done.room, None)
            _ensure_staging(guard)
            guard.local.chunk = super().get()
            return guard.local.chunk

    return CountingQueue


def _ensure_staging(guard: Guard) -> None:
    """Each worker has its own rows; they are registered before the first chunk needs them."""
    from . import install

    if threading.get_ident() not in guard.staging:
        install.register_staging(guard)


def source_busy(guard: Guard, room: int) -> bool:
    """Whether a write may still read this room's pages."""
    handoff = guard.handoffs.get(room)
    return guard.outstanding.get(room, 0) > 0 or (handoff is not None and handoff.unsettled)


def _busy_anywhere(room: int) -> bool:
    """The same on any rank: what one rank must keep, all keep. Called by all of them at the same step."""
    guard = here()
    return bool(guard.ranks.highest([int(source_busy(guard, room))])[0])


def sender_poll(original, self):
    """`poll` of the sender: what decode reserved is compared with what will be sent as soon as it is
    known, so that the ranks learn of a refusal together. And a failure is told when no write reads the
    pages any more, for the engine frees them when it hears of it. With several ranks that is `agree`'s to
    decide: a rank that kept its failure to itself would let another one, whose write is done, wait for ever."""
    from sglang.srt.disaggregation.base import KVPoll

    status = original(self)
    guard = here()
    if status == KVPoll.WaitingForInput and not prefill.may_send(guard, self):
        status = KVPoll.Failed
    if status == KVPoll.Failed and guard.ranks.size == 1 and source_busy(guard, self.bootstrap_room):
        if not getattr(self, "cofferdam_held", False):
            self.cofferdam_held = True
            guard.record.count("sources_held_total")
        return KVPoll.Transferring
    return status


def process_pending_chunked_abort(original, self):
    """`Scheduler.process_pending_chunked_abort` frees at once; it has to wait like the others."""
    req = self._pending_chunked_abort_req
    sender = getattr(req, "disagg_kv_sender", None)
    if req is not None and self.chunked_req is req and sender is not None:
        if _busy_anywhere(req.bootstrap_room):
            sender.abort()
            return None
    return original(self)


def retire_aborted_prefill_result(original, self, req):
    """`_retire_aborted_prefill_result` (0.5.23) frees at once; with writes under way the request
    takes the way of one that failed in flight instead."""
    sender = req.disagg_kv_sender
    if sender is not None and _busy_anywhere(req.bootstrap_room):
        sender.abort()
        # SGLang drops it here. In no queue, it would be looked for as lost memory when nothing else is left to do.
        if req not in self.disagg_prefill_inflight_queue:
            self.disagg_prefill_inflight_queue.append(req)
        return False
    return original(self, req)


def sender_clear(original, self):
    """`clear` of the sender. To 0.5.20 it forgets here whom it owes the proof that writing has ended;
    later it asks itself whether the proof may be given."""
    guard = here()
    manager, room = self.kv_mgr, self.bootstrap_room
    owed = getattr(manager, "_deferred_ack_targets", {}).get(room)
    forgets = "_maybe_ack_drained_abort" not in getattr(original, "__code__", _NO_CODE).co_names
    original(self)
    if forgets and owed is not None and guard.outstanding.get(room, 0) > 0:
        manager._deferred_ack_targets.setdefault(room, owed)
    with guard.lock:
        guard.asked.pop(room, None)
    handoff = guard.handoffs.get(room)
    if handoff is not None and not handoff.unsettled:
        guard.handoffs.pop(room, None)


def send_abort_ack_by_address(original, self, decode_ip, decode_port, room):
    """`_send_abort_ack`: nothing is proven about a write that ended without saying so."""
    if _unproven(room):
        return None
    return original(self, decode_ip, decode_port, room)


def send_abort_ack_by_target(original, self, room, target):
    """The same, as later versions call it."""
    if _unproven(room):
        return None
    return original(self, room, target)


def _unproven(room: int) -> bool:
    handoff = here().handoffs.get(room)
    return handoff is not None and handoff.unsettled


def tick(original, self, *args, **kwargs):
    """`process_disagg_prefill_inflight_queue`, once a loop: answers what is held, sweeps."""
    guard = here()
    held = [h for h in list(guard.handoffs.values()) if h.unsettled]
    if held:
        _answer_unsettled(guard, self, held)
    for room in guard.sweep():
        _forget_orphan(self.disagg_prefill_bootstrap_queue.kv_manager, room)
    while guard.orphans and time.monotonic() - guard.orphans[0][1] > 2.0:
        room = guard.orphans.popleft()[0]
        if room not in guard.handoffs:
            _forget_orphan(self.disagg_prefill_bootstrap_queue.kv_manager, room)
    return original(self, *args, **kwargs)


def _answer_unsettled(guard: Guard, scheduler, held: list[Handoff]) -> None:
    """The client is answered; the pages stay. Too many of them and the worker stops."""
    from sglang.srt.disaggregation import utils

    count = sum(h.ticket.pages for h in held)
    guard.record.gauge("quarantined_pages", count)
    guard.record.gauge("quarantined_handoffs", len(held))
    for handoff in held:
        req = handoff.req
        if handoff.answered or req.finished_output:
            continue
        handoff.answered = True
        detail = "a write ended without saying whether it will still happen"
        cause = causes.cause_of("unsettled")
        guard.record.refusal("unsettled", room=handoff.room, rid=req.rid, detail=detail)
        message = causes.message(cause, "unsettled", detail)
        utils.prepare_abort(req, message, status_code=HTTPStatus(causes.status_of(cause)))
        scheduler.output_streamer.stream_output([req], req.return_logprob)
    limit = guard.config.quarantine_limit * guard.kv.pages
    if count > limit:
        raise RuntimeError(
            f"cofferdam-guard: {count} pages of {guard.kv.pages} are held for writes that never "
            f"proved their end, more than {limit:.0f}: this worker stops "
            "(COFFERDAM_GUARD_QUARANTINE_LIMIT)"
        )


def _forget_orphan(manager, room: int) -> None:
    """A room for which decode asked and no request ever came, or one that was rejected before. Not
    sooner than seconds after it asked: the thread that hears from decode may still be at it."""
    manager.transfer_infos.pop(room, None)
    manager.request_status.pop(room, None)
    manager.req_to_decode_prefix_len.pop(room, None)
