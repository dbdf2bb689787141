"""The scheduler's half: the door (lineage, single use), references, generations, holds."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass, field
from typing import Any

from ..core import GuardFault, Seen, kind_of
from ..evidence import Evidence
from ..settings import RECOMPUTE, Settings
from .blocks import BlockGuard
from .groups import Group
from .handover import FIELD, Expect, Handover, State, bound_parameters
from .steps import Plan

# References that a decode instance remembers; the prefill instance is the authority beyond.
SEEN_MAX = 1 << 16


@dataclass
class Verdict:
    refused: bool
    # One for each group.
    references: list[str] = field(default_factory=list)
    lineage: bytes = b""


class SchedulerGuard:
    def __init__(
        self,
        vllm_config: Any,
        blocks: int,
        settings: Settings,
        evidence: Evidence,
        address: str,
        groups: list[Group],
    ) -> None:
        self.settings, self.evidence, self.address = settings, evidence, address
        self.groups = groups
        self.ranks = vllm_config.parallel_config.tensor_parallel_size
        self.model = _model_name(vllm_config)
        self.blocks = BlockGuard(blocks, max(group.block_size for group in groups), evidence)
        self.epoch = os.urandom(16)
        self._serial = 0
        self._seen = Seen(SEEN_MAX)
        self._judged = Seen(SEEN_MAX)
        self._verdicts: dict[str, Verdict] = {}
        self._prefilling: dict[str, Any] = {}
        self._stated: dict[str, list[State]] = {}
        self._next = Handover(self.epoch)
        self.plan = Plan(self.blocks, self.domain)

    # -- consumer: the door -------------------------------------------------------------------

    def judge(self, request: Any) -> Verdict | None:
        """The verdict over a request that names remote blocks, once; None if it names none."""
        if (known := self._verdicts.get(request.request_id)) is not None:
            return known
        params = request.kv_transfer_params
        if not params or not _names_blocks(params):
            return None
        if request.abort_immediately:
            verdict = Verdict(refused=not self._may_free(params))
        else:
            verdict = self._judge(request, params)
        self._verdicts[request.request_id] = verdict
        if verdict.refused:
            # Nothing of the stock connector may act on these parameters: not even the note that
            # tells the producer to free somebody else's blocks.
            for name in ("do_remote_prefill", "remote_block_ids"):
                params[name] = None
        return verdict

    def _judge(self, request: Any, params: dict[str, Any]) -> Verdict:
        text = params.get(FIELD)
        if not isinstance(text, str) or not params.get("do_remote_prefill"):
            return self._refuse(request, "refused_unguarded_total", "no_reference")
        lineage = self.lineage(request)
        if lineage is None:
            return self._refuse(request, "refused_lineage_total", "prompt_embeds")
        theirs = params.get("tp_size", self.ranks)
        if theirs != self.ranks:
            why = f"prefill has {theirs} ranks, decode {self.ranks}: give both the same tensor parallelism"
            return self._refuse(request, "refused_lineage_total", "ranks", why)
        tokens = len(request.prompt_token_ids)
        if short := [str(g) for g in self.groups if g.first_read(tokens) < g.first(tokens)]:
            why = f"prefill has given back a block that decode reads to compute the last token: {short[0]}"
            return self._refuse(request, "refused_lineage_total", "window", why)
        try:
            references = self._open(text)
            for reference in references:
                self._judged.first_use(reference)
            self._admit(references, params, lineage, tokens)
        except GuardFault as fault:
            return self._refuse(request, "refused_lineage_total", kind_of(fault))
        if not all([self._seen.first_use(reference) for reference in references]):
            return self._refuse(request, "refused_reuse_total", "used_here")
        return Verdict(False, text.split(","), lineage)

    def _open(self, text: str) -> list[Any]:
        """The references of all groups; raises `GuardFault`."""
        written = text.split(",")
        if len(written) != len(self.groups):
            ours = f"{len(written)} references, this model has {len(self.groups)} groups of KV caches"
            raise GuardFault("layout", ours)
        return [self.settings.secret.open_reference(one) for one in written]

    def _admit(
        self, references: list[Any], params: dict[str, Any], lineage: bytes | None = None, tokens: int = 0
    ) -> None:
        """Raises `GuardFault` unless each is for its own group, these parameters and this prompt; without
        one: whatever prompt it names."""
        for group, reference in zip(self.groups, references, strict=True):
            covered = group.covered(tokens) if lineage is not None else reference.tokens
            bound = bound_parameters(params) + group.bound()
            reference.admits(lineage or reference.lineage, covered, bound)

    def _may_free(self, params: dict[str, Any]) -> bool:
        """vLLM's note, without the prompt, that a request was turned away: whether the producer may
        be told to free its blocks. Only for references that are genuine and that nobody has shown
        here before: what was refused here may still be somebody else's."""
        try:
            references = self._open(str(params.get(FIELD)))
            self._admit(references, params)
        except GuardFault:
            return False
        return all([self._judged.first_use(reference) for reference in references])

    def _refuse(self, request: Any, counter: str, reason: str, detail: str = "") -> Verdict:
        self.evidence.refuse(
            counter,
            request=request.request_id,
            reason=reason,
            detail=detail,
            policy=self.settings.policy,
            at="door",
        )
        return Verdict(True)

    def fetch_is_refused(self, request: Any, computed: int) -> tuple[int, bool] | None:
        """What ``get_num_new_matched_tokens`` says for a refused request; None for others.

        With policy ``recompute`` nothing is fetched. With ``fail`` the request waits as if for a
        load, and the workers report that load as failed: the way on which vLLM answers an error.
        """
        verdict = self.judge(request)
        if verdict is None or not verdict.refused:
            return None
        tokens = len(request.prompt_token_ids or []) - computed
        if self.settings.policy == RECOMPUTE or tokens <= 0 or request.num_preemptions:
            return 0, False
        return tokens, True

    def fetch_begins(self, request: Any, rows: list[list[int]], external: int) -> bool:
        """Blocks were allocated, of each group those that are to be fetched. False: the stock connector must not hear of it (refused)."""
        verdict = self._verdicts.get(request.request_id)
        if verdict is None:
            return True
        if verdict.refused:
            if external > 0:
                self._next.refused.append(request.request_id)
            return external == 0  # computed here, by parameters that name nothing remote any more
        if external > 0 and (request.kv_transfer_params or {}).get("do_remote_prefill"):
            tokens, expected = len(request.prompt_token_ids), []
            for group, reference, row in zip(self.groups, verdict.references, rows, strict=True):
                total = group.stated(tokens)
                # What lies before the window is fetched too, and read by nobody.
                expected.append(
                    Expect(reference, verdict.lineage, group.covered(tokens), total, row[-total:])
                )
            self._next.expect[request.request_id] = expected
            self.blocks.hold(request.request_id, [b for row in rows for b in row], writes=True)
        return True

    # -- producer: statements and references --------------------------------------------------

    def prefill_begins(self, request: Any) -> None:
        if (request.kv_transfer_params or {}).get("do_remote_decode"):
            self._prefilling[request.request_id] = request

    def take_handover(self, scheduled: dict[str, int], block_ids: Any) -> Handover:
        """This step's message to the workers. ``block_ids(request)`` gives its blocks, a row a group."""
        for name, request in list(self._prefilling.items()):
            done = request.num_computed_tokens + scheduled.get(name, 0)
            if name in scheduled and done >= request.num_prompt_tokens:
                del self._prefilling[name]
                self._state(request, block_ids(name))
        handover, self._next = self._next, Handover(self.epoch)
        return handover

    def _state(self, request: Any, rows: list[list[int]]) -> None:
        lineage, tokens = self.lineage(request), request.num_prompt_tokens
        states = []
        for group, row in zip(self.groups, rows, strict=True):
            blocks = list(row)[group.first(tokens) : group.total(tokens)]
            tags = self.blocks.ledger.tags(blocks)
            if lineage is None or 0 in tags or len(blocks) != group.stated(tokens):
                return  # no reference will be given: the consumer refuses
            self._serial += 1
            states.append(State(self._serial, lineage, group.covered(tokens), blocks, tags))
        name = request.request_id
        self._next.state[name] = self._stated[name] = states

    def finished(self, request: Any, params: dict[str, Any] | None, held: bool) -> None:
        """Adds a reference for each group to what the stock connector hands out, if everything fits."""
        name = request.request_id
        self._prefilling.pop(name, None)
        self._verdicts.pop(name, None)
        stated = self._stated.pop(name, None)
        if stated is None:
            return
        if not (params and held and params.get("do_remote_prefill") and self._fits(request, params, stated)):
            self._next.void.extend(one.serial for one in stated)
            return
        params[FIELD] = ",".join(
            self.settings.secret.sign_reference(
                self.epoch,
                one.serial,
                one.lineage,
                one.tokens,
                self.address,
                bound_parameters(params) + group.bound(),
                one.tags,
            )
            for group, one in zip(self.groups, stated, strict=True)
        )
        self.blocks.hold(name, [block for one in stated for block in one.blocks])
        self.evidence.count("stated_total")

    def _fits(self, request: Any, params: dict[str, Any], stated: list[State]) -> bool:
        """Whether what is handed out is what was stated, still under the same tags and in the request's domain.
        Blocks that the window has left are block 0, which nobody owns."""
        given = [[block for block in row if block] for row in params["remote_block_ids"]]
        if given != [one.blocks for one in stated]:
            return False
        domain = self.domain(request) if self.blocks.with_steps else 0
        try:
            for one in stated:
                self.blocks.ledger.check(one.blocks, one.tags, domain)
        except GuardFault:
            return False
        return True

    def transfers_ended(self, names: set[str]) -> None:
        """Workers have reported these as drained; called before vLLM frees their blocks."""
        for name in names:
            self.blocks.end_hold(name)

    def domain(self, request: Any) -> int:
        """The isolation domain: whoever has the same salt and adapter may share blocks."""
        adapter = request.lora_request.lora_name if request.lora_request else None
        if request.cache_salt is None and adapter is None:
            return 0
        return self.settings.secret.domain(json.dumps([request.cache_salt, adapter]).encode())

    def lineage(self, request: Any) -> bytes | None:
        """None for prompts that are no tokens."""
        if request.prompt_token_ids is None or request.prompt_embeds is not None:
            return None
        adapter = request.lora_request.lora_name if request.lora_request else None
        extra = None
        if request.mm_features:
            names = [f"{f.identifier}@{f.mm_position.offset}" for f in request.mm_features]
            extra = "\0".join(names).encode()
        tokens = list(request.prompt_token_ids)
        return self.settings.secret.lineage(tokens, self.model, adapter, request.cache_salt, extra)


def _names_blocks(params: dict[str, Any]) -> bool:
    return bool(params.get("do_remote_prefill") or params.get("remote_block_ids"))


def _model_name(vllm_config: Any) -> str:
    """The model as the fleet names it; paths may differ from machine to machine."""
    named = vllm_config.kv_transfer_config.get_from_extra_config("guard_model", None)
    model = vllm_config.model_config
    return str(named or f"{model.model}@{model.revision or ''}")
