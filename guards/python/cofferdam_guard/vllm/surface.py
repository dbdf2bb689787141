"""What of vLLM the guard stands on. Data only: it is read before anything of the engine is imported
(`..sources`)."""

from __future__ import annotations

from ..sources import Difference, Function, Sources, root_of
from ..versions import UnknownEngine

TRIED = ["0.32.0"]

_NIXL = "vllm.distributed.kv_transfer.kv_connector.v1.nixl."
_PULL = _NIXL + "connector:NixlPullConnector."
_BASE = "vllm.distributed.kv_transfer.kv_connector.v1.base:"


def _f(target: str, parameters: str) -> Function:
    return Function(target, tuple(parameters.split()), exact=False)


FUNCTIONS = [
    _f(_PULL + "__init__", "self vllm_config role kv_cache_config"),
    _f(_PULL + "on_new_request", "self request"),
    _f(_PULL + "get_num_new_matched_tokens", "self request num_computed_tokens"),
    _f(_PULL + "update_state_after_alloc", "self request blocks"),
    _f(_PULL + "build_connector_meta", "self scheduler_output"),
    _f(_PULL + "update_connector_output", "self connector_output"),
    _f(_PULL + "request_finished", "self request block_ids"),
    _f(_PULL + "request_finished_all_groups", "self request block_ids"),
    _f(_PULL + "register_kv_caches", "self kv_caches"),
    _f(_PULL + "get_transfer_results", "self finished_req_ids"),
    _f(_PULL + "wait_for_save", "self"),
    _f(_PULL + "get_kv_connector_stats", "self"),
    _f(_PULL + "build_kv_connector_stats", "cls data"),
    _f(
        _PULL + "build_prom_metrics",
        "cls vllm_config metric_types labelnames per_engine_labelvalues",
    ),
    _f(_PULL + "shutdown", "self"),
    _f(_BASE + "KVConnectorBase_V1.bind_connector_metadata", "self connector_metadata"),
    _f(_BASE + "KVConnectorBase_V1.bind_kv_cache_manager", "self kv_cache_manager"),
    _f(_NIXL + "pull_scheduler:NixlPullConnectorScheduler.request_finished", "self request block_ids"),
    _f("vllm.v1.core.block_pool:BlockPool.get_new_blocks", "self num_blocks"),
    _f("vllm.v1.core.block_pool:BlockPool.free_blocks", "self ordered_blocks"),
    _f("vllm.v1.core.kv_cache_manager:KVCacheManager.get_block_ids", "self request_id"),
    _f("vllm.v1.core.kv_cache_manager:KVCacheManager.allocate_slots", "self request"),
    # Wrapped, for the check of every step.
    _f(
        "vllm.v1.worker.gpu_model_runner:GPUModelRunner._prepare_inputs",
        "self scheduler_output num_scheduled_tokens",
    ),
    _f(
        "vllm.v1.core.sched.scheduler:Scheduler.update_from_output",
        "self scheduler_output model_runner_output",
    ),
    _f(
        "vllm.v1.core.sched.scheduler:Scheduler.finish_requests",
        "self request_ids finished_status",
    ),
    _f(
        "vllm.v1.core.kv_cache_manager:KVCacheBlocks.get_unhashed_block_ids_all_groups",
        "self",
    ),
    _f(
        "vllm.v1.metrics.utils:create_metric_per_engine",
        "metric per_engine_labelvalues",
    ),
    _f(
        _NIXL + "stats:NixlPromMetrics.__init__",
        "self vllm_config metric_types labelnames per_engine_labelvalues",
    ),
    _f(
        "vllm.entrypoints.generate.base.serving:GenerateBaseServing._raise_if_error",
        "self finish_reason request_id",
    ),
]

NAMES = [
    _BASE + "KVConnectorRole",
    _BASE + "KVConnectorTransferResults",
    _BASE + "KVConnectorTransferResults.finished_sending",
    _BASE + "KVConnectorTransferResults.finished_recving",
    _BASE + "KVConnectorTransferResults.failed_recving",
    _NIXL + "stats:NixlKVConnectorStats.is_empty",
    _NIXL + "stats:NixlKVConnectorStats.reduce",
    _NIXL + "stats:NixlKVConnectorStats.reset",
    _NIXL + "base_worker:NixlBaseConnectorWorker._reqs_to_send",
    _NIXL + "base_worker:NixlBaseConnectorWorker._physical_blocks_per_logical_kv_block",
    "vllm.distributed.parallel_state:get_tensor_model_parallel_rank",
    "vllm.exceptions:GenerationError",
    _BASE + "KVConnectorWorkerMetadata",
    _BASE + "KVConnectorBase_V1.build_connector_worker_meta",
    "vllm.v1.outputs:KVConnectorOutput.kv_connector_worker_meta",
    "vllm.v1.engine:EngineCoreOutput",
    "vllm.v1.engine:EngineCoreOutputs",
    "vllm.v1.request:RequestStatus.FINISHED_ERROR",
    "vllm.v1.core.sched.output:SchedulerOutput.scheduled_new_reqs",
    "vllm.v1.core.sched.output:SchedulerOutput.scheduled_cached_reqs",
    "vllm.v1.core.sched.output:SchedulerOutput.finished_req_ids",
    "vllm.v1.core.sched.output:SchedulerOutput.kv_connector_metadata",
    "vllm.v1.core.sched.output:CachedRequestData.resumed_req_ids",
    "vllm.v1.core.sched.output:CachedRequestData.new_block_ids",
    "vllm.v1.core.sched.output:NewRequestData.block_ids",
    "vllm.v1.worker.block_table:BlockTable.block_table",
    "vllm.v1.worker.block_table:MultiGroupBlockTable.block_tables",
    "vllm.logger:init_logger",
]


def require(found: str, sources: Sources | None = None) -> None:
    """Raises `UnknownEngine` for a vLLM that the guard must not be run with. Looks at files: nothing but
    the package itself is imported."""
    if sources is None:
        root = root_of("vllm")
        if root is None:
            raise UnknownEngine("vLLM's files are not there")
        sources = Sources(root)
    wrong = sources.differences(FUNCTIONS, NAMES)
    if wrong:
        raise UnknownEngine(_does_not_fit(found, wrong))


def _does_not_fit(found: str, wrong: list[Difference]) -> str:
    lines = "".join(f"\n  {one}" for one in wrong)
    return (
        f"vLLM {found} is not what the guard was written for. Of what it stands on, these differ here:"
        f"{lines}\n"
        f"It would protect nothing. Install a vLLM that was tried ({', '.join(TRIED)}), or use vLLM's own "
        "connector without the guard."
    )
