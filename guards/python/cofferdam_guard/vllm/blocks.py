"""Generations of blocks: every block that vLLM hands out stands under a new tag, and one that
somebody may still read or write is not handed out at all."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ..core import GuardFault, Ledger
from ..evidence import Evidence


class BlockGuard:
    """The ledger beside vLLM's block pool."""

    def __init__(self, blocks: int, block_size: int, evidence: Evidence) -> None:
        self.ledger = Ledger(blocks, min(block_size, 0xFFFF))
        self._evidence = evidence
        self._holds: dict[str, tuple[int, list[int]]] = {}
        self._held: dict[int, int] = {}
        # Blocks that vLLM wanted to hand out while they were held, and how to give them back.
        self._aside: dict[int, Any] = {}
        self._free: Callable[[list[Any]], None] | None = None
        # Where each step is looked at (`steps.Plan.watch`): in whose isolation domain blocks are handed out just now,
        # and what was handed out since the last look. Elsewhere all are of one domain, and nobody looks.
        self.with_steps = False
        self.domain = 0
        self._granted: list[tuple[int, int]] = []

    def take_granted(self) -> list[tuple[int, int]]:
        """(block, tag) of what was handed out since the last call."""
        granted, self._granted = self._granted, []
        return granted

    def refusal(self, blocks: list[int], tags: list[int], domain: int) -> str | None:
        """Why a reader of this domain may not have these blocks under these tags."""
        try:
            self.ledger.check(blocks, tags, domain)
        except GuardFault as fault:
            return str(fault.args[-1])
        return None

    def watch(self, pool: Any) -> None:
        """Puts the ledger between the pool and whoever takes blocks from it."""
        take = pool.get_new_blocks
        self._free = pool.free_blocks

        def get_new_blocks(num_blocks: int) -> list[Any]:
            blocks = take(num_blocks)
            while held := [block for block in blocks if block.block_id in self._held]:
                self._keep_aside(held)
                kept = {block.block_id for block in held}
                blocks = [block for block in blocks if block.block_id not in kept]
                blocks += take(num_blocks - len(blocks))
            numbers = [block.block_id for block in blocks]
            tags = self.ledger.allocate(numbers, self.domain)
            if self.with_steps:
                self._granted.extend(zip(numbers, tags, strict=True))
            return blocks

        pool.get_new_blocks = get_new_blocks

    def hold(self, request: str, blocks: list[int], writes: bool = False) -> None:
        """A transfer reads (or writes) these blocks until ``end_hold``."""
        if request in self._holds or not blocks:
            return
        try:
            hold = self.ledger.hold([], blocks) if writes else self.ledger.hold(blocks, [])
        except GuardFault as fault:
            self._evidence.record("hold_failed", 40, request=request, reason=fault.args[1])
            return
        self._holds[request] = (hold, blocks)
        for block in blocks:
            self._held[block] = self._held.get(block, 0) + 1

    def end_hold(self, request: str) -> None:
        """The transfer has ended, provably."""
        if request not in self._holds:
            return
        hold, blocks = self._holds.pop(request)
        self.ledger.end_hold(hold)
        for block in blocks:
            self._held[block] -= 1
            if not self._held[block]:
                del self._held[block]
                aside = self._aside.pop(block, None)
                if aside is not None and self._free is not None:
                    self._free([aside])

    def _keep_aside(self, blocks: list[Any]) -> None:
        """Not a block is handed out while its transfer may be under way (H-3)."""
        numbers = [block.block_id for block in blocks]
        self._evidence.count("held_blocks_reused_total", len(numbers))
        self._evidence.count("quarantined_blocks_total", len(numbers))
        self._evidence.record("held_blocks_reused", 40, blocks=numbers)
        self._aside.update(zip(numbers, blocks, strict=True))

    @property
    def holds(self) -> int:
        return len(self._holds)
