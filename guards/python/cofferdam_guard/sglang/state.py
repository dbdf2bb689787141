"""What the guard of one scheduler process knows. Hooks find it through `here()`.

SGLang has one scheduler thread, a thread that hears from the peer, and on prefill a few transfer
workers. A value that more than one of them touches is either behind `lock` or replaced as a whole.
"""

import logging
import threading
import time
from collections import deque
from dataclasses import dataclass, field
from typing import Any

import torch

from .. import causes, core
from ..tensors import Unread
from . import pages as page
from . import wire
from .config import Config
from .ranks import Ranks
from .record import Record


@dataclass
class Reservation:
    """Decode: pages reserved for one request, and what must arrive in them."""

    room: int
    nonce: int
    rid: str
    indices: torch.Tensor
    pages: list[int]
    tokens: int
    metadata_index: int
    verified: bool = False
    # Since when everything has arrived, by prefill's word.
    arrived_at: float | None = None
    # What was found of each page that has arrived, once it was looked at.
    reasons: Unread | None = None
    # The ledger's hold for prefill's writing; ended by proof only.
    hold: int | None = None


@dataclass
class Handoff:
    """Prefill: a request whose pages go to the holder of a ticket."""

    room: int
    ticket: wire.Ticket
    req: Any
    tags: page.Tags
    # Sums of the pages of each chunk, by the ordinal of its first page.
    sums: dict[int, torch.Tensor] = field(default_factory=dict)
    sent: int = 0
    unsettled: bool = False
    answered: bool = False
    since: float = field(default_factory=time.monotonic)


class Guard:
    """State and the few acts that several hooks share."""

    def __init__(self, config: Config, role: str, record: Record):
        self.config = config
        # Who computes the same requests, each with its share of every page.
        self.ranks = Ranks()
        # Which data-parallel rank this is and of how many; each has requests, pages and tags of its own.
        self.data_parallel = (0, 1)
        self.role = role
        self.record = record
        self.lock = threading.Lock()
        self.key_words = page.key_words(config.key)
        self.scheduler: Any = None
        self.kv: page.KvBytes | None = None
        self.table: page.TagTable | None = None
        self.staging: dict[int, torch.Tensor] = {}
        self.page_size = 1
        # What both sides call the model; set when the scheduler is known.
        self.model = ""
        # Decode: which pages may not be given out again, whatever the engine's allocator thinks.
        self.ledger: core.Ledger | None = None
        # Decode: the frame that the message under construction is to carry; pages held too long.
        self.frame: bytes | None = None
        self.held_pages = 0
        # Prefill, by room.
        self.handoffs: dict[int, Handoff] = {}
        # Chunks enqueued and not finished, by room.
        self.outstanding: dict[int, int] = {}
        # Answers that replace what the engine would say, by room.
        self.verdicts: dict[int, tuple[str, int, float]] = {}
        # Rooms rejected at this door, and peers that have asked for rooms: one of them is first.
        self.rejected: dict[int, tuple[wire.Rejection, float]] = {}
        self.asked: dict[int, tuple[Any, float]] = {}
        # Rejected rooms that were asked for all the same, to be forgotten.
        self.orphans: deque[tuple[int, float]] = deque()
        self.kv_manager: Any = None
        self.local = threading.local()
        self._swept = time.monotonic()

    # -- identities ---------------------------------------------------------------------------

    def tags(self, nonce: int, room: int, count: int) -> page.Tags:
        """Tags of one handoff under this process's key."""
        return page.Tags(self.key_words, nonce, room, count)

    def tokens(self, req) -> list[int]:
        """The prompt that prefill is to compute: after a retraction with what was generated."""
        if getattr(req, "pd_rebootstrap_in_progress", False):
            return req.origin_input_ids + req.output_ids
        return req.origin_input_ids

    def lineage(self, req, tokens) -> bytes:
        """Keyed digest of what this request may attend to: tokens, model, adapter, salt."""
        return self.config.secret.lineage(
            list(tokens),
            self.model,
            adapter=str(req.lora_id) if getattr(req, "lora_id", None) else None,
            salt=str(req.extra_key) if getattr(req, "extra_key", None) else None,
        )

    # -- verdicts -----------------------------------------------------------------------------

    def decide(self, room: int, message: str, status: int) -> None:
        """What the client of this room is told when the engine ends the request. First one wins."""
        self.verdicts.setdefault(room, (message, status, time.monotonic()))

    def refuse(self, room: int, rid: str, reason: str, detail: str, found_here: bool = True) -> str:
        """Records a refusal, and counts it on the rank that found it; returns the message for the
        client."""
        cause = causes.cause_of(reason)
        message = causes.message(cause, reason, detail)
        facts = {"room": room, "rid": rid, "detail": detail}
        if self.ranks.size > 1:
            facts["rank"] = self.ranks.rank
        if self.data_parallel[1] > 1:
            facts["dp_rank"] = self.data_parallel[0]
        if found_here:
            self.record.refusal(reason, **facts)
        else:
            self.record.audit("refused by another rank", reason=reason, **facts)
        self.decide(room, message, causes.status_of(cause))
        return message

    # -- housekeeping -------------------------------------------------------------------------

    def sweep(self, older_than: float = 900.0) -> list[int]:
        """Forgets rooms nobody came back to; returns those that had been asked for."""
        now = time.monotonic()
        if now - self._swept < 1.0:
            return []
        self._swept = now
        gone = [room for room, (_, _, at) in list(self.verdicts.items()) if now - at > older_than]
        for room in gone:
            self.verdicts.pop(room, None)
        with self.lock:
            for room, (_, at) in list(self.rejected.items()):
                if now - at > older_than:
                    del self.rejected[room]
            # The engine drops some requests without clearing their sender.
            for room, handoff in list(self.handoffs.items()):
                done = not handoff.unsettled and room not in self.outstanding
                if done and now - handoff.since > older_than:
                    del self.handoffs[room]
            orphans = [room for room, (_, at) in self.asked.items() if now - at > older_than]
            for room in orphans:
                del self.asked[room]
        return orphans


_guard: Guard | None = None


def put(guard: Guard) -> None:
    """Makes this process's guard known to the hooks."""
    global _guard
    _guard = guard


def here() -> Guard:
    """This process's guard; before the scheduler is set up there is none, and nothing to guard."""
    if _guard is None:
        raise RuntimeError("cofferdam-guard: a hook ran before the guard was set up")
    return _guard


def is_fake(req) -> bool:
    """Whether SGLang pretends this handoff (health checks); the answer goes to nobody."""
    from sglang.srt.disaggregation.utils import _is_fake_transfer

    return _is_fake_transfer(req)


def logger_of() -> logging.Logger:
    """The guard's logger; SGLang's own settings decide where it goes."""
    return logging.getLogger("cofferdam_guard.sglang")
