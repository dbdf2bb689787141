"""The self-test of one worker, at start, on the KV memory that it is going to use: a block is stored, copied
to another, found equal, and spoilt in every layer; each time the sums must tell. What they do not notice
ends the server.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ..settings import BadSettings
from ..tensors import BlockSums, is_torch
from .groups import Group
from .steps import StepGuard, Steps

# Blocks that nobody has yet; block 0 is nobody's ever.
_STORED, _COPIED = 1, 2


def prove(sums: Sequence[BlockSums], groups: Sequence[Group]) -> None:
    """Raises `BadSettings` with what was not noticed."""
    for one, group in zip(sums, groups, strict=True):
        if one.blocks <= _COPIED:
            raise BadSettings(f"a pool of {one.blocks} blocks is too small for the guard's self-test")
        kept = [_copy(layer[_STORED : _COPIED + 1]) for layer in one.layers]
        try:
            _prove(one, group)
        finally:
            for layer, before in zip(one.layers, kept, strict=True):
                layer[_STORED : _COPIED + 1] = before


def _prove(sums: BlockSums, group: Group) -> None:
    for number, layer in enumerate(sums.layers):
        layer[_STORED] = number + 1
        layer[_COPIED] = layer[_STORED]
    _expect(sums, group, True, "a block that was copied whole")
    for number, layer in enumerate(sums.layers):
        before = _copy(layer[_COPIED])
        place = (0,) * (len(layer.shape) - 1)
        layer[_COPIED][place] = -1 - number
        _expect(sums, group, False, f"a changed number in layer {group.layers[number]}")
        layer[_COPIED] = before
    _expect(sums, group, True, "the same block, mended")


def _copy(part: Any) -> Any:
    return part.clone() if is_torch(part) else part.copy()


def _expect(sums: BlockSums, group: Group, equal: bool, what: str) -> None:
    stored, copied = (int(one) for one in sums.of([_STORED, _COPIED]))
    if (stored == copied) != equal:
        found = "equal to" if stored == copied else "different from"
        raise BadSettings(
            f"cofferdam-guard's self-test: {what} of {group} was found {found} what was stored. It would "
            "protect nothing here, so the server does not start"
        )


def prove_steps(groups: Sequence[Group], blocks: int) -> None:
    """A table that names a block of somebody else, in each group; no memory of the engine's is touched."""
    names = ["mine", "theirs"]
    for wrong in range(len(groups)):
        guard = StepGuard(groups, blocks)
        tags = {"mine": [[1]] * len(groups), "theirs": [[2]] * len(groups)}
        guard.bind(Steps(granted=[(_STORED, 1), (_COPIED, 2)], fresh=tags))
        tables = [np.array([[_STORED], [_COPIED]], dtype=np.int32) for _ in groups]
        if found := guard.check(names, tables, [0, 0], [1, 1]):
            raise BadSettings(f"cofferdam-guard's self-test of a step: sound tables convicted: {found}")
        tables[wrong][0] = _COPIED
        if list(guard.check(names, tables, [0, 0], [1, 1])) != ["mine"]:
            raise BadSettings(
                f"cofferdam-guard's self-test of a step: a foreign block in {groups[wrong]} went unseen"
            )
