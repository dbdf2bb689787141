"""The workers' half: statements of what was computed, and the comparison of what has arrived."""

from __future__ import annotations

import os
import threading
import time
from dataclasses import dataclass
from typing import Any

from ..channel import ClaimClient, ClaimServer, now_ms
from ..core import GuardFault, Producer, Reference, Statement, kind_of
from ..evidence import Evidence
from ..settings import BadSettings, Settings
from ..tensors import BlockSums, Unread, is_torch, unsigned
from .groups import Group
from .handover import Expect, Handover, State
from . import proof
from .start import no_port
from .steps import StepGuard, Steps

# Statements kept on a producer; how much longer than the lease of the blocks, for answers that
# are under way.
STATEMENTS_MAX, GRACE_MS = 1 << 14, 5000
REFUSALS = {
    "used": "refused_reuse_total",
    "expired": "refused_lease_total",
    "other_life": "refused_life_total",
}
# Whose fault it is, as far as a claim's answer tells.
WHY = {
    "expired": "the producer had released the blocks (its lease ended) before they were claimed: this "
    "side or the transport was too late, or kv_lease_duration is too short",
    "other_life": "the producer has restarted since it made this reference",
    "revoked": "the producer gave this request up",
    "used": "somebody has claimed this reference before",
    "unreadable": "the producer could not read the claim: another version or another secret",
    "malformed": "the producer's answer is not a guard's: another version or another secret",
}
# With COFFERDAM_GUARD_SELFTEST=1 requests whose id contains this get one byte flipped on arrival.
SELFTEST = "cofferdam-guard-selftest"


@dataclass
class Arrived:
    # One for each group.
    sums: list[Unread]
    since: float
    until: float


