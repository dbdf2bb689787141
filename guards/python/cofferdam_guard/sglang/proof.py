"""The self-test of one scheduler process at its start: on the KV memory, the tags and the transfer engine
that it is going to use, before it takes a request. A page is stored, transferred to this process's own
memory, and found sound; then it is spoilt in every way that the guard must notice. What is not noticed
ends the server: then no list of versions would have helped.
"""

from types import SimpleNamespace

import torch

from . import pages as page
from . import step, wire
from .hooks import NotInPlace
from .state import Guard, Reservation

# Pages of the pool that nobody has yet: one to send, one to arrive.
_SENT, _ARRIVED = 1, 2
_ROOM = 1


def prove(guard: Guard, scheduler, manager) -> None:
    """Raises `NotInPlace` with what the guard did not notice."""
    if guard.kv.pages <= _ARRIVED:
        raise NotInPlace(f"a pool of {guard.kv.pages} pages is too small for the self-test")
    table = page.TagTable(guard.kv.pages, guard.kv.device) if guard.table is None else guard.table
    scratch = torch.zeros((1, page.WORDS), dtype=torch.int64, device=guard.kv.device)
    manager.engine.batch_register([scratch.data_ptr()], [page.STRIDE])
    own_table = table is not guard.table
    if own_table:
        manager.engine.batch_register(*([part] for part in table.region))
    try:
        _arrival(guard, manager, table, scratch)
        if guard.role == "decode":
            _steps(guard, scheduler)
    finally:
        both = torch.tensor([_SENT, _ARRIVED], device=guard.kv.device)
        guard.kv.zero(both)
        table.clear(both)
        # The engine must not keep an address that is somebody else's memory tomorrow.
        manager.engine.batch_deregister([scratch.data_ptr()])
        if own_table:
            manager.engine.batch_deregister([table.region[0]])


def _arrival(guard: Guard, manager, table, scratch) -> None:
    tags = guard.tags(wire.fresh_nonce(), _ROOM, 1)
    for number, rows in enumerate(guard.kv.rows):
        words = torch.arange(rows.shape[1], dtype=torch.int64, device=rows.device)
        rows[_SENT] = (words + number + 1) * 0x5DEECE66D
    scratch.copy_(tags.rows(0, guard.kv.sums([_SENT])))
    _expect(guard, tags, table, page.UNWRITTEN, "a page that was never written")
    blocks = [
        (rows[_SENT].data_ptr(), rows[_ARRIVED].data_ptr(), rows.shape[1] * 8)
        for rows in guard.kv.rows
    ]
    base, _ = table.region
    blocks.append((scratch.data_ptr(), base + _ARRIVED * page.STRIDE, page.STRIDE))
    if guard.kv.device.type != "cpu":
        # The transfer engine does not wait for what the device has still to write.
        torch.get_device_module(guard.kv.device).synchronize()
    ret = manager._transfer_data(manager.get_session_id(), blocks)
    if ret:
        raise NotInPlace(f"the transfer engine could not write to this process's own memory ({ret})")
    _expect(guard, tags, table, page.OK, "a page that arrived whole")
    for number, rows in enumerate(guard.kv.rows):
        rows[_ARRIVED, -1] ^= 1
        _expect(guard, tags, table, page.ALTERED, f"one flipped bit in buffer {number}")
        rows[_ARRIVED, -1] ^= 1
    table.rows[_ARRIVED, page.PLACE] += 1 << 32
    _expect(guard, tags, table, page.MISPLACED, "a page at another place")
    table.rows[_ARRIVED] = guard.tags(wire.fresh_nonce(), _ROOM, 1).rows(0, guard.kv.sums([_ARRIVED]))[0]
    _expect(guard, tags, table, page.FOREIGN, "another reservation's page")


def _expect(guard: Guard, tags, table, verdict: int, what: str) -> None:
    rows = table.rows[_ARRIVED : _ARRIVED + 1]
    sums = guard.kv.sums([_ARRIVED]) if guard.config.checksum else None
    if sums is None and verdict == page.ALTERED:
        return  # switched off by COFFERDAM_GUARD_CHECKSUM=0, which the log says
    found = int(tags.judge(rows, sums)[0])
    if found != verdict:
        raise NotInPlace(
            f"the self-test found {what} to be {page.REASONS[found]}, not {page.REASONS[verdict]}"
        )


def _steps(guard: Guard, scheduler) -> None:
    """A block table that names two pages, first its own and then one of somebody else."""
    if not guard.config.step_check:
        return
    size, pool = guard.page_size, scheduler.req_to_token_pool.req_to_token
    pages = torch.tensor([_SENT, _ARRIVED], device=guard.kv.device)
    saved = pool[0, : 2 * size].clone()
    slots = (pages[:, None] * size + torch.arange(size, device=pages.device)).reshape(-1)
    pool[0, : 2 * size] = slots.to(device=pool.device, dtype=pool.dtype)
    mine, theirs = wire.fresh_nonce(), wire.fresh_nonce()
    reservation = Reservation(_ROOM, mine, "selftest", pages, pages.tolist(), 2 * size, -1, True)
    length = torch.tensor([2 * size], device=pool.device)
    batch = SimpleNamespace(
        seq_lens=length,
        seq_lens_cpu=length.cpu(),
        req_pool_indices=torch.zeros(1, dtype=torch.int64, device=pool.device),
        reqs=[SimpleNamespace(cofferdam=reservation)],
        cofferdam_appended=torch.tensor([-1], device=pages.device),
    )
    try:
        for other, expected in ((mine, 0), (theirs, 1)):
            guard.table.stamp(pages, torch.tensor([mine, other], device=pages.device))
            wrong = step.check(guard, scheduler, batch).wrong.read()
            if wrong != [expected]:
                raise NotInPlace(f"the self-test of a step found {wrong} foreign pages, not {expected}")
    finally:
        pool[0, : 2 * size] = saved
