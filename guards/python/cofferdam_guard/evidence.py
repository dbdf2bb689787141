"""Counters and the audit log of one process."""

from __future__ import annotations

import logging
import os
import threading
import time
from typing import Any

from .causes import CAUSES, cause_of, message
from .core import Counters, audit_line

PREFIX = "cofferdam_guard_"
# Refusals of each cause, under a name for each where the engine counts by names alone.
REFUSALS = {cause: f"refusals_{cause}" for cause in CAUSES}
# Refusals that are on their way to whoever answers the client.
TOLD_MAX = 1024
logger = logging.getLogger("cofferdam_guard")


class Evidence:
    """What happened in this process: counted, and written down a line at a time.

    Never given a prompt: requests appear by the engine's id, prompts by their keyed lineage."""

    def __init__(self, engine: str, path: str = "", log: logging.Logger | None = None) -> None:
        self.engine = engine
        self.counters = Counters()
        self._refusals = dict.fromkeys(REFUSALS.values(), 0)
        self._told: list[tuple[str, str, str]] = []
        self._log = log or logger
        self._lock = threading.Lock()
        # Append-only and one write a line, so that several processes share one file.
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC
        self._file = os.open(path, flags, 0o640) if path else None

    def count(self, name: str, n: int = 1) -> None:
        with self._lock:
            self.counters.add(name, n)

    def take(self) -> dict[str, int]:
        """Counts since the last call, to be added to the engine's registry."""
        with self._lock:
            counts = dict(self.counters.take())
            counts |= {name: n for name, n in self._refusals.items() if n}
            self._refusals = dict.fromkeys(self._refusals, 0)
            return counts

    def take_told(self) -> list[tuple[str, str, str]]:
        """(request, cause, what the client is to be told) of refusals since the last call."""
        with self._lock:
            told, self._told = self._told, []
            return told

    def record(self, event: str, level: int = logging.INFO, **fields: Any) -> None:
        """One line in the audit log; refusals and worse in the engine's log too."""
        text = {name: str(value) for name, value in fields.items() if value is not None}
        line = audit_line(int(time.time() * 1000), self.engine, event, text)
        if level >= logging.WARNING:
            self._log.log(level, "cofferdam-guard: %s", line)
        if self._file is not None:
            os.write(self._file, line.encode() + b"\n")

    def refuse(self, counter: str, *, reason: str, request: str, detail: str = "", **fields: Any) -> str:
        """A refusal: counted, written down, and loud. Gives its cause."""
        cause = cause_of(reason, counter)
        with self._lock:
            self.counters.add(counter, 1)
            self._refusals[REFUSALS[cause]] += 1
            # Whose prompt is computed anew is answered as if nothing had been.
            if fields.get("policy") != "recompute" and len(self._told) < TOLD_MAX:
                self._told.append((request, cause, message(cause, reason)))
        self.record(
            "refused",
            logging.ERROR,
            request=request,
            reason=reason,
            cause=cause,
            detail=detail or None,
            **fields,
        )
        return cause

    def close(self) -> None:
        if self._file is not None:
            os.close(self._file)
            self._file = None


def prometheus_counters(counter_class: Any, labelnames: list[str]) -> dict[str, Any]:
    """One counter of the engine's own class for everything that is counted."""
    made = {}
    for name, meaning in Counters.names():
        plain = PREFIX + name.removesuffix("_total")
        made[name] = counter_class(name=plain, documentation=meaning, labelnames=labelnames)
    return made


def refusals_counter(counter_class: Any, labelnames: list[str]) -> Any:
    """Refusals by cause, in the engine's own class."""
    meaning = "; ".join(f"{cause}: {text}" for cause, text in CAUSES.items())
    return counter_class(
        name=PREFIX + "refusals",
        documentation=f"requests refused, by cause ({meaning})",
        labelnames=[*labelnames, "cause"],
    )