class WorkerGuard:
    def __init__(
        self, settings: Settings, evidence: Evidence, rank: int, lease_s: float, groups: list[Group]
    ) -> None:
        self.settings, self.evidence, self.rank = settings, evidence, rank
        self._lease_ms = int(lease_s * 1000)
        self.groups = groups
        self._lock = threading.Lock()  # of the producer, which the answering thread uses too
        self._sums: list[BlockSums] = []
        self._epoch = os.urandom(16)  # nobody's, until the scheduler has told its own
        self._producer = Producer(self._epoch, STATEMENTS_MAX)
        self._server: ClaimServer | None = None
        self._client = ClaimClient(settings.secret)
        self._to_state: dict[str, list[State]] = {}
        self._stating: dict[str, list[tuple[State, Unread]]] = {}
        self._serials: dict[str, list[int]] = {}
        self._void: set[int] = set()
        self._expect: dict[str, list[tuple[Expect, Reference]]] = {}
        self._arrived: dict[str, Arrived] = {}
        self._claims: dict[str, tuple[str, Statement | None, str]] = {}  # by `_key`
        self._refused: set[str] = set()
        self.steps: StepGuard | None = None
        self._bound: Steps | None = None
        # Convicted and not told yet; convicted and not ended yet.
        self._convicted: set[str] = set()
        self._known_bad: set[str] = set()
        self._selftest = os.environ.get("COFFERDAM_GUARD_SELFTEST") == "1"

    def serve(self, host: str, port: int) -> None:
        """Begins to answer claims; raises `BadSettings` if the port cannot be had."""
        port += self.rank
        try:
            self._server = ClaimServer(self.settings.secret, self._producer, host, port, self._lock)
        except OSError as fault:
            why = fault.strerror or str(fault)
            raise BadSettings(no_port(self.settings, port, why)) from fault

    def register(self, layers: dict[str, Any], blocks: int) -> None:
        """The KV tensors, by layer. Each belongs to a group, and each group's are all there."""
        grouped = {name for group in self.groups for name in group.layers}
        wrong = [f"{name}, which is in no group" for name in layers if name not in grouped]
        wrong += [f"{name} of a group, without memory" for name in grouped if name not in layers]
        wrong += [
            f"{name}, which is no single tensor ({type(tensor).__name__})"
            for name, tensor in layers.items()
            if not hasattr(tensor, "shape")
        ]
        if wrong:
            raise BadSettings(
                f"cofferdam-guard cannot check all of this model's KV memory, so it does not start: "
                f"{'; '.join(sorted(wrong)[:5])}"
            )
        for group in self.groups:
            tensors = [layers[name] for name in group.layers]
            dims = [_block_dim(tensor, blocks) for tensor in tensors]
            self._sums.append(BlockSums(self.settings.secret, tensors, dims))
        proof.prove(self._sums, self.groups)
        if self.settings.step_check:
            self.steps = StepGuard(self.groups, blocks)
            proof.prove_steps(self.groups, blocks)

    # -- each step ----------------------------------------------------------------------------

    def bind(self, handover: Handover) -> None:
        """Before the step's forward pass."""
        if handover.epoch != self._epoch:
            self._epoch = handover.epoch
            self._producer = Producer(handover.epoch, STATEMENTS_MAX)
            if self._server is not None:
                self._server.replace(self._producer)
        self._to_state.update(handover.state)
        self._refused.update(handover.refused)
        # As long as the fetch may take and a little more; the wait after arrival is bounded on its own.
        wait_s = self._lease_ms / 1000 + self.settings.wait_s
        for name, expected in handover.expect.items():
            opened = [self.settings.secret.open_reference(one.reference) for one in expected]
            self._expect[name] = list(zip(expected, opened, strict=True))
            for group, reference in enumerate(opened):
                self._client.submit(_key(name, group), reference, self.rank, wait_s)
        self._void.update(handover.void)
        self._bind_steps(handover)

    def _bind_steps(self, handover: Handover) -> None:
        """Once a step: the model runner prepares its inputs before it binds the connector's metadata, and a
        step without a pass prepares none."""
        if self.steps is None or handover.steps is None or handover.steps is self._bound:
            return
        self._bound = handover.steps
        self.steps.bind(handover.steps)
        self._known_bad.difference_update(handover.steps.ended)
        for name, why in handover.steps.convicted.items():
            self._convict(name, why)

    def look(self, handover: Handover | None, batch: Any, scheduled: Any) -> None:
        """At the block tables of this step's batch, before the model runner uses them."""
        if handover is not None:
            self._bind_steps(handover)
        names = list(batch.req_ids[: batch.num_reqs])
        tables = [table.block_table.np for table in batch.block_table.block_tables]
        found = self.steps.check(names, tables, batch.num_computed_tokens_cpu, scheduled)
        for name, why in found.items():
            self._convict(name, why)

    def _convict(self, name: str, why: str) -> None:
        self._convicted.add(name)
        if name not in self._known_bad:
            self._known_bad.add(name)
            detail = f"rank {self.rank}: {why}"
            self.evidence.refuse(
                "refused_step_total", request=name, reason="step", policy="fail", at="step", detail=detail
            )

    def take_convicted(self) -> set[str]:
        convicted, self._convicted = self._convicted, set()
        return convicted

    def after_forward(self) -> None:
        """Takes down what this step has completed, before anybody else can have the blocks."""
        for name, states in self._to_state.items():
            self._stating[name] = [
                (state, Unread(self.sums[group].of(state.blocks))) for group, state in enumerate(states)
            ]
        self._to_state.clear()
        self._publish()

    def sending_ended(self, names: set[str], expired: set[str]) -> None:
        # In a step without a forward pass too: a consumer may be waiting for what the last one summed.
        self._publish()
        with self._lock:
            for name in names:
                for serial in self._serials.pop(name, ()):
                    if name in expired:
                        self._producer.expire(serial)

    def renew(self, remaining_s: dict[str, float]) -> None:
        """The leases of blocks that are still held, and what is left of them."""
        now = now_ms()
        with self._lock:
            for name, seconds in remaining_s.items():
                for serial in self._serials.get(name, ()):
                    self._producer.renew(serial, now + int(seconds * 1000))
            self._producer.sweep(now)

    def receiving_ended(self, finished: set[str], failed: set[str]) -> tuple[set[str], set[str]]:
        """From the transport's (finished, failed) to those that the engine may hear of."""
        report, bad = set(finished & failed), set(failed)
        for name in finished & failed:
            self._forget(name)
        for name in finished - failed:
            known = self._expect.get(name)
            if known is None:
                self._refuse(name, "refused_unguarded_total", "unannounced")
                report.add(name)
                bad.add(name)
                continue
            if self._selftest and SELFTEST in name:
                group = max(at for at, (one, _) in enumerate(known) if one.blocks)
                self._flip_one_byte(known[group][0].blocks[-1], group)
            sums = [Unread(self.sums[at].of(one.blocks)) for at, (one, _) in enumerate(known)]
            now = time.monotonic()
            self._arrived[name] = Arrived(sums, now, now + self.settings.wait_s)
        for name in list(self._arrived):
            verdict = self._compare(name)
            if verdict is not None:
                report.add(name)
                if not verdict:
                    bad.add(name)
        report |= self._refused
        bad |= self._refused
        self._refused = set()
        return report, bad

    # -- details ------------------------------------------------------------------------------

    @property
    def sums(self) -> list[BlockSums]:
        """Of each group."""
        if not self._sums:
            raise RuntimeError("KV caches were never registered")
        return self._sums

    def _publish(self) -> None:
        """In the order of the serials: behind a later one an earlier would look as if its lease had
        ended."""
        for name, states in list(self._stating.items()):
            if states[0][0].serial not in self._void:
                if not all(sums.ready() for _, sums in states):
                    break
                for group, (state, sums) in enumerate(states):
                    self._give(group, state, sums)
                self._serials[name] = [state.serial for state, _ in states]
            del self._stating[name]
        if self._void:
            left = [state.serial for states in self._stating.values() for state, _ in states]
            left += [state.serial for states in self._to_state.values() for state in states]
            self._revoke({serial for serial in self._void if serial < min(left, default=serial + 1)})

    def _give(self, group: int, state: State, sums: Unread) -> None:
        size, tokens = self.groups[group].block_size, state.tokens
        filled = [min(size, tokens - at * size) for at in range(len(state.blocks))]
        statement = Statement(
            self._epoch,
            state.serial,
            self.rank,
            state.lineage,
            state.tokens,
            self.sums[group].block_bytes,
            state.tags,
            filled,
            unsigned(sums.read()),
        )
        with self._lock:
            self._producer.state(statement, now_ms() + self._lease_ms + GRACE_MS)

    def _revoke(self, void: set[int]) -> None:
        self._void -= void
        self._serials = {n: all_ for n, all_ in self._serials.items() if not void & set(all_)}
        with self._lock:
            for serial in void:
                self._producer.revoke(serial)

    def _compare(self, name: str) -> bool | None:
        """True and False are verdicts; None: not known yet."""
        arrived = self._arrived[name]
        answers = [self._answer(name, group) for group in range(len(self._expect[name]))]
        ready = all(sums.ready() for sums in arrived.sums)
        if None in answers or not ready:
            if time.monotonic() < arrived.until:
                return None
        for group, answer in enumerate(answers):
            if answer is None or not ready:
                answer = self._late(name, group, arrived) if answer is None else self._unread(arrived)
            if (why := self._differs(name, group, answer)) is not None:
                self._forget(name)
                return self._refuse(name, *why)
        blocks = sum(len(expect.blocks) for expect, _ in self._expect[name])
        tokens = max(expect.tokens for expect, _ in self._expect[name])
        self._forget(name)
        self.evidence.count("verified_total")
        self.evidence.count("verified_blocks_total", blocks)
        self.evidence.record("verified", request=name, blocks=blocks, tokens=tokens, rank=self.rank)
        return True

    def _answer(self, name: str, group: int) -> tuple[str, Statement | None, str] | None:
        key = _key(name, group)
        if key not in self._claims and (answer := self._client.take(key)) is not None:
            self._claims[key] = answer
        return self._claims.get(key)

    def _differs(
        self, name: str, group: int, answer: tuple[str, Statement | None, str]
    ) -> tuple[str, str, str] | None:
        """Counter, reason and detail if this group's blocks are not what was stated."""
        kind, statement, detail = answer
        where = f"{self.groups[group]}, rank {self.rank}: "
        if statement is None:
            counter = REFUSALS.get(kind, "refused_statement_total")
            return counter, kind, where + (detail or WHY.get(kind, ""))
        expect, reference = self._expect[name][group]
        sums = unsigned(self._arrived[name].sums[group].read())
        first = expect.total - len(expect.blocks)
        try:
            statement.compare(
                reference,
                self.rank,
                expect.lineage,
                expect.tokens,
                self.sums[group].block_bytes,
                expect.total,
                list(enumerate(sums, first)),
            )
        except GuardFault as fault:
            return "refused_content_total", kind_of(fault), where + fault.args[1]
        return None

    def _late(self, name: str, group: int, arrived: Arrived) -> tuple[str, None, str]:
        """Blocks have arrived, and what they are compared with has not."""
        waited = f"blocks arrived {time.monotonic() - arrived.since:.1f} s ago; "
        reason, detail = self._client.waiting_for(_key(name, group)) or ("timeout", "nobody was asked")
        return reason, None, waited + detail

    def _unread(self, arrived: Arrived) -> tuple[str, None, str]:
        waited = time.monotonic() - arrived.since
        text = f"this instance's device gave no checksums of what arrived in {waited:.1f} s"
        return "unread", None, text

    def _refuse(self, name: str, counter: str, reason: str, detail: str = "") -> bool:
        policy = self.settings.policy
        self.evidence.refuse(
            counter, request=name, reason=reason, policy=policy, at="arrival", detail=detail
        )
        return False

    def _forget(self, name: str) -> None:
        self._expect.pop(name, None)
        self._arrived.pop(name, None)
        for group in range(len(self.groups)):
            self._claims.pop(_key(name, group), None)
            self._client.forget(_key(name, group))

    def _flip_one_byte(self, block: int, group: int = 0) -> None:
        import torch

        one = self.sums[group].layers[-1][block]
        kind = {1: torch.int8, 2: torch.int16, 4: torch.int32}[one.element_size()]
        element = one[(0,) * one.dim()].view(kind)
        element ^= 1

    def close(self) -> None:
        self._client.close()
        if self._server is not None:
            self._server.close()


def _key(name: str, group: int) -> str:
    """Of a claim: one for each group of a request."""
    return f"{name}\0{group}"


def _block_dim(tensor: Any, blocks: int) -> int:
    """The dimension that counts blocks; of several of that size the outermost in memory."""
    found = [dim for dim, size in enumerate(tensor.shape) if size == blocks]
    if not found:
        raise ValueError(f"no dimension of {tuple(tensor.shape)} counts {blocks} blocks")
    strides = tensor.stride() if is_torch(tensor) else tensor.strides
    return max(found, key=lambda dim: strides[dim])
