"""Counters and the audit log of one process."""

from __future__ import annotations

import logging
import os
import threading
import time
from typing import Any

from .core import Counters, audit_line

PREFIX = "cofferdam_guard_"
logger = logging.getLogger("cofferdam_guard")


class Evidence:
    """What happened in this process: counted, and written down a line at a time.

    Never given a prompt: requests appear by the engine's id, prompts by their keyed lineage."""

    def __init__(self, engine: str, path: str = "", log: logging.Logger | None = None) -> None:
        self.engine = engine
        self.counters = Counters()
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
            return self.counters.take()

    def record(self, event: str, level: int = logging.INFO, **fields: Any) -> None:
        """One line in the audit log; refusals and worse in the engine's log too."""
        text = {name: str(value) for name, value in fields.items() if value is not None}
        line = audit_line(int(time.time() * 1000), self.engine, event, text)
        if level >= logging.WARNING:
            self._log.log(level, "cofferdam-guard: %s", line)
        if self._file is not None:
            os.write(self._file, line.encode() + b"\n")

    def refuse(self, counter: str, **fields: Any) -> None:
        """A refusal: counted, written down, and loud."""
        self.count(counter)
        self.record("refused", logging.ERROR, **fields)

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
