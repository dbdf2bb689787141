"""Prefill's half: leave to send, and what is sent.

A request is bound to decode's ticket when bootstrap ends, before its forward pass. Each chunk is
summed by the scheduler right after the pass that wrote it, while the pages are certainly this
request's; the transfer worker writes the tags behind the bytes. Until when the pages are kept is in
`source`.
"""

import threading
import time

import torch

from .. import causes
from . import door, faults, wire
from . import pages as page
from .ranks import data_parallel
from .state import Guard, Handoff, here, is_fake

# Rows of tags that one worker can send in one batch; a longer chunk goes in several.
STAGING_ROWS = 65536


# -- leave to send ----------------------------------------------------------------------------


def from_zmq(original, cls, msg):
    """`TransferInfo.from_zmq`: decode's metadata message, with the guard's frame behind it."""
    guard = here()
    info = original(cls, msg)
    info.cofferdam = None
    if len(msg) > 8 and wire.is_ours(msg[-1]):
        try:
            info.cofferdam = wire.decode(msg[-1], info.room, guard.config.key)
        except wire.Malformed as fault:
            guard.record.refusal("malformed", room=info.room, detail=str(fault))
    _note_asked(guard, info)
    return info


def _note_asked(guard: Guard, info) -> None:
    with guard.lock:
        rejected = guard.rejected.get(info.room)
        if rejected is None and info.room not in guard.handoffs:
            guard.asked[info.room] = (info, time.monotonic())
    if rejected is not None:
        guard.orphans.append((info.room, time.monotonic()))
        door.tell_decode(guard.kv_manager, info, rejected[0])


def finalize_bootstrap(original, self, req):
    """`PrefillBootstrapQueue.finalize_bootstrap`: the request is bound to decode's ticket."""
    done = original(self, req)
    if done and not is_fake(req):
        _bind(here(), self, req)
    return done


def may_send(guard: Guard, sender) -> bool:
    """Whether what this sender is for may be sent: asked at each poll until it may. The engine's ranks
    agree on what their polls say, so none goes on with what another has refused."""
    req = getattr(sender, "cofferdam_req", None)
    if req is None or getattr(sender, "cofferdam_leave", False):
        return True
    sender.cofferdam_leave = _leave(guard, sender.kv_mgr, req)
    return sender.cofferdam_leave


def _leave(guard: Guard, manager, req) -> bool:
    """Whether this request may be sent. If not, it has failed on both sides when this returns."""
    room = req.bootstrap_room
    infos = [info for info in list(manager.transfer_infos.get(room, {}).values())]
    refusal = None
    for info in infos:
        said = getattr(info, "cofferdam", None)
        if isinstance(said, wire.Rejection):
            guard.record.audit("rejected by decode", room=room, rid=req.rid, why=said.message)
            _fail(guard, req, said.message, said.status)
            return False
        if info.is_dummy:
            continue
        refusal = refusal or _compare(guard, manager, req, info, said)
    if refusal is None:
        return True
    message = guard.refuse(room, req.rid, *refusal)
    status = causes.status_of(causes.cause_of(refusal[0]))
    for info in infos:
        door.tell_decode(manager, info, wire.Rejection(room, status, message))
    _fail(guard, req, message, status)
    return False


