"""What of SGLang the guard stands on, version by version: the functions that it hooks, with the
parameters relied on, and the names that it uses beside them. Data only: it is read before anything of
the engine, or torch, is imported (`..sources`); `table` says what is run for each hook."""

from __future__ import annotations

from ..sources import Function

_S = "sglang.srt."
_D = _S + "disaggregation."
_MOONCAKE = _D + "mooncake.conn:"
_COMMON = _D + "common.conn:"
_SCHEDULER = _S + "managers.scheduler:Scheduler."
_P_MIXIN = _D + "prefill:SchedulerDisaggregationPrefillMixin."
_D_MIXIN = _D + "decode:SchedulerDisaggregationDecodeMixin."
SEND = _MOONCAKE + "MooncakeKVSender.send"

# What there are tables of hooks for: before and since the rework of 0.5.21.
TABLES = ("0.5.19", "0.5.23")
# `send` is behind a tracing decorator that keeps no names: so it looks once it is imported.
AS_IMPORTED = {SEND: ("self", "args", "kwargs")}


def _f(target: str, parameters: str, *through: str, exact: bool = True) -> Function:
    return Function(target, tuple(parameters.split()), through, exact)


_BOTH = [
    _f(_SCHEDULER + "init_disaggregation", "self"),
    _f(_SCHEDULER + "run_batch", "self batch pp_proxy_tensors"),
    _f(_SCHEDULER + "process_batch_result", "self batch result"),
    _f(_SCHEDULER + "process_pending_chunked_abort", "self"),
    _f(_S + "managers.schedule_batch:ScheduleBatch.prepare_for_decode", "self"),
    _f(
        _D + "utils:prepare_abort",
        "req error_message status_code",
        _D + "prefill:prepare_abort",
        _D + "decode:prepare_abort",
    ),
    _f(_D + "utils:MetadataBuffers.set_buf", "self req"),
    _f(_D + "prefill:PrefillBootstrapQueue.add", "self req num_kv_heads"),
    _f(_D + "prefill:PrefillBootstrapQueue.finalize_bootstrap", "self req"),
    _f(
        _P_MIXIN + "handle_pending_bootstrap",
        "self req poll",
        _SCHEDULER + "handle_pending_bootstrap",
    ),
    _f(
        _P_MIXIN + "process_disagg_prefill_inflight_queue",
        "self rids_to_check",
        _SCHEDULER + "process_disagg_prefill_inflight_queue",
    ),
    _f(SEND, "self kv_indices state_indices num_kv_tokens", exact=False),
    _f(_MOONCAKE + "TransferInfo.from_zmq", "cls msg"),
    _f(
        _MOONCAKE + "MooncakeKVManager.send_kvcache",
        "self mooncake_session_id prefill_kv_indices dst_kv_ptrs dst_kv_indices executor "
        "dst_layer_ids dst_device_kv_indices dst_kv_item_len dst_attn_tp_size",
    ),
    _f(
        _MOONCAKE + "MooncakeKVManager._transfer_data", "self mooncake_session_id transfer_blocks"
    ),
    _f(_MOONCAKE + "MooncakeKVManager.register_buffer_to_engine", "self"),
    _f(_MOONCAKE + "MooncakeKVManager._handle_aux_data", "self msg"),
    _f(_COMMON + "CommonKVSender.clear", "self", _MOONCAKE + "MooncakeKVSender.clear"),
    _f(_D + "decode:DecodePreallocQueue.add", "self req is_retracted is_rebootstrap"),
    _f(
        _D + "decode:DecodePreallocQueue._create_receiver_and_enqueue",
        "self req is_rebootstrap",
    ),
    _f(
        _D + "decode:DecodePreallocQueue._pre_alloc",
        "self req prefix_indices prefix_len total_prefix_len",
    ),
    _f(_D + "decode:DecodePreallocQueue.resume_retracted_reqs", "self rids_to_check"),
    _f(_D + "decode:DecodeTransferQueue._do_release", "self decode_req idx"),
    _f(_D + "decode:DecodeTransferQueue.resolve_deferred_releases", "self"),
    _f(_D_MIXIN + "process_decode_queue", "self", _SCHEDULER + "process_decode_queue"),
]

