"""Counters in SGLang's own Prometheus registry, and the audit log. Never prompt text.

`prometheus_client` decides at import whether it counts over several processes, so it is imported
here late: SGLang has set `PROMETHEUS_MULTIPROC_DIR` before a scheduler starts.
"""

import json
import logging
import threading
import time

logger = logging.getLogger("cofferdam_guard.sglang")

_COUNTERS = {
    "rejected": ("requests rejected at the door, terminally", ("side",)),
    "refused": ("handoffs or steps refused by a check", ("reason",)),
    "handoffs": ("handoffs verified page by page before their first step", ()),
    "pages_verified": ("pages whose tag and bytes were what they should be", ()),
    "steps_checked": ("decode steps whose block tables were compared with the tags", ()),
    "sources_held": ("times prefill's pages were kept because a write was not proven ended", ()),
    "aborts_repeated": ("abort notices sent again because no proof of the end had come", ()),
    "faults_injected": ("faults made on purpose", ("kind",)),
}
_GAUGES = {
    "ready": ("1 while every hook is in place and was seen to work", ("guard", "engine")),
    "quarantined_pages": ("pages held for writers that have not proven their end", ()),
    "quarantined_handoffs": ("handoffs whose pages are held like that", ()),
}


class Record:
    """One a scheduler process. Counting and logging never raise into the engine's path."""

    def __init__(self, role: str, audit_path: str | None, metrics: bool):
        self.role = role
        self.totals: dict[str, int] = {}
        self._metrics = {}
        self._lock = threading.Lock()
        self._audit = open(audit_path, "a", buffering=1, encoding="utf-8") if audit_path else None
        if metrics:
            self._register()

    def _register(self) -> None:
        from prometheus_client import Counter, Gauge

        for name, (text, labels) in _COUNTERS.items():
            self._metrics[name] = Counter(
                f"cofferdam_guard_{name}", text, ("engine_type", *labels)
            )
        for name, (text, labels) in _GAUGES.items():
            self._metrics[name] = Gauge(
                f"cofferdam_guard_{name}",
                text,
                ("engine_type", *labels),
                multiprocess_mode="mostrecent",
            )

    def count(self, name: str, n: int = 1, **labels: str) -> None:
        """Adds to a counter."""
        with self._lock:
            self.totals[name] = self.totals.get(name, 0) + n
        metric = self._metrics.get(name)
        if metric is not None:
            metric.labels(engine_type=self.role, **labels).inc(n)

    def gauge(self, name: str, value: float, **labels: str) -> None:
        """Sets a gauge."""
        metric = self._metrics.get(name)
        if metric is not None:
            metric.labels(engine_type=self.role, **labels).set(value)

    def audit(self, event: str, *, warn: bool = False, **fields) -> None:
        """One line of what happened, with identities and numbers only."""
        line = {"time": round(time.time(), 3), "role": self.role, "event": event}
        for name, value in fields.items():
            line[name] = value[:256] if isinstance(value, str) else value
        text = json.dumps(line, default=str)
        if warn:
            logger.warning("cofferdam-guard: %s", text)
        if self._audit is None:
            return
        try:
            with self._lock:
                self._audit.write(text + "\n")
        except OSError as fault:
            logger.error("cofferdam-guard: the audit log cannot be written: %s", fault)
