"""vLLM's NIXL pull connector with the guard around it.

    --kv-transfer-config '{"kv_connector": "GuardedNixlConnector",
                           "kv_connector_module_path": "cofferdam_guard.vllm.connector", ...}'

This file only says where each half is asked; what is decided stands in ``scheduler`` and ``worker``,
which know nothing of NIXL. ``_Nixl`` is all that does: another connector needs another such class
and the same overrides (docs/guard-vllm.md, "Other connectors").
"""

from __future__ import annotations

import os
import time
from typing import Any

import vllm

from ..versions import advice
from . import start, surface

# Before anything of vLLM's insides is imported, and long before a model is loaded.
start.early(vllm)

# ruff: noqa: E402
from vllm.distributed.kv_transfer.kv_connector.v1.base import (
    KVConnectorRole,
    KVConnectorTransferResults,
)
from vllm.distributed.kv_transfer.kv_connector.v1.nixl.connector import NixlPullConnector
from vllm.distributed.parallel_state import get_tensor_model_parallel_rank
from vllm.logger import init_logger

from .. import __version__
from ..evidence import Evidence
from ..coverage import Coverage
from . import patch
from .groups import groups_of
from .handover import FIELD
from .scheduler import SchedulerGuard
from .stats import GuardedPromMetrics, GuardedStats, with_counts
from .worker import WorkerGuard

logger = init_logger("vllm.cofferdam_guard")


class _Nixl:
    """What the guard needs to know of the pull connector's insides."""

    def __init__(self, worker: Any) -> None:
        self._worker = worker

    def leases(self) -> dict[str, float]:
        """Seconds that each held request's lease has left; below 0: it will be released now."""
        now = time.perf_counter()
        return {name: until - now for name, until in self._worker._reqs_to_send.items()}

    def require_whole_blocks(self) -> None:
        if self._worker._physical_blocks_per_logical_kv_block != 1:
            raise RuntimeError("cofferdam-guard cannot check kernel blocks smaller than KV blocks")


