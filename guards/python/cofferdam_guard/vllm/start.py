"""What must hold before the guard starts: a known engine, known internals, a layout it can check."""

from __future__ import annotations

from typing import Any

import vllm
from vllm.distributed.kv_transfer.kv_connector.v1 import base
from vllm.distributed.kv_transfer.kv_connector.v1.nixl.connector import NixlPullConnector
from vllm.distributed.kv_transfer.kv_connector.v1.nixl.pull_scheduler import (
    NixlPullConnectorScheduler,
)
from vllm.v1.core.block_pool import BlockPool
from vllm.v1.core.kv_cache_manager import KVCacheManager

from ..settings import BadSettings
from ..versions import require_signatures, require_version

SUPPORTED = ["0.32.0"]


def require_engine(force: bool) -> bool:
    """Whether this vLLM was tested with; raises if it must not be run with."""
    tested = require_version("vLLM", vllm.__version__, SUPPORTED, force)
    connector = NixlPullConnector
    require_signatures(
        [
            (connector.__init__, ["self", "vllm_config", "role", "kv_cache_config"]),
            (connector.on_new_request, ["self", "request"]),
            (connector.get_num_new_matched_tokens, ["self", "request", "num_computed_tokens"]),
            (connector.update_state_after_alloc, ["self", "request", "blocks"]),
            (connector.build_connector_meta, ["self", "scheduler_output"]),
            (connector.update_connector_output, ["self", "connector_output"]),
            (connector.request_finished_all_groups, ["self", "request", "block_ids"]),
            (connector.register_kv_caches, ["self", "kv_caches"]),
            (connector.get_transfer_results, ["self", "finished_req_ids"]),
            (connector.wait_for_save, ["self"]),
            (base.KVConnectorBase_V1.bind_connector_metadata, ["self", "connector_metadata"]),
            (base.KVConnectorBase_V1.bind_kv_cache_manager, ["self", "kv_cache_manager"]),
            (NixlPullConnectorScheduler.request_finished, ["self", "request", "block_ids"]),
            (BlockPool.get_new_blocks, ["self", "num_blocks"]),
            (BlockPool.free_blocks, ["self", "ordered_blocks"]),
            (KVCacheManager.get_block_ids, ["self", "request_id"]),
        ]
    )
    return tested


def require_layout(vllm_config: Any, kv_cache_config: Any) -> None:
    """The guard checks what it can check and starts nowhere else: it would look like protection."""
    parallel, transfer = vllm_config.parallel_config, vllm_config.kv_transfer_config
    wrong = []
    if len(kv_cache_config.kv_cache_groups) != 1:
        wrong.append("models with several groups of KV caches (hybrid, Mamba)")
    if parallel.pipeline_parallel_size != 1:
        wrong.append("pipeline parallelism")
    if parallel.decode_context_parallel_size != 1 or parallel.prefill_context_parallel_size != 1:
        wrong.append("context parallelism")
    if transfer.get_from_extra_config("bidirectional_kv_xfer", False):
        wrong.append("bidirectional_kv_xfer")
    if vllm_config.speculative_config is not None:
        wrong.append("speculative decoding")
    if wrong:
        raise BadSettings(f"cofferdam-guard cannot check {', '.join(wrong)} yet, so it does not start")
