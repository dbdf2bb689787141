"""Counters in SGLang's own Prometheus registry, and the audit log. Never prompt text.

Names and lines are the package's (`..evidence`); what only this guard counts is added here.
`prometheus_client` decides at import whether it counts over several processes, so it is imported
late: SGLang has set `PROMETHEUS_MULTIPROC_DIR` before a scheduler starts.
"""

import logging

from ..causes import CAUSES, cause_of
from ..coverage import GAUGE
from ..evidence import PREFIX, Evidence, prometheus_counters, refusals_counter

# Which of the package's counters a reason belongs to.
_COUNTER_OF = {
    "peer": "refused_unguarded_total",
    "late": "refused_statement_total",
    "unsettled": "refused_statement_total",
    "malformed": "refused_statement_total",
    "statement": "refused_statement_total",
    "identity": "refused_lineage_total",
    "count": "refused_count_total",
    "layout": "refused_count_total",
    "step": "refused_step_total",
    "held": "held_blocks_reused_total",
}
_OWN = {
    "rejected_total": "requests rejected at the door, terminally",
    "steps_checked_total": "decode steps whose block tables were compared with the tags",
    "sources_held_total": "failures told later, because a write still read the pages",
    "aborts_repeated_total": "notices of an abort sent again, for no proof of the end had come",
    "faults_injected_total": "faults made on purpose",
}
_GAUGES = {
    "ready": ("1 once every hook is in place and was seen to work", ("guard", "engine")),
    "quarantined_pages": ("pages held for writers that have not proven their end", ()),
    "quarantined_handoffs": ("handoffs whose pages are held like that", ()),
    GAUGE: ("1 for each check that is made here, 0 for one that is not", ("check",)),
}


class Record:
    """One a scheduler process. Counting and writing never raise into the engine's path."""

    def __init__(self, role: str, audit: str, metrics: bool):
        self.role = role
        self._evidence = Evidence("sglang", audit, logging.getLogger("cofferdam_guard.sglang"))
        self._counters, self._gauges = {}, {}
        self._refusals, self._metrics = None, metrics
        # Of several data-parallel ranks each counts for itself, under SGLang's own name for them.
        self._who = {"engine_type": role}

    def begin(self, rank: int = 0, ranks: int = 1) -> None:
        """Counts in the engine's registry from now on, as this data-parallel rank of so many."""
        if ranks > 1:
            self._who["dp_rank"] = str(rank)
        if not self._metrics:
            return
        from prometheus_client import Counter, Gauge

        who = list(self._who)
        labels = [*who, "reason"]
        self._counters = prometheus_counters(Counter, labels)
        for name, text in _OWN.items():
            self._counters[name] = Counter(PREFIX + name.removesuffix("_total"), text, labels)
        self._refusals = refusals_counter(Counter, who)
        for cause in CAUSES:
            self._refusals.labels(**self._who, cause=cause)
        for name, (text, more) in _GAUGES.items():
            self._gauges[name] = Gauge(
                PREFIX + name, text, (*who, *more), multiprocess_mode="max" if name.startswith("quarantined") else "mostrecent"
            )

    def count(self, name: str, n: int = 1, reason: str = "") -> None:
        """Adds to a counter."""
        if name not in _OWN:
            self._evidence.count(name, n)
        counter = self._counters.get(name)
        if counter is not None:
            counter.labels(**self._who, reason=reason).inc(n)

    def refusal(self, reason: str, **fields) -> None:
        """A refusal: counted, written down, and loud."""
        cause = cause_of(reason)
        self.count(_COUNTER_OF.get(reason, "refused_content_total"), reason=reason)
        if self._refusals is not None:
            self._refusals.labels(**self._who, cause=cause).inc()
        self.audit("refused", warn=True, reason=reason, cause=cause, **fields)

    def gauge(self, name: str, value: float, **labels: str) -> None:
        """Sets a gauge."""
        gauge = self._gauges.get(name)
        if gauge is not None:
            gauge.labels(**self._who, **labels).set(value)

    def audit(self, event: str, *, warn: bool = False, **fields) -> None:
        """One line of what happened, with identities and numbers only."""
        level = logging.WARNING if warn else logging.INFO
        try:
            self._evidence.record(event, level, role=self.role, **fields)
        except OSError as fault:
            logging.getLogger("cofferdam_guard.sglang").error(
                "cofferdam-guard: the audit log cannot be written: %s", fault
            )
