"""What the scheduler's half of the guard tells the workers' half with each step's metadata."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any

from .steps import Steps

# The guard's field in kv_transfer_params, and on the connector's metadata.
FIELD = "cofferdam_guard"


@dataclass
class State:
    """The blocks of this prompt in one group are complete after this step: take down what is in them."""

    serial: int
    lineage: bytes
    tokens: int
    blocks: list[int]
    tags: list[int]


@dataclass
class Expect:
    """Blocks of this prompt in one group are fetched: compare them before anybody is told that they are
    here."""

    reference: str
    lineage: bytes
    # Tokens and blocks that are stated of this group, and those of the blocks that are fetched: the last.
    tokens: int
    total: int
    blocks: list[int]


@dataclass
class Handover:
    epoch: bytes
    # By request; one for each group of KV caches.
    state: dict[str, list[State]] = field(default_factory=dict)
    expect: dict[str, list[Expect]] = field(default_factory=dict)
    # Refused at the door: reported as failed loads, nothing is fetched.
    refused: list[str] = field(default_factory=list)
    # References whose requests were given up.
    void: list[int] = field(default_factory=list)
    # What each request's block tables must show in this step; none where steps are not checked.
    steps: Steps | None = None


def bound_parameters(params: dict[str, Any]) -> bytes:
    """The engine's own handoff parameters that a reference is bound to, canonically written."""
    names = (
        "remote_block_ids",
        "remote_engine_id",
        "remote_request_id",
        "remote_host",
        "remote_port",
        "remote_num_tokens",
        "tp_size",
        "dcp_size",
        "pp_size",
        "transfer_mode",
    )
    return json.dumps([params.get(name) for name in names], separators=(",", ":")).encode()
