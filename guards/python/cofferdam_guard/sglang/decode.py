"""Decode's half: what is reserved, what must arrive, and when it is freed (steps: `step.py`).

A reservation gets a nonce that was never used before and wiped tags. When SGLang says that a
transfer is complete, the guard looks: statement, tag of every page, sum of every page's bytes.
Pages whose writer has not proven its end are held without a deadline.
"""

import time
from types import SimpleNamespace

import torch

from .. import core
from ..tensors import Unread
from . import faults, wire
from . import pages as page
from .state import Guard, Reservation, here

_NO_CODE = SimpleNamespace(co_names=())
# How long to wait for a proof before asking prefill again.
ASK_AGAIN_S = 5.0
# After which time held pages count as quarantined; SGLang would free them then.
QUARANTINE_AFTER_S = 30.0


# -- what is reserved -------------------------------------------------------------------------


def create_receiver(original, self, req, is_rebootstrap=False):
    """`DecodePreallocQueue._create_receiver_and_enqueue`: the receiver knows its request."""
    decode_req = original(self, req, is_rebootstrap=is_rebootstrap)
    decode_req.kv_receiver.cofferdam_req = req
    return decode_req


def _reserve(guard: Guard, receiver, kv_indices, aux_index, prefix) -> bytes | None:
    """Binds pages to a request; returns the frame for prefill, or none if the engine gave out pages
    that somebody may still write: then the request has failed."""
    req = receiver.cofferdam_req
    room, tokens, listed = receiver.bootstrap_room, guard.tokens(req), kv_indices.tolist()
    indices = page.page_tensor(kv_indices, guard.table.rows.device)
    reservation = Reservation(
        room=room,
        nonce=wire.fresh_nonce(),
        rid=req.rid,
        indices=indices,
        pages=listed,
        tokens=len(tokens),
        metadata_index=aux_index,
    )
    try:
        guard.ledger.allocate(listed)
        reservation.hold = guard.ledger.hold(writes=listed)
    except core.GuardFault as fault:
        _fail(receiver, guard.refuse(room, req.rid, "held", str(fault.args[-1])))
        return None
    guard.table.clear(indices)
    receiver.cofferdam = req.cofferdam = reservation
    base, _ = guard.table.region
    ticket = wire.Ticket(
        room=room,
        nonce=reservation.nonce,
        pages=len(kv_indices),
        tokens=len(tokens),
        prefix=prefix or 0,
        page_size=guard.page_size,
        tag_base=base,
        tag_stride=page.STRIDE,
        lineage=guard.lineage(req, tokens),
        rank=receiver.kv_mgr.attn_tp_rank,
        ranks=receiver.kv_mgr.attn_tp_size,
        asked=faults.asked(guard, req, receiver.prefill_dp_rank),
    )
    return ticket.encode(guard.config.key)


def _fail(receiver, message: str) -> None:
    """The engine's next poll finds the request failed."""
    from sglang.srt.disaggregation.base import KVPoll

    receiver.kv_mgr.record_failure(receiver.bootstrap_room, message)
    receiver.kv_mgr.update_status(receiver.bootstrap_room, KVPoll.Failed)
    receiver.conclude_state = KVPoll.Failed


def _proven(guard: Guard, reservation: Reservation | None) -> None:
    """Prefill's writing into these pages has ended, provably."""
    if reservation is not None and reservation.hold is not None:
        guard.ledger.end_hold(reservation.hold)
        reservation.hold = None


def send_metadata_itself(
    original,
    self,
    kv_indices,
    aux_index=None,
    state_indices=None,
    decode_prefix_len=None,
    device_kv_indices=None,
):
    """`MooncakeKVReceiver.send_metadata`: it builds and sends in one go, so the frame is appended
    where it is sent."""
    frame = _reserve(here(), self, kv_indices, aux_index, decode_prefix_len)
    rest = (kv_indices, aux_index, state_indices, decode_prefix_len, device_kv_indices)
    if frame is None:
        return None
    connect = type(self)._connect_to_bootstrap_server

    def appending(info):
        sock, lock = connect(info)
        return _Appending(sock, frame), lock

    self._connect_to_bootstrap_server = appending
    try:
        return original(self, *rest)
    finally:
        del self._connect_to_bootstrap_server