def _compare(guard: Guard, manager, req, info, said) -> tuple[str, str] | None:
    """Reason and detail when decode's ticket is not for what prefill has."""
    if said is None:
        if guard.config.allow_unguarded_peer:
            return None
        return "peer", "decode is not guarded, or by another version, or with another COFFERDAM_GUARD_SECRET"
    size = guard.page_size
    prefix = info.decode_prefix_len or 0
    length = len(req.origin_input_ids)
    own = -(-(length - prefix) // size)
    if said.page_size != size:
        return "layout", f"decode's pages hold {said.page_size} tokens, prefill's {size}"
    if said.tag_stride != page.STRIDE:
        return "layout", f"decode's tags have {said.tag_stride} bytes, prefill's {page.STRIDE}"
    mine = (manager.attn_tp_rank, manager.attn_tp_size)
    if (said.rank, said.ranks) != mine:
        return (
            "layout",
            f"decode's pages are share {said.rank + 1} of {said.ranks}, prefill's {mine[0] + 1} of "
            f"{mine[1]}: give both the same tensor parallelism",
        )
    if said.asked != (here_is := data_parallel(manager)[0]):
        return "identity", f"decode has asked data-parallel rank {said.asked} of prefill, this is {here_is}"
    if said.prefix != prefix:
        return "count", f"decode's prefix is {said.prefix} by ticket, {prefix} by message"
    if len(info.dst_kv_indices) != said.pages:
        return "count", f"{len(info.dst_kv_indices)} pages listed, {said.pages} by ticket"
    if said.pages != own or said.tokens != length:
        return (
            "count",
            f"decode reserved {said.pages} pages for {said.tokens} tokens, "
            f"prefill has {own} for {length}",
        )
    if said.lineage != guard.lineage(req, req.origin_input_ids):
        return "identity", "decode's prompt, model, adapter or salt is not prefill's"
    return None


def _fail(guard: Guard, req, message: str, status: int) -> None:
    """Ends a request that has sent nothing; the engine's next poll finds it failed."""
    from sglang.srt.disaggregation.base import KVPoll

    sender = req.disagg_kv_sender
    guard.decide(req.bootstrap_room, message, status)
    sender.kv_mgr.record_failure(req.bootstrap_room, message)
    sender.kv_mgr.update_status(req.bootstrap_room, KVPoll.Failed)
    sender.conclude_state = KVPoll.Failed


def _bind(guard: Guard, queue, req) -> None:
    room = req.bootstrap_room
    with guard.lock:
        guard.asked.pop(room, None)
    for info in list(queue.kv_manager.transfer_infos.get(room, {}).values()):
        said = getattr(info, "cofferdam", None)
        if isinstance(said, wire.Ticket):
            if not getattr(req.disagg_kv_sender, "cofferdam_leave", False):
                raise RuntimeError(f"cofferdam-guard: room {room} was bound before it was judged")
            tags = guard.tags(said.nonce, room, said.pages)
            guard.handoffs[room] = Handoff(room, said, req, tags)
            req.disagg_kv_sender.cofferdam = guard.handoffs[room]


# -- what is sent -----------------------------------------------------------------------------


def send(original, self, kv_indices, state_indices=None, num_kv_tokens=None, **more):
    """`MooncakeKVSender.send`: sums the chunk's pages, then lets it go to the worker."""
    handoff = getattr(self, "cofferdam", None)
    if handoff is not None and len(kv_indices):
        guard = here()
        for event in (more.get("indices_event"), getattr(self, "_early_send_wait_event", None)):
            if event is not None:
                event.synchronize()
        if handoff.sent + len(kv_indices) > handoff.ticket.pages:
            message = guard.refuse(
                handoff.room,
                handoff.req.rid,
                "count",
                f"{handoff.sent + len(kv_indices)} pages to send, {handoff.ticket.pages} reserved",
            )
            for info in list(self.kv_mgr.transfer_infos.get(handoff.room, {}).values()):
                door.tell_decode(self.kv_mgr, info, wire.Rejection(handoff.room, 500, message))
            _fail(guard, handoff.req, message, 500)
            return None
        handoff.sums[self.curr_idx] = (
            guard.kv.sums(kv_indices.tolist())
            if guard.config.checksum
            else torch.zeros(len(kv_indices), dtype=torch.int64, device=guard.kv.device)
        )
        handoff.sent += len(kv_indices)
    return original(self, kv_indices, state_indices, num_kv_tokens, **more)


def set_buf(original, self, req):
    """`MetadataBuffers.set_buf`: the statement goes into the row's spare integers."""
    original(self, req)
    handoff = getattr(getattr(req, "disagg_kv_sender", None), "cofferdam", None)
    row = self.cached_tokens[req.metadata_buffer_index]
    if handoff is None:
        row[wire.STATEMENT] = 0
        return
    ticket = handoff.ticket
    words = wire.statement(
        here().config.key, handoff.room, ticket.nonce, ticket.pages, len(req.origin_input_ids)
    )
    row[wire.STATEMENT] = torch.tensor(words, dtype=row.dtype)


def register_buffer_to_engine(original, self):
    """`MooncakeKVManager.register_buffer_to_engine`: the guard's memory is registered with it."""
    from . import install

    original(self)
    install.register_memory(self)


def send_kvcache(
    original,
    self,
    mooncake_session_id,
    prefill_kv_indices,
    dst_kv_ptrs,
    dst_kv_indices,
    executor,
    *args,
    **kwargs,
):
    """`MooncakeKVManager.send_kvcache`, in a transfer worker: tags go behind the bytes."""
    guard = here()
    chunk = getattr(guard.local, "chunk", None)
    handoff = guard.handoffs.get(chunk.room) if chunk is not None else None
    if handoff is None:
        return original(
            self,
            mooncake_session_id,
            prefill_kv_indices,
            dst_kv_ptrs,
            dst_kv_indices,
            executor,
            *args,
            **kwargs,
        )
    first = chunk.index_slice.start or 0
    rows = handoff.tags.rows(first, handoff.sums[first])
    plan = faults.plan(
        guard, handoff, first, prefill_kv_indices, dst_kv_ptrs, dst_kv_indices, self.kv_args
    )
    batches = _tag_batches(guard, handoff, rows, dst_kv_indices)
    guard.local.tags, guard.local.fault = next(batches), plan
    try:
        ret = original(
            self,
            mooncake_session_id,
            prefill_kv_indices,
            dst_kv_ptrs,
            dst_kv_indices,
            executor,
            *args,
            **kwargs,
        )
        # A transfer in several threads of its own has not taken the tags along.
        left, guard.local.tags = guard.local.tags, None
        if ret == 0 and left is not None:
            ret = self._transfer_data(mooncake_session_id, left)
        return ret if ret else _drain(self, mooncake_session_id, batches)
    finally:
        guard.local.tags = guard.local.fault = None
        if plan is not None:
            plan.after(guard, self, mooncake_session_id, rows)


def _drain(manager, session: str, batches) -> int:
    for blocks in batches:
        ret = manager._transfer_data(session, blocks)
        if ret:
            return ret
    return 0


def _tag_batches(guard: Guard, handoff: Handoff, rows: torch.Tensor, dst_kv_indices):
    """Blocks (source, destination, bytes) that write the rows, as many at once as staging holds."""
    staging = guard.staging[threading.get_ident()]
    room = staging.shape[0]
    for start in range(0, rows.shape[0], room):
        part = rows[start : start + room]
        staging[: part.shape[0]].copy_(part)
        base = staging.data_ptr()
        yield [
            (
                base + offset * page.STRIDE,
                handoff.ticket.tag_base + first * page.STRIDE,
                n * page.STRIDE,
            )
            for offset, first, n in page.runs(dst_kv_indices[start : start + room])
        ]


def transfer_data(original, self, mooncake_session_id, transfer_blocks):
    """`MooncakeKVManager._transfer_data`: one batch for bytes and tags; a failure is remembered."""
    guard = here()
    tags, guard.local.tags = getattr(guard.local, "tags", None), None
    blocks = transfer_blocks
    if tags is not None:
        fault = getattr(guard.local, "fault", None)
        blocks = list(transfer_blocks) + tags
        if fault is not None:
            blocks = fault.during(blocks)
    ret = original(self, mooncake_session_id, blocks)
    chunk = getattr(guard.local, "chunk", None)
    if ret != 0 and chunk is not None:
        handoff = guard.handoffs.get(chunk.room)
        if handoff is not None and not handoff.unsettled:
            handoff.unsettled = True
            guard.record.audit(
                "unsettled",
                warn=True,
                room=chunk.room,
                rid=handoff.req.rid,
                pages=handoff.ticket.pages,
            )
    return ret