_ONLY = {
    "0.5.19": [
        _f(_MOONCAKE + "MooncakeKVSender.poll", "self"),
        _f(_MOONCAKE + "MooncakeKVReceiver.poll", "self"),
        _f(
            _MOONCAKE + "MooncakeKVReceiver.send_metadata",
            "self kv_indices aux_index state_indices decode_prefix_len device_kv_indices",
        ),
        _f(
            _COMMON + "CommonKVManager._send_abort_ack",
            "self decode_ip decode_port room",
            _MOONCAKE + "MooncakeKVManager._send_abort_ack",
        ),
        _f(
            _D + "decode:DecodeTransferQueue.__init__",
            "self gloo_group req_to_metadata_buffer_idx_allocator tp_rank metadata_buffers "
            "scheduler tree_cache",
        ),
    ],
    "0.5.23": [
        _f(
            _P_MIXIN + "_retire_aborted_prefill_result",
            "self req",
            _SCHEDULER + "_retire_aborted_prefill_result",
        ),
        _f(_COMMON + "CommonKVSender.poll", "self", _MOONCAKE + "MooncakeKVSender.poll"),
        _f(_COMMON + "CommonKVReceiver.poll", "self", _MOONCAKE + "MooncakeKVReceiver.poll"),
        _f(
            _COMMON + "CommonKVReceiver.send_metadata",
            "self kv_indices aux_index state_indices decode_prefix_len destination "
            "device_kv_indices",
            _MOONCAKE + "MooncakeKVReceiver.send_metadata",
        ),
        _f(
            _MOONCAKE + "MooncakeKVManager.build_receiver_metadata_message",
            "self bootstrap_room required_dst_info_num kv_indices aux_index state_indices "
            "decode_prefix_len is_dummy device_kv_indices",
        ),
        _f(
            _COMMON + "CommonKVManager._send_abort_ack",
            "self room target",
            _MOONCAKE + "MooncakeKVManager._send_abort_ack",
        ),
        _f(
            _D + "decode:DecodeTransferQueue.__init__",
            "self req_to_metadata_buffer_idx_allocator metadata_buffers scheduler tree_cache",
        ),
    ],
}

# Called, not hooked: these parameters first.
_CALLED = [
    _f(_S + "plugins.hook_registry:HookRegistry.register", "cls target hook hook_type", exact=False),
    _f(_S + "plugins.hook_registry:HookRegistry.apply_hooks", "cls"),
    _f(_D + "utils:get_kv_class", "transfer_backend class_type", exact=False),
    _f(_D + "utils:_is_fake_transfer", "req", exact=False),
    _f(_D + "decode:_bootstrap_addr", "req", exact=False),
    _f(_S + "runtime_context:get_disagg", "", exact=False),
    _f(_MOONCAKE + "MooncakeKVManager.record_failure", "self bootstrap_room failure_reason", exact=False),
    _f(_MOONCAKE + "MooncakeKVManager.update_status", "self bootstrap_room status", exact=False),
    _f(_MOONCAKE + "MooncakeKVManager.try_ensure_parallel_info", "self bootstrap_addr", exact=False),
    _f(_MOONCAKE + "MooncakeKVReceiver._connect_to_bootstrap_server", "cls bootstrap_info", exact=False),
    _f(_MOONCAKE + "MooncakeKVReceiver._send_abort_notification", "self", exact=False),
]


def _of(owner: str, names: str) -> list[str]:
    return [owner + name for name in names.split()]


_NAMED = [
    *_of(_D + "base:", "KVPoll"),
    *_of(_D + "utils:", "DisaggregationMode KVClassType"),
    *_of(_S + "managers.schedule_batch:", "FINISH_ABORT"),
    *_of(_S + "plugins.hook_registry:HookType.", "AROUND REPLACE"),
    *_of(_S + "utils.network:NetworkAddress.", "to_tcp is_ipv6"),
    *_of(
        _S + "environ:Envs.",
        "SGLANG_DISAGGREGATION_DEFERRED_DECODE_KV_RELEASE SGLANG_DISAGG_STAGING_BUFFER",
    ),
    *_of(_MOONCAKE, "FastQueue"),
    *_of(
        _MOONCAKE + "MooncakeKVManager.",
        "transfer_queues enable_deferred_decode_kv_release _send_multipart_locked "
        "_prefill_unique_rank transfer_infos request_status req_to_decode_prefix_len "
        "get_session_id addr_to_rooms_tracker kv_args engine",
    ),
    *_of(
        _MOONCAKE + "MooncakeKVReceiver.",
        "kv_mgr bootstrap_room bootstrap_infos abort_notified init_time conclude_state "
        "required_dst_info_num clear init",
    ),
    *_of(_MOONCAKE + "MooncakeKVSender.", "kv_mgr bootstrap_room curr_idx conclude_state abort"),
    *_of(_D + "decode:DecodePreallocQueue.", "kv_manager transfer_backend scheduler"),
    *_of(
        _D + "decode:DecodeTransferQueue.",
        "enable_deferred_kv_release deferred_kv_release_timeout _deferred_releases",
    ),
    *_of(_D + "prefill:PrefillBootstrapQueue.", "kv_manager scheduler"),
    *_of(_D + "utils:MetadataBuffers.", "cached_tokens bootstrap_room"),
    *_of(
        _SCHEDULER,
        "disagg_prefill_bootstrap_queue disagg_decode_prealloc_queue "
        "disagg_decode_transfer_queue disagg_metadata_buffers output_streamer "
        "token_to_kv_pool_allocator req_to_token_pool",
    ),
]
_NAMED_ONLY = {
    "0.5.19": [
        *_of(_MOONCAKE + "MooncakeKVManager.", "_deferred_ack_targets register_deferred_abort_room")
    ],
    "0.5.23": [*_of(_MOONCAKE + "MooncakeKVReceiver.", "ensure_abort_notified")],
}


def hooked(table: str) -> list[Function]:
    """The functions that are hooked, of one table."""
    return _BOTH + _ONLY[table]


def called() -> list[Function]:
    """The functions that the guard calls."""
    return _CALLED


def named(table: str) -> list[str]:
    """The other names that the guard uses."""
    return _NAMED + _NAMED_ONLY[table]
