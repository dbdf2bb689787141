"""Every step: which blocks each request's table names, in every group, against who was given them.

The scheduler's half says with each step which blocks were handed out since the last, under which tags, and
which tags each request's rows must show. The workers' half looks at the tables that the model runner is
about to use. A request that names a block under another tag, or fewer blocks than it reads, ends with an
error: the step's token is not released.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from .groups import Group

Rows = Sequence[Sequence[int]]


@dataclass
class Steps:
    """From the scheduler to the workers, with a step's metadata."""

    # (block, tag), in the order in which they were handed out.
    granted: list[tuple[int, int]] = field(default_factory=list)
    # Tags of a request's rows, one row a group: all of them, or those behind what is known.
    fresh: dict[str, list[list[int]]] = field(default_factory=dict)
    added: dict[str, list[list[int]]] = field(default_factory=dict)
    ended: list[str] = field(default_factory=list)
    # What the scheduler's half has found itself, and why.
    convicted: dict[str, str] = field(default_factory=dict)


class Plan:
    """The scheduler's half."""

    def __init__(self, blocks: Any, domain_of: Any) -> None:
        self._blocks, self._domain_of = blocks, domain_of
        self._domains: dict[str, int] = {}

    def watch(self, manager: Any) -> None:
        """Blocks are handed out in the name of a request: in its isolation domain."""
        allocate, self._blocks.with_steps = manager.allocate_slots, True

        def allocate_slots(request: Any, *args: Any, **kwargs: Any) -> Any:
            domain = self._domains.setdefault(request.request_id, self._domain_of(request))
            self._blocks.domain = domain
            try:
                return allocate(request, *args, **kwargs)
            finally:
                self._blocks.domain = 0

        manager.allocate_slots = allocate_slots

    def take(self, scheduled: Any) -> Steps:
        """For this step's `SchedulerOutput`."""
        steps = Steps(granted=self._blocks.take_granted())
        for new in scheduled.scheduled_new_reqs:
            steps.fresh[new.req_id] = self._tags(steps, new.req_id, new.block_ids)
        cached = scheduled.scheduled_cached_reqs
        for name, rows in zip(cached.req_ids, cached.new_block_ids, strict=True):
            if rows is not None:
                to = steps.fresh if name in cached.resumed_req_ids else steps.added
                to[name] = self._tags(steps, name, rows)
        steps.ended = list(scheduled.finished_req_ids)
        for name in steps.ended:
            self._domains.pop(name, None)
        return steps

    def _tags(self, steps: Steps, name: str, rows: Rows) -> list[list[int]]:
        """Present tags of blocks that join a request; a block of another domain convicts it."""
        found = [self._blocks.ledger.tags(list(row)) for row in rows]
        for row, tags in zip(rows, found, strict=True):
            kept = [(block, tag) for block, tag in zip(row, tags, strict=True) if block]
            why = self._blocks.refusal(*map(list, zip(*kept)), self._domains.get(name, 0)) if kept else None
            if why is not None:
                steps.convicted[name] = why
        return found


class StepGuard:
    """The workers' half."""

    def __init__(self, groups: Sequence[Group], blocks: int) -> None:
        self.groups = groups
        # The present tag of every block; a block that was never handed out has one that nobody expects.
        self._present = np.full(blocks, -1, dtype=np.int64)
        self._expected: dict[str, list[np.ndarray]] = {}
        self.looked = 0

    def bind(self, steps: Steps) -> None:
        for block, tag in steps.granted:
            self._present[block] = tag
        for name in steps.ended:
            self._expected.pop(name, None)
        for name, rows in steps.fresh.items():
            self._expected[name] = [np.asarray(row, dtype=np.int64) for row in rows]
        for name, rows in steps.added.items():
            known = self._expected.get(name)
            if known is not None:
                self._expected[name] = [np.append(*both) for both in zip(known, rows, strict=True)]

    def check(
        self,
        names: Sequence[str],
        tables: Sequence[Any],
        computed: Sequence[int],
        scheduled: Sequence[int],
    ) -> dict[str, str]:
        """The requests whose table is not their own, and why. A table a group, each [requests, blocks]."""
        self.looked += 1
        found: dict[str, str] = {}
        for at, name in enumerate(names):
            expected = self._expected.get(name)
            if expected is None:
                found[name] = "the scheduler has never said which blocks are this request's"
                continue
            for group, table, tags in zip(self.groups, tables, expected, strict=True):
                why = self._row(group, table[at], tags, int(computed[at]), int(scheduled[at]))
                if why is not None:
                    found[name] = f"{group}: {why}"
                    break
        return found

    def _row(self, group: Group, row: Any, tags: np.ndarray, computed: int, scheduled: int) -> str | None:
        # What the window has left may be another's by now: nobody looks there.
        first = max(0, computed - group.window + 1) // group.block_size if group.window else 0
        last = -(-(computed + scheduled) // group.block_size)
        if last > len(tags):
            return f"{last} blocks are read, {len(tags)} are this request's"
        blocks = row[first:last]
        outside = (blocks < 0) | (blocks >= len(self._present))
        wrong = outside | (self._present[np.where(outside, 0, blocks)] != tags[first:last])
        if not wrong.any():
            return None
        place = int(wrong.argmax())
        block = int(blocks[place])
        present = "no tag" if outside[place] else f"tag {self._present[block]}"
        return (
            f"entry {first + place} of the block table names block {block} under {present}, this request's "
            f"has tag {tags[first + place]} ({int(wrong.sum())} entries in all)"
        )
