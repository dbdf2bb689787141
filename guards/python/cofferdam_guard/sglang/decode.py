"""Decode's half: what is reserved, what must arrive, what is attended to, and when it is freed.

A reservation gets a nonce that was never used before and wiped tags. When SGLang says that a
transfer is complete, the guard looks: statement, tag of every page, sum of every page's bytes.
Before each step the block table of every running sequence is compared with the tags. Pages whose
writer has not proven its end are held without a deadline.
"""

import time
from http import HTTPStatus

import torch

from .. import core
from . import pages as page
from . import wire
from .state import Guard, Reservation, here, is_fake

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


def send_metadata_0_5_19(
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


def send_metadata_0_5_23(
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
    """`MooncakeKVManager.build_receiver_metadata_message` (0.5.23), on the scheduler's thread."""
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
    buffers = guard.scheduler.disagg_metadata_buffers
    if int(buffers.bootstrap_room[reservation.metadata_index, 0].item()) == 0:
        return _NOT_YET
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
    return _verify_pages(guard, reservation)


def _verify_pages(guard: Guard, reservation: Reservation):
    count = reservation.indices.shape[0]
    tags = guard.tags(reservation.nonce, reservation.room, count)
    rows = guard.table.rows.index_select(0, reservation.indices)
    sums = guard.kv.sums(reservation.pages) if guard.config.checksum else None
    reasons = tags.judge(rows, sums)
    worst = int(reasons.max().item()) if count else page.OK
    if worst == page.OK:
        reservation.verified = True
        _proven(guard, reservation)
        guard.record.count("verified_total")
        guard.record.count("verified_blocks_total", count)
        return None
    bad = torch.nonzero(reasons).flatten()
    first = int(bad[0])
    return (
        page.REASONS[int(reasons[first])],
        f"page {first} of {count} ({bad.shape[0]} pages in all)",
    )


# -- what is attended to ------------------------------------------------------------------------


def prepare_for_decode(original, self):
    """`ScheduleBatch.prepare_for_decode`: pages that decode appends carry their reader's nonce."""
    original(self)
    guard = here()
    if guard.role != "decode" or not guard.config.step_check or self.out_cache_loc is None:
        return
    if self.out_cache_loc.shape[0] != len(self.reqs):
        raise RuntimeError(
            "cofferdam-guard: more than one token a step: speculative decoding is not guarded"
        )
    size = guard.page_size
    fresh = self.out_cache_loc % size == 0 if size > 1 else None
    nonces = torch.tensor([_nonce(req) for req in self.reqs], device=self.out_cache_loc.device)
    pages = self.out_cache_loc.to(torch.int64) // size
    if fresh is not None:
        pages, nonces = pages[fresh], nonces[fresh]
    # A page that is held is not stamped: the step's check then finds it and ends the sequence.
    if _take(guard, pages.tolist()):
        guard.table.stamp(pages, nonces)


def _take(guard: Guard, pages: list[int]) -> bool:
    """Whether the ledger lets these pages have a new reader."""
    try:
        if pages:
            guard.ledger.allocate(pages)
        return True
    except core.GuardFault as fault:
        guard.record.refusal("held", detail=str(fault.args[-1]))
        return False


def _nonce(req) -> int:
    reservation = getattr(req, "cofferdam", None)
    return reservation.nonce if reservation is not None else 0


def run_batch(original, self, batch, *args, **kwargs):
    """`Scheduler.run_batch`: block tables against tags, before the pass that attends to them."""
    guard = here()
    if guard.role == "decode" and guard.config.step_check and batch.forward_mode.is_decode():
        _check_step(guard, self, batch)
    return original(self, batch, *args, **kwargs)


def _check_step(guard: Guard, scheduler, batch) -> None:
    """One gather and one comparison for the whole batch. A sequence whose table names a page that
    was not written for it ends with an error, and this step's token is not released."""
    size = guard.page_size
    lengths = batch.seq_lens
    longest = (
        int(batch.seq_lens_cpu.max()) if batch.seq_lens_cpu is not None else int(lengths.max())
    )
    table = scheduler.req_to_token_pool.req_to_token[batch.req_pool_indices, :longest:size]
    owners = guard.table.owners(table.to(torch.int64) // size)
    expected = torch.tensor([_nonce(req) for req in batch.reqs], device=owners.device).unsqueeze(1)
    position = torch.arange(table.shape[1], device=owners.device).unsqueeze(0) * size
    wrong = (owners != expected) & (position < lengths.to(owners.device).unsqueeze(1))
    counts = wrong.sum(1).tolist()
    guard.record.count("steps_checked_total")
    for req, count in zip(batch.reqs, counts):
        if count and not req.finished() and req.to_finish is None:
            _end_at_step(guard, req, count)


def _end_at_step(guard: Guard, req, count: int) -> None:
    from sglang.srt.managers.schedule_batch import FINISH_ABORT

    message = guard.refuse(
        req.bootstrap_room,
        req.rid,
        "step",
        f"{count} pages of the block table are not this request's",
    )
    guard.verdicts.pop(req.bootstrap_room, None)
    # Nothing that this step, or one whose check failed, computes may leave.
    req.finished_len = len(req.output_ids)
    req.to_finish = FINISH_ABORT(message, HTTPStatus.INTERNAL_SERVER_ERROR, "InternalServerError")


def pre_alloc(original, self, req, *args, **kwargs):
    """`DecodePreallocQueue._pre_alloc`: a pretended transfer writes nothing, so its reader would
    attend to what was there. It reads zeros instead."""
    got = original(self, req, *args, **kwargs)
    if is_fake(req):
        guard = here()
        pages = _pages_of(guard, self.req_to_token_pool, req)
        guard.kv.zero(pages)
        _own(guard, req, pages)
    return got


def resume_retracted_reqs(original, self, *args, **kwargs):
    """`resume_retracted_reqs`: decode itself has written these pages back from its own copy."""
    resumed = original(self, *args, **kwargs)
    guard = here()
    for req in resumed:
        _own(guard, req, _pages_of(guard, self.req_to_token_pool, req))
    return resumed


def _pages_of(guard: Guard, pool, req) -> torch.Tensor:
    slots = pool.req_to_token[req.kv.req_pool_idx, : req.kv.kv_allocated_len : guard.page_size]
    return slots.to(torch.int64) // guard.page_size


def _own(guard: Guard, req, pages: torch.Tensor) -> None:
    if getattr(req, "cofferdam", None) is None:
        room = req.bootstrap_room or 0
        req.cofferdam = Reservation(
            room, wire.fresh_nonce(), req.rid, pages, pages.tolist(), 0, -1, True
        )
    if not _take(guard, pages.tolist()):
        return
    guard.table.stamp(pages, torch.tensor(req.cofferdam.nonce))


# -- when it is freed -------------------------------------------------------------------------


def transfer_queue_init(original, self, *args, **kwargs):
    """`DecodeTransferQueue.__init__`: pages of a failed transfer are held until a proof comes, and
    no time passed is one."""
    original(self, *args, **kwargs)
    self.enable_deferred_kv_release = True
    self.deferred_kv_release_timeout = float("inf")


def _hold_for_proof(guard: Guard, receiver) -> None:
    """A failure that decode did not start is held like one that it did: prefill may be writing."""
    if receiver.init_time is None:
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
    original(self)


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
