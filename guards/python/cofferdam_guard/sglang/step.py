"""Decode's steps: the block table of every running sequence against the tags.

One gather and one comparison for the whole batch. On a CPU their result is there at once, and the
sequences that it convicts end before the pass. From a device it is read where the step's own output
is read, so that nobody waits who would not have waited anyway: the pass has then attended to a page
that was not the sequence's, and the token that it computed is not released.
"""

from dataclasses import dataclass
from http import HTTPStatus

import numpy as np
import torch

from .. import core
from ..tensors import Unread, to_device
from . import wire
from .config import WITH_OUTPUT
from .state import Guard, Reservation, here, is_fake

# What a rank found of a sequence, the gravest last.
_RIGHT, _HELD, _WRONG = range(3)

@dataclass
class Checked:
    """What one step's check found, possibly still on its way from the device."""

    reqs: list
    # Pages of each block table that are not the sequence's.
    wrong: Unread
    # The page that each sequence was given for this step; -1: it goes on in the page that it has.
    appended: Unread


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
    slots = self.out_cache_loc.to(torch.int64)
    pages, size = slots // guard.page_size, guard.page_size
    nonces = _nonces(self.reqs, pages.device)
    if size > 1:
        fresh = slots % size == 0
        nonces = torch.where(fresh, nonces, guard.table.owners(pages))
        self.cofferdam_appended = torch.where(fresh, pages, -1)
    else:
        self.cofferdam_appended = pages
    guard.table.stamp(pages, nonces)


def _nonces(reqs, device) -> torch.Tensor:
    """What each sequence's pages must carry; 0, which nothing carries, for one without any."""
    reservations = [getattr(req, "cofferdam", None) for req in reqs]
    numbers = [reservation.nonce if reservation is not None else 0 for reservation in reservations]
    return to_device(np.array(numbers, dtype=np.int64), device)


def run_batch(original, self, batch, *args, **kwargs):
    """`Scheduler.run_batch`: block tables against tags, before the pass that attends to them."""
    guard = here()
    if guard.role != "decode" or not guard.config.step_check or not batch.forward_mode.is_decode():
        return original(self, batch, *args, **kwargs)
    checked = check(guard, self, batch)
    if guard.table.rows.device.type == "cpu" and guard.config.step_check != WITH_OUTPUT:
        _judge(guard, checked)
        return original(self, batch, *args, **kwargs)
    result = original(self, batch, *args, **kwargs)
    result.cofferdam = checked
    return result


def process_batch_result(original, self, batch, result, *args, **kwargs):
    """`Scheduler.process_batch_result`: where a step's tokens are read, so is its check."""
    checked = getattr(result, "cofferdam", None)
    if checked is not None:
        _judge(here(), checked)
    return original(self, batch, result, *args, **kwargs)


def check(guard: Guard, scheduler, batch) -> Checked:
    """Which pages of each block table are not the sequence's: one gather for the batch."""
    size = guard.page_size
    lengths = batch.seq_lens
    longest = (
        int(batch.seq_lens_cpu.max()) if batch.seq_lens_cpu is not None else int(lengths.max())
    )
    table = scheduler.req_to_token_pool.req_to_token[batch.req_pool_indices, :longest:size]
    owners = guard.table.owners(table.to(torch.int64) // size)
    expected = _nonces(batch.reqs, owners.device).unsqueeze(1)
    position = torch.arange(table.shape[1], device=owners.device).unsqueeze(0) * size
    # A sequence without a reservation expects 0, and so does a wiped tag carry: it is wrong as well.
    stranger = (owners != expected) | (expected == 0)
    wrong = stranger & (position < lengths.to(owners.device).unsqueeze(1))
    guard.record.count("steps_checked_total")
    return Checked(list(batch.reqs), Unread(wrong.sum(1)), Unread(batch.cofferdam_appended))


def _judge(guard: Guard, checked: Checked) -> None:
    """A sequence whose table names a page that was not written for it, or that was given a page
    which somebody may still write, ends with an error; this step's token is not released. One that any
    rank convicts ends on all of them, at this step."""
    held, wrong = _held(guard, checked), checked.wrong.read()
    mine = [_WRONG if n else _HELD if at in held else _RIGHT for at, n in enumerate(wrong)]
    for at, (req, worst) in enumerate(zip(checked.reqs, guard.ranks.highest(mine))):
        if _is_over(req):
            # Retracted: its pages were copied as they were. They are never its own again.
            spoilt = worst == _WRONG
            req.cofferdam_spoilt = spoilt or getattr(req, "cofferdam_spoilt", False)
        elif worst != _RIGHT:
            reason = {_WRONG: "step", _HELD: "held"}[worst]
            detail = held.get(at) or f"{wrong[at]} pages of the block table are not this request's"
            if mine[at] != worst:
                detail = "another rank has found it in its share of the pages"
            _end(guard, req, reason, detail, mine[at] == worst)


def _held(guard: Guard, checked: Checked) -> dict[int, str]:
    """The sequences whose appended page the ledger refuses to a new reader, and why. Of a sequence
    that ended meanwhile the page may already be another's."""
    appended = {
        at: number
        for at, (req, number) in enumerate(zip(checked.reqs, checked.appended.read()))
        if number >= 0 and not _is_over(req)
    }
    if not appended or _refusal(guard, list(appended.values())) is None:
        return {}
    # One of them, so all of them, were refused: which?
    refused = {at: _refusal(guard, [number]) for at, number in appended.items()}
    return {at: why for at, why in refused.items() if why is not None}


def _is_over(req) -> bool:
    return req.finished() or req.to_finish is not None or getattr(req, "is_retracted", False)


def _refusal(guard: Guard, pages: list[int]) -> str | None:
    """Why the ledger lets these pages have no new reader."""
    try:
        guard.ledger.allocate(pages)
    except core.GuardFault as fault:
        return str(fault.args[-1])
    return None


def _end(guard: Guard, req, reason: str, detail: str, found_here: bool) -> None:
    from sglang.srt.managers.schedule_batch import FINISH_ABORT

    message = guard.refuse(req.bootstrap_room, req.rid, reason, detail, found_here)
    guard.verdicts.pop(req.bootstrap_room, None)
    # Nothing that this step, or one whose check failed, computes may leave.
    req.finished_len = len(req.output_ids)
    req.to_finish = FINISH_ABORT(message, HTTPStatus.INTERNAL_SERVER_ERROR, "InternalServerError")


# -- pages that nobody sent -----------------------------------------------------------------------


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
    if getattr(req, "cofferdam_spoilt", False):
        return  # not stamped: the next step's check ends the sequence
    if getattr(req, "cofferdam", None) is None:
        room = req.bootstrap_room or 0
        req.cofferdam = Reservation(
            room, wire.fresh_nonce(), req.rid, pages, pages.tolist(), 0, -1, True
        )
    if (why := _refusal(guard, pages.tolist())) is not None:
        # Not stamped: the next step's check ends the sequence.
        guard.record.refusal("held", detail=why)
        return
    guard.table.stamp(pages, torch.tensor(req.cofferdam.nonce))
