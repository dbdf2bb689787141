"""Faults made on purpose in a transfer, for the tests and for the self-test.

Only with `COFFERDAM_GUARD_FAULTS=1`, and only for a request whose `rid` begins with `cofferdam-
fault:KIND:`, or `cofferdam-fault:KIND@RANK:` for a fault on one rank. Kinds: `lost` (one page and its tag are not written), `lost-bytes` (the tag
arrives, the page does not), `other` (a page of another request, with that request's tag), `flip`
(one bit of one page), `rank` (decode's ticket names another data-parallel rank of prefill), `late` (a finished transfer writes again and again, after its pages have
other readers).
"""

import threading
import time

from . import pages as page

PREFIX = "cofferdam-fault:"
IN_TRANSFER = ("lost", "lost-bytes", "other", "flip", "late")
LATE_FOR_S = 25.0
LATE_EVERY_S = 0.4

# The page that was sent last for an innocent request: (source page, row of its tag).
_last = {}


class Plan:
    """What is to go wrong with one chunk."""

    def __init__(self, kind, victim, source, destination, dst_ptrs, kv_args, rows_at):
        self.kind = kind
        self.victim = victim
        self.source = source
        self.destination = destination
        self.dst_ptrs = list(dst_ptrs)
        self.src_ptrs = list(kv_args.kv_data_ptrs)
        self.items = list(kv_args.kv_item_lens)
        self.tag_base = rows_at

    def during(self, blocks):
        """The blocks of the transfer, without or instead of those of the victim page."""
        if self.kind not in ("lost", "lost-bytes", "other"):
            return blocks
        holes = {
            base + self.destination * item: item for base, item in zip(self.dst_ptrs, self.items)
        }
        if self.kind != "lost-bytes":
            holes[self.tag_base + self.destination * page.STRIDE] = page.STRIDE
        kept = []
        for block in blocks:
            kept.extend(_without(block, holes))
        if self.kind == "other":
            kept.extend(self._of_another())
        return kept

    def _of_another(self):
        other = _last["page"]
        for src, dst, item in zip(self.src_ptrs, self.dst_ptrs, self.items):
            yield (src + other * item, dst + self.destination * item, item)
        yield (_last["row"].data_ptr(), self.tag_base + self.destination * page.STRIDE, page.STRIDE)

    def after(self, guard, manager, session, rows) -> None:
        """What goes wrong when the transfer is complete."""
        if self.kind == "flip":
            guard.fault_page[: self.items[0]] = _bytes_of(guard, self.source, 0)
            guard.fault_page[self.items[0] // 2] ^= 0x10
            block = (
                guard.fault_page.data_ptr(),
                self.dst_ptrs[0] + self.destination * self.items[0],
                self.items[0],
            )
            manager.engine.batch_transfer_sync(session, [block[0]], [block[1]], [block[2]])
        elif self.kind == "late":
            threading.Thread(
                target=self._late,
                args=(guard, manager, session, rows[self.victim].clone()),
                daemon=True,
            ).start()

    def _late(self, guard, manager, session, row) -> None:
        """Keeps writing the page and its old tag, as a writer does that nobody waited for."""
        guard.fault_row.copy_(row)
        blocks = [
            (src + self.source * item, dst + self.destination * item, item)
            for src, dst, item in zip(self.src_ptrs, self.dst_ptrs, self.items)
        ]
        blocks.append(
            (
                guard.fault_row.data_ptr(),
                self.tag_base + self.destination * page.STRIDE,
                page.STRIDE,
            )
        )
        src, dst, lengths = (list(part) for part in zip(*blocks))
        end = time.monotonic() + LATE_FOR_S
        while time.monotonic() < end:
            manager.engine.batch_transfer_sync(session, src, dst, lengths)
            time.sleep(LATE_EVERY_S)


def _bytes_of(guard, number: int, buffer: int):
    import torch

    return guard.kv.rows[buffer][number].view(torch.uint8)


def _without(block, holes):
    """The parts of a block that touch none of the holes (address -> length)."""
    src, dst, length = block
    inside = sorted((at, size) for at, size in holes.items() if dst <= at < dst + length)
    position = dst
    for at, size in inside:
        if at > position:
            yield (src + position - dst, position, at - position)
        position = at + size
    if position < dst + length:
        yield (src + position - dst, position, dst + length - position)


def asked(guard, req, rank: int) -> int:
    """The rank of prefill that decode's ticket names."""
    if guard.config.faults and str(req.rid).startswith(PREFIX + "rank"):
        guard.record.count("faults_injected_total", reason="rank")
        return rank + 1
    return rank


def plan(guard, handoff, first, prefill_indices, dst_ptrs, dst_indices, kv_args):
    """The fault that this request asks for, if it asks and may; none nearly always."""
    if not guard.config.faults:
        return None
    rid = str(handoff.req.rid)
    if not rid.startswith(PREFIX):
        _last["page"] = int(prefill_indices[-1])
        guard.other_row.copy_(handoff.tags.rows(first, handoff.sums[first])[-1])
        _last["row"] = guard.other_row
        return None
    kind, _, rank = rid[len(PREFIX) :].split(":")[0].partition("@")
    if rank and rank != str(guard.ranks.rank):
        return None
    if kind not in IN_TRANSFER or (kind == "other" and "page" not in _last):
        return None
    guard.record.count("faults_injected_total", reason=kind)
    victim = len(dst_indices) // 2
    return Plan(
        kind,
        victim,
        int(prefill_indices[victim]),
        int(dst_indices[victim]),
        dst_ptrs,
        kv_args,
        handoff.ticket.tag_base,
    )