class GuardedNixlConnector(NixlPullConnector):
    """Nothing is read that was not computed for its reader."""

    def __init__(self, vllm_config: Any, role: KVConnectorRole, kv_cache_config: Any) -> None:
        transfer = vllm_config.kv_transfer_config
        settings, lease = start.settings_of(transfer, os.environ)
        start.require_engine(vllm)
        start.require_config(vllm_config)
        groups = groups_of(kv_cache_config)
        super().__init__(vllm_config, role, kv_cache_config)
        host, port = settings.host, start.first_port(settings, vllm_config.parallel_config)
        self._evidence = Evidence("vllm", settings.audit, logger)
        self._num_blocks = kv_cache_config.num_blocks
        self._scheduler_guard: SchedulerGuard | None = None
        self._worker_guard: WorkerGuard | None = None
        if role == KVConnectorRole.SCHEDULER:
            address = f"{host}:{port}"
            if settings.step_check:
                patch.scheduler()
            self._steps = settings.step_check
            self._scheduler_guard = SchedulerGuard(
                vllm_config, self._num_blocks, settings, self._evidence, address, groups
            )
        else:
            rank = get_tensor_model_parallel_rank()
            if settings.step_check:
                patch.runner()
            self._worker_guard = WorkerGuard(settings, self._evidence, rank, lease, groups)
            if start.serves(transfer):
                self._worker_guard.serve(host, port)
            self._nixl = _Nixl(self.connector_worker)
            self._renewed = 0.0
        if advised := advice("vLLM", vllm.__version__, surface.TRIED):
            logger.warning("cofferdam-guard: %s", advised)
        self._evidence.record(
            "started", role=role.name, version=__version__, engine=vllm.__version__, policy=settings.policy
        )
        logger.info(
            "cofferdam-guard %s is on (%s): policy %s, audit log %s",
            __version__,
            role.name,
            settings.policy,
            settings.audit or "in this log only",
        )

    # -- scheduler ----------------------------------------------------------------------------

    def bind_kv_cache_manager(self, kv_cache_manager: Any) -> None:
        super().bind_kv_cache_manager(kv_cache_manager)
        self._scheduler_guard.blocks.watch(kv_cache_manager.block_pool)
        if self._steps:
            self._scheduler_guard.plan.watch(kv_cache_manager)

    def on_new_request(self, request: Any) -> None:
        verdict = self._scheduler_guard.judge(request)
        if verdict is None or not verdict.refused:
            super().on_new_request(request)

    def get_num_new_matched_tokens(
        self, request: Any, num_computed_tokens: int
    ) -> tuple[int | None, bool]:
        refused = self._scheduler_guard.fetch_is_refused(request, num_computed_tokens)
        if refused is not None:
            return refused
        return super().get_num_new_matched_tokens(request, num_computed_tokens)

    def update_state_after_alloc(self, request: Any, blocks: Any, num_external_tokens: int) -> None:
        guard = self._scheduler_guard
        fetched: list[list[int]] = [[] for _ in guard.groups]
        if num_external_tokens > 0:
            fetched = [list(row) for row in blocks.get_unhashed_block_ids_all_groups()]
        if guard.fetch_begins(request, fetched, num_external_tokens):
            super().update_state_after_alloc(request, blocks, num_external_tokens)
            guard.prefill_begins(request)

    def build_connector_meta(self, scheduler_output: Any) -> Any:
        meta = super().build_connector_meta(scheduler_output)

        def block_ids(name: str) -> list[list[int]]:
            return self._kv_cache_manager.get_block_ids(name)

        handover = self._scheduler_guard.take_handover(
            scheduler_output.num_scheduled_tokens, block_ids
        )
        if self._steps:
            handover.steps = self._scheduler_guard.plan.take(scheduler_output)
        setattr(meta, FIELD, handover)
        return meta

    def update_connector_output(self, connector_output: Any) -> None:
        super().update_connector_output(connector_output)
        ended = set(connector_output.finished_sending or ())
        ended |= set(connector_output.finished_recving or ())
        self._scheduler_guard.transfers_ended(ended)

    def request_finished_all_groups(
        self, request: Any, block_ids: tuple[list[int], ...]
    ) -> tuple[bool, dict[str, Any] | None]:
        held, params = super().request_finished_all_groups(request, block_ids)
        self._scheduler_guard.finished(request, params, held)
        return held, params

    def request_finished(
        self, request: Any, block_ids: list[int]
    ) -> tuple[bool, dict[str, Any] | None]:
        held, params = super().request_finished(request, block_ids)
        self._scheduler_guard.finished(request, params, held)
        return held, params

    # -- workers ------------------------------------------------------------------------------

    def register_kv_caches(self, kv_caches: dict[str, Any]) -> None:
        self._worker_guard.register(kv_caches, self._num_blocks)
        super().register_kv_caches(kv_caches)
        self._nixl.require_whole_blocks()
        if self._worker_guard.steps is not None:
            patch.attach(self._worker_guard.look)
        logger.info("%s", self._coverage().line())

    def _coverage(self) -> Coverage:
        guard = self._worker_guard
        shape = f"rank {guard.rank}; {', '.join(str(group) for group in guard.groups)}"
        on = dict.fromkeys(("identity", "content", "release", "ranks", "selftest"), True)
        return Coverage(shape=shape).set(**on, step=guard.steps is not None)

    def bind_connector_metadata(self, connector_metadata: Any) -> None:
        super().bind_connector_metadata(connector_metadata)
        self._worker_guard.bind(getattr(connector_metadata, FIELD))

    def wait_for_save(self) -> None:
        super().wait_for_save()
        self._worker_guard.after_forward()

    def get_transfer_results(self, finished_req_ids: set[str]) -> KVConnectorTransferResults:
        guard = self._worker_guard
        leases = self._nixl.leases()
        results = super().get_transfer_results(finished_req_ids)
        guard.sending_ended(
            results.finished_sending, {name for name, left in leases.items() if left <= 0}
        )
        self._renew(leases)
        finished, failed = guard.receiving_ended(results.finished_recving, results.failed_recving)
        return KVConnectorTransferResults(
            finished_sending=results.finished_sending,
            finished_recving=finished,
            failed_recving=failed,
        )

    def build_connector_worker_meta(self) -> patch.Convicted | None:
        """Which requests end with this step; vLLM brings together what all ranks say."""
        convicted = self._worker_guard.take_convicted()
        return patch.Convicted(convicted) if convicted else None

    def _renew(self, leases: dict[str, float]) -> None:
        now = time.monotonic()
        if now - self._renewed >= 1.0:
            self._renewed = now
            self._worker_guard.renew(leases)

    # -- both ---------------------------------------------------------------------------------

    def get_kv_connector_stats(self) -> GuardedStats | None:
        return with_counts(super().get_kv_connector_stats(), self._evidence)

    @classmethod
    def build_kv_connector_stats(cls, data: dict[str, Any] | None = None) -> GuardedStats:
        return GuardedStats(data=data) if data is not None else GuardedStats()

    @classmethod
    def build_prom_metrics(
        cls, vllm_config: Any, metric_types: Any, labelnames: Any, per_engine_labelvalues: Any
    ) -> GuardedPromMetrics:
        return GuardedPromMetrics(vllm_config, metric_types, labelnames, per_engine_labelvalues)

    def shutdown(self) -> None:
        super().shutdown()
        if self._worker_guard is not None:
            self._worker_guard.close()
        self._evidence.close()
