"""The guard's counters on vLLM's own way to vLLM's own Prometheus registry: beside the connector's
statistics, from scheduler and workers to the API server."""

from __future__ import annotations

from typing import Any

from vllm.distributed.kv_transfer.kv_connector.v1.nixl.stats import (
    NixlKVConnectorStats,
    NixlPromMetrics,
)
from vllm.v1.metrics.utils import create_metric_per_engine

from .. import __version__
from ..core import Counters
from ..coverage import CHECKS, GAUGE
from ..evidence import PREFIX, REFUSALS, Evidence, prometheus_counters, refusals_counter
from ..settings import step_check
from . import answers

NAMES = [name for name, _ in Counters.names()] + list(REFUSALS.values())
# (request, cause, text) of refusals, on their way to the API server.
TOLD = "cofferdam_guard_told"


class GuardedStats(NixlKVConnectorStats):
    """The connector's statistics, and a list of increments for each of the guard's counters."""

    def reset(self) -> None:
        super().reset()
        self.data.update({name: [] for name in (*NAMES, TOLD)})

    def is_empty(self) -> bool:
        return super().is_empty() and not any(self.data[name] for name in (*NAMES, TOLD))

    def reduce(self) -> dict[str, int | float]:
        reduced = super().reduce()
        sums = {name: sum(self.data[name]) for name in NAMES}
        reduced["Num verified by guard"] = sums["verified_total"]
        by_cause = {cause: sums[name] for cause, name in REFUSALS.items()}
        reduced["Num refused by guard"] = sum(by_cause.values())
        reduced |= {f"Num refused ({cause})": n for cause, n in by_cause.items() if n}
        return reduced


def with_counts(stats: NixlKVConnectorStats | None, evidence: Evidence) -> GuardedStats | None:
    """The connector's statistics with what was counted since the last call, None if nothing was."""
    counts, told = evidence.take(), evidence.take_told()
    if stats is None and not counts and not told:
        return None
    guarded = GuardedStats()
    if stats is not None:
        guarded.data.update(stats.data)
    for name, count in counts.items():
        guarded.data[name].append(count)
    guarded.data[TOLD].extend(list(one) for one in told)
    return guarded


class GuardedPromMetrics(NixlPromMetrics):
    def __init__(self, vllm_config: Any, metric_types: Any, labelnames: Any, values: Any) -> None:
        super().__init__(vllm_config, metric_types, labelnames, values)
        counters = prometheus_counters(self._counter_cls, labelnames)
        self._guard = {
            name: create_metric_per_engine(counter, self.per_engine_labelvalues)
            for name, counter in counters.items()
        }
        refusals = refusals_counter(self._counter_cls, labelnames)
        self._refusals = {
            cause: {
                engine: refusals.labels(*values, cause)
                for engine, values in self.per_engine_labelvalues.items()
            }
            for cause in REFUSALS
        }
        answers.install()
        # By this a fleet's operator, or `cofferdam gate`, sees which instances are guarded.
        policy = vllm_config.kv_transfer_config.kv_load_failure_policy
        info = self._gauge_cls(
            name=PREFIX + "info",
            documentation="1 where the guard is on, with its version and policy",
            labelnames=[*labelnames, "version", "policy"],
            multiprocess_mode="mostrecent",
        )
        checks = self._gauge_cls(
            name=PREFIX + GAUGE,
            documentation="1 for each check that is made here, 0 for one that is not",
            labelnames=[*labelnames, "check"],
            multiprocess_mode="mostrecent",
        )
        for labels in self.per_engine_labelvalues.values():
            info.labels(*labels, __version__, policy).set(1)
            for name in CHECKS:
                checks.labels(*labels, name).set(int(name != "step" or step_check()))

    def observe(self, transfer_stats_data: dict[str, Any], engine_idx: int = 0) -> None:
        super().observe(transfer_stats_data, engine_idx)
        for name, counter in self._guard.items():
            if count := sum(transfer_stats_data.get(name, ())):
                counter[engine_idx].inc(count)
        for cause, name in REFUSALS.items():
            if count := sum(transfer_stats_data.get(name, ())):
                self._refusals[cause][engine_idx].inc(count)
        answers.remember(transfer_stats_data.get(TOLD, ()))
