"""What the checks cost by themselves, without an engine: the step check at the scale of an incident
(64 sequences of 16,384 blocks), and checksums a GB/s, on this machine. Needs torch.

    python check_cost.py"""

from __future__ import annotations

import statistics
import time

import torch

from cofferdam_guard.core import Secret
from cofferdam_guard.tensors import BlockSums, TagTable, unsigned

SECRET = Secret(b"a secret for tests on one machine only")


def median_ms(work, rounds: int = 15) -> float:
    """CPU time of one thread, which a busy machine disturbs less than the time of the clock."""
    times = []
    for _ in range(rounds):
        begin = time.process_time()
        work()
        times.append((time.process_time() - begin) * 1e3)
    return statistics.median(times)


def step_check(sequences: int, entries: int) -> None:
    blocks = sequences * entries
    order = torch.randperm(blocks)
    table = TagTable(blocks, like=torch.zeros(1))
    table.set(range(blocks), range(1, blocks + 1))
    block_table = order.reshape(sequences, entries).to(torch.int32)
    expected = table.tags[block_table.to(torch.int64)]
    used = torch.full((sequences,), entries)

    def check() -> list[int]:
        return table.stale(block_table, expected, used).tolist()

    assert check() == [0] * sequences
    table.tags[block_table[3, 7].item()] += 1
    assert check() == [0, 0, 0, 1] + [0] * (sequences - 4), "one stale entry of a million is found"
    cost = median_ms(check)
    print(f"step check, {sequences} x {entries:,} entries: {cost:.1f} ms, {cost * 1e6 / blocks:.1f} ns an entry")


def checksums(layers: int, shape: tuple[int, ...], blocks: int) -> None:
    kv = [torch.randn(blocks, *shape).to(torch.bfloat16) for _ in range(layers)]
    sums = BlockSums(SECRET, kv)
    every = list(range(blocks))
    cost = median_ms(lambda: unsigned(sums.of(every).tolist()))
    size = sums.block_bytes * blocks
    tensors = median_ms(lambda: unsigned(sums.in_tensors(every).tolist()), 5)
    copy = median_ms(lambda: [layer[torch.tensor(every)] for layer in kv])
    print(
        f"checksums, {layers} layers, {blocks} blocks of {sums.block_bytes:,} bytes: {cost:.1f} ms "
        f"({size / cost / 1e6:.2f} GB/s; by tensor operations {tensors:.1f} ms, copying the blocks "
        f"once {copy:.1f} ms)"
    )


if __name__ == "__main__":
    torch.set_num_threads(1)
    step_check(64, 16384)
    step_check(64, 1024)
    checksums(30, (3, 32, 128), 16)
    checksums(30, (3, 32, 128), 1)
