"""The ranks of one server: tensor parallelism computes each request on all of them, each with its share
of every page. They must take the same decision at the same step, or they wait for each other for ever.

Nothing here is called by one rank alone: only where all have seen the same thing, in the same order
(a step of the same batch, a poll that the engine's own collective has made the same).
"""

import json
from datetime import timedelta

import torch
import torch.distributed as dist

# A rank that is not there by then is gone or hangs: this one ends, and the server with it.
WAIT_S = 120.0


def data_parallel(manager) -> tuple[int, int]:
    """Under which number decode finds this rank, and of how many: that of data-parallel attention, or of one of
    several servers behind one address. Such ranks compute different requests and decide nothing together."""
    if manager.system_dp_size == 1:
        return manager.attn_dp_rank, manager.attn_dp_size
    return manager.system_dp_rank, manager.system_dp_size


class Lost(RuntimeError):
    """Another rank gave no answer."""


class Ranks:
    """The engine's own group for such questions. Without one there is a single rank."""

    def __init__(self, group=None, wait_s: float = WAIT_S):
        self.group, self.wait_s = group, wait_s
        self.size = dist.get_world_size(group) if group is not None else 1
        self.rank = dist.get_rank(group) if group is not None else 0

    def highest(self, numbers: list[int]) -> list[int]:
        """Of each number the highest that any rank has."""
        if self.size == 1 or not numbers:
            return numbers
        tensor = torch.tensor(numbers, dtype=torch.int64)
        self._finish(dist.all_reduce(tensor, dist.ReduceOp.MAX, self.group, async_op=True))
        return tensor.tolist()

    def everyone(self, said):
        """What each rank says, by rank. Plain data."""
        if self.size == 1:
            return [said]
        mine = torch.frombuffer(bytearray(json.dumps(said).encode()), dtype=torch.uint8)
        longest = self.highest([mine.shape[0]])[0]
        # Behind the end: spaces, which JSON does not mind.
        padded = torch.full((longest,), ord(" "), dtype=torch.uint8)
        padded[: mine.shape[0]] = mine
        found = [torch.empty_like(padded) for _ in range(self.size)]
        self._finish(dist.all_gather(found, padded, self.group, async_op=True))
        return [json.loads(bytes(one.tolist())) for one in found]

    def _finish(self, work) -> None:
        try:
            work.wait(timedelta(seconds=self.wait_s))
        except RuntimeError as fault:
            raise Lost(
                f"cofferdam-guard: rank {self.rank} of {self.size} waited {self.wait_s:.0f} s for what "
                f"the other ranks found, and one did not answer: it is gone or hangs. This server "
                f"stops; see the other ranks' log lines ({fault})"
            ) from fault