class _Appending:
    """A socket that puts one more frame behind each message."""

    def __init__(self, sock, frame: bytes):
        self._sock, self._frame = sock, frame

    def send_multipart(self, parts, *args, **kwargs):
        return self._sock.send_multipart([*parts, self._frame], *args, **kwargs)


def send_metadata_by_manager(
    original, self, kv_indices, aux_index=None, state_indices=None, decode_prefix_len=None, **more
):
    """`CommonKVReceiver.send_metadata`: the message is built by the manager, see below."""
    guard = here()
    guard.frame = _reserve(guard, self, kv_indices, aux_index, decode_prefix_len)
    if guard.frame is None:
        return None
    try:
        return original(
            self,
            kv_indices,
            aux_index=aux_index,
            state_indices=state_indices,
            decode_prefix_len=decode_prefix_len,
            **more,
        )
    finally:
        guard.frame = None


def build_receiver_metadata_message(original, self, **kwargs):
    """`MooncakeKVManager.build_receiver_metadata_message` on the scheduler's thread."""
    message = original(self, **kwargs)
    frame = here().frame
    return message if frame is None else [*message, frame]


# -- what must arrive -------------------------------------------------------------------------


def receiver_poll(original, self):
    """`poll` of the receiver: `Success` is what prefill says; here it is looked at."""
    from sglang.srt.disaggregation.base import KVPoll

    status = original(self)
    guard = here()
    reservation = getattr(self, "cofferdam", None)
    if status == KVPoll.Success and not (reservation is not None and reservation.verified):
        refusal = _verify(guard, self, reservation)
        if refusal is _NOT_YET:
            return KVPoll.Transferring
        if refusal is not None:
            rid = reservation.rid if reservation is not None else ""
            _fail(self, guard.refuse(self.bootstrap_room, rid, *refusal))
            status = KVPoll.Failed
    if status == KVPoll.Failed:
        _hold_for_proof(guard, self)
    return status


_NOT_YET = object()


def _verify(guard: Guard, receiver, reservation: Reservation | None):
    """None when everything arrived as reserved; `_NOT_YET`; or reason and detail."""
    if reservation is None:
        return "unreserved", "pages arrived for a request that never reserved any"
    now = time.monotonic()
    if reservation.arrived_at is None:
        reservation.arrived_at = now
    waited = now - reservation.arrived_at
    buffers = guard.scheduler.disagg_metadata_buffers
    if int(buffers.bootstrap_room[reservation.metadata_index, 0].item()) == 0:
        if waited < guard.config.wait_s:
            return _NOT_YET
        return "late", f"prefill's statement has not come {waited:.1f} s after its pages"
    words = buffers.cached_tokens[reservation.metadata_index, wire.STATEMENT].tolist()
    stated = wire.read_statement(guard.config.key, reservation.room, words)
    count = reservation.indices.shape[0]
    if stated is None:
        if guard.config.allow_unguarded_peer and not any(words):
            reservation.verified = True
            _proven(guard, reservation)
            guard.table.stamp(reservation.indices, torch.tensor(reservation.nonce))
            return None
        return (
            "peer",
            "prefill made no statement: it is not guarded, or has another COFFERDAM_GUARD_SECRET",
        )
    if stated.nonce != reservation.nonce:
        return "statement", "prefill's statement is about another reservation"
    if stated.pages != count or stated.tokens != reservation.tokens:
        return (
            "count",
            f"prefill sent {stated.pages} pages of {stated.tokens} tokens, "
            f"{count} pages for {reservation.tokens} tokens are reserved",
        )
    found = _verify_pages(guard, reservation)
    if found is _NOT_YET and waited >= guard.config.wait_s:
        return "late", f"this device gave no checksums of what arrived in {waited:.1f} s"
    return found


def _verify_pages(guard: Guard, reservation: Reservation):
    """The verdict is on its way from the device after the first call, and waited for by none."""
    count = reservation.indices.shape[0]
    if reservation.reasons is None:
        tags = guard.tags(reservation.nonce, reservation.room, count)
        rows = guard.table.rows.index_select(0, reservation.indices)
        sums = guard.kv.sums(reservation.pages) if guard.config.checksum else None
        reservation.reasons = Unread(tags.judge(rows, sums))
    if not reservation.reasons.ready():
        return _NOT_YET
    reasons = reservation.reasons.read()
    bad = [ordinal for ordinal, reason in enumerate(reasons) if reason != page.OK]
    if not bad:
        reservation.verified = True
        _proven(guard, reservation)
        guard.record.count("verified_total")
        guard.record.count("verified_blocks_total", count)
        return None
    first = bad[0]
    return page.REASONS[reasons[first]], f"page {first} of {count} ({len(bad)} pages in all)"


# -- when it is freed -------------------------------------------------------------------------


def transfer_queue_init(original, self, *args, **kwargs):
    """`DecodeTransferQueue.__init__`: pages of a failed transfer are held until a proof comes, and
    no time passed is one."""
    original(self, *args, **kwargs)
    self.enable_deferred_kv_release = True
    self.deferred_kv_release_timeout = float("inf")


def _hold_for_proof(guard: Guard, receiver, told: bool = False) -> None:
    """A failure that decode did not start is held like one that it did: prefill may be writing. `told`:
    some rank has told prefill where to write, so every rank keeps its pages."""
    if receiver.init_time is None and not told:
        # Prefill was never told where to write.
        _proven(guard, getattr(receiver, "cofferdam", None))
        return
    if receiver.abort_notified or receiver.bootstrap_infos is None:
        return
    ensure = getattr(receiver, "ensure_abort_notified", None)
    if ensure is not None:
        ensure(force_arm=True)
        return
    receiver.kv_mgr.register_deferred_abort_room(receiver.bootstrap_room)
    receiver._send_abort_notification()
    receiver.abort_notified = True


def do_release(original, self, decode_req, idx):
    """`DecodeTransferQueue._do_release`: with no deadline left, only a proof comes here."""
    _proven(here(), getattr(decode_req.req, "cofferdam", None))
    return original(self, decode_req, idx)


def resolve_deferred_releases(original, self):
    """`resolve_deferred_releases`: asks again, counts what is held, stops when it is too much."""
    guard = here()
    now = time.monotonic()
    held = pages = 0
    for entry in self._deferred_releases:
        decode_req = entry[0]
        since = getattr(decode_req, "cofferdam_since", None)
        if since is None:
            decode_req.cofferdam_since = decode_req.cofferdam_asked = now
            guard.record.audit("held", room=decode_req.req.bootstrap_room, rid=decode_req.req.rid)
            continue
        if now - decode_req.cofferdam_asked > ASK_AGAIN_S:
            decode_req.cofferdam_asked = now
            guard.record.count("aborts_repeated_total")
            decode_req.kv_receiver._send_abort_notification()
        if now - since > QUARANTINE_AFTER_S:
            held += 1
            pages += decode_req.req.cofferdam.indices.shape[0]
    if pages != guard.held_pages:
        guard.held_pages = pages
        guard.record.gauge("quarantined_pages", pages)
        guard.record.gauge("quarantined_handoffs", held)
        _stop_if_too_much(guard)
    _release_together(guard, self, original)


def _release_together(guard: Guard, queue, original) -> None:
    """Pages that one rank frees and another keeps would make the ranks admit different requests. To
    0.5.22 each rank acts on its own proof; there the guard lets a request go when all have theirs."""
    entries = queue._deferred_releases
    engine_agrees = "all_reduce_flags" in getattr(original, "__code__", _NO_CODE).co_names
    if guard.ranks.size == 1 or engine_agrees or not entries:
        return original(queue)
    waiting = [
        int(not one[0].kv_receiver.kv_mgr.is_abort_release_safe(one[0].req.bootstrap_room, one[-1]))
        for one in entries
    ]
    waiting = guard.ranks.highest(waiting)
    queue._deferred_releases = [one for one, wait in zip(entries, waiting) if not wait]
    original(queue)
    queue._deferred_releases += [one for one, wait in zip(entries, waiting) if wait]


def _stop_if_too_much(guard: Guard) -> None:
    limit = guard.config.quarantine_limit * guard.kv.pages
    if guard.held_pages > limit:
        raise RuntimeError(
            f"cofferdam-guard: {guard.held_pages} pages of {guard.kv.pages} are held for writers "
            f"that never proved their end, more than {limit:.0f}: this worker stops "
            "(COFFERDAM_GUARD_QUARANTINE_LIMIT)"
        )


def tick(original, self):
    """`process_decode_queue`, once a loop: forgets what is over."""
    here().sweep()
    return original(self)
