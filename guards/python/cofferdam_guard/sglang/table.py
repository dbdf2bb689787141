"""Which functions of SGLang's are hooked, version by version, with the parameters relied on."""

from . import decode, door, prefill, source, step
from .hooks import Hook

_D = "sglang.srt.disaggregation."
_MOONCAKE = _D + "mooncake.conn:"
_COMMON = _D + "common.conn:"
_SCHEDULER = "sglang.srt.managers.scheduler:Scheduler."
_P_MIXIN = _D + "prefill:SchedulerDisaggregationPrefillMixin."
_D_MIXIN = _D + "decode:SchedulerDisaggregationDecodeMixin."


def _p(text: str) -> tuple[str, ...]:
    return tuple(text.split())


def table(version: str, init_disaggregation) -> list[Hook]:
    """All hooks of one version; what hooks the scheduler's set-up is the caller's."""
    old = version == "0.5.19"
    both = [
        Hook(_SCHEDULER + "init_disaggregation", _p("self"), init_disaggregation),
        Hook(_SCHEDULER + "run_batch", _p("self batch pp_proxy_tensors"), step.run_batch),
        Hook(
            _SCHEDULER + "process_batch_result",
            _p("self batch result"),
            step.process_batch_result,
        ),
        Hook(
            _SCHEDULER + "process_pending_chunked_abort",
            _p("self"),
            source.process_pending_chunked_abort,
        ),
        Hook(
            "sglang.srt.managers.schedule_batch:ScheduleBatch.prepare_for_decode",
            _p("self"),
            step.prepare_for_decode,
        ),
        Hook(
            _D + "utils:prepare_abort",
            _p("req error_message status_code"),
            door.prepare_abort,
            through=(_D + "prefill:prepare_abort", _D + "decode:prepare_abort"),
        ),
        Hook(_D + "utils:MetadataBuffers.set_buf", _p("self req"), prefill.set_buf),
        Hook(
            _D + "prefill:PrefillBootstrapQueue.add", _p("self req num_kv_heads"), door.prefill_add
        ),
        Hook(
            _D + "prefill:PrefillBootstrapQueue.finalize_bootstrap",
            _p("self req"),
            prefill.finalize_bootstrap,
        ),
        Hook(
            _P_MIXIN + "handle_pending_bootstrap",
            _p("self req poll"),
            prefill.handle_pending_bootstrap,
            through=(_SCHEDULER + "handle_pending_bootstrap",),
        ),
        Hook(
            _P_MIXIN + "process_disagg_prefill_inflight_queue",
            _p("self rids_to_check"),
            source.tick,
            through=(_SCHEDULER + "process_disagg_prefill_inflight_queue",),
        ),
        # `send` is behind a tracing decorator that keeps no names.
        Hook(_MOONCAKE + "MooncakeKVSender.send", _p("self args kwargs"), prefill.send),
        Hook(_MOONCAKE + "TransferInfo.from_zmq", _p("cls msg"), prefill.from_zmq),
        Hook(
            _MOONCAKE + "MooncakeKVManager.send_kvcache",
            _p(
                "self mooncake_session_id prefill_kv_indices dst_kv_ptrs dst_kv_indices executor "
                "dst_layer_ids dst_device_kv_indices dst_kv_item_len dst_attn_tp_size"
            ),
            prefill.send_kvcache,
        ),
        Hook(
            _MOONCAKE + "MooncakeKVManager._transfer_data",
            _p("self mooncake_session_id transfer_blocks"),
            prefill.transfer_data,
        ),
        Hook(
            _MOONCAKE + "MooncakeKVManager.register_buffer_to_engine",
            _p("self"),
            prefill.register_buffer_to_engine,
        ),
        Hook(
            _MOONCAKE + "MooncakeKVManager._handle_aux_data", _p("self msg"), door.handle_aux_data
        ),
        Hook(
            _COMMON + "CommonKVSender.clear",
            _p("self"),
            source.sender_clear,
            through=(_MOONCAKE + "MooncakeKVSender.clear",),
        ),
        Hook(
            _D + "decode:DecodePreallocQueue.add",
            _p("self req is_retracted is_rebootstrap"),
            door.decode_add,
        ),
        Hook(
            _D + "decode:DecodePreallocQueue._create_receiver_and_enqueue",
            _p("self req is_rebootstrap"),
            decode.create_receiver,
        ),
        Hook(
            _D + "decode:DecodePreallocQueue._pre_alloc",
            _p("self req prefix_indices prefix_len total_prefix_len"),
            step.pre_alloc,
        ),
        Hook(
            _D + "decode:DecodePreallocQueue.resume_retracted_reqs",
            _p("self rids_to_check"),
            step.resume_retracted_reqs,
        ),
        Hook(
            _D + "decode:DecodeTransferQueue._do_release",
            _p("self decode_req idx"),
            decode.do_release,
        ),
        Hook(
            _D + "decode:DecodeTransferQueue.resolve_deferred_releases",
            _p("self"),
            decode.resolve_deferred_releases,
        ),
        Hook(
            _D_MIXIN + "process_decode_queue",
            _p("self"),
            decode.tick,
            through=(_SCHEDULER + "process_decode_queue",),
        ),
    ]
    return both + (_only_0_5_19() if old else _only_0_5_23())


def _only_0_5_19() -> list[Hook]:
    return [
        Hook(_MOONCAKE + "MooncakeKVSender.poll", _p("self"), source.sender_poll),
        Hook(_MOONCAKE + "MooncakeKVReceiver.poll", _p("self"), decode.receiver_poll),
        Hook(
            _MOONCAKE + "MooncakeKVReceiver.send_metadata",
            _p("self kv_indices aux_index state_indices decode_prefix_len device_kv_indices"),
            decode.send_metadata_0_5_19,
        ),
        Hook(
            _COMMON + "CommonKVManager._send_abort_ack",
            _p("self decode_ip decode_port room"),
            source.send_abort_ack_0_5_19,
            through=(_MOONCAKE + "MooncakeKVManager._send_abort_ack",),
        ),
        Hook(
            _D + "decode:DecodeTransferQueue.__init__",
            _p(
                "self gloo_group req_to_metadata_buffer_idx_allocator tp_rank metadata_buffers "
                "scheduler tree_cache"
            ),
            decode.transfer_queue_init,
        ),
    ]


def _only_0_5_23() -> list[Hook]:
    return [
        Hook(
            _P_MIXIN + "_retire_aborted_prefill_result",
            _p("self req"),
            source.retire_aborted_prefill_result,
            through=(_SCHEDULER + "_retire_aborted_prefill_result",),
        ),
        Hook(
            _COMMON + "CommonKVSender.poll",
            _p("self"),
            source.sender_poll,
            through=(_MOONCAKE + "MooncakeKVSender.poll",),
        ),
        Hook(
            _COMMON + "CommonKVReceiver.poll",
            _p("self"),
            decode.receiver_poll,
            through=(_MOONCAKE + "MooncakeKVReceiver.poll",),
        ),
        Hook(
            _COMMON + "CommonKVReceiver.send_metadata",
            _p(
                "self kv_indices aux_index state_indices decode_prefix_len destination "
                "device_kv_indices"
            ),
            decode.send_metadata_0_5_23,
            through=(_MOONCAKE + "MooncakeKVReceiver.send_metadata",),
        ),
        Hook(
            _MOONCAKE + "MooncakeKVManager.build_receiver_metadata_message",
            _p(
                "self bootstrap_room required_dst_info_num kv_indices aux_index state_indices "
                "decode_prefix_len is_dummy device_kv_indices"
            ),
            decode.build_receiver_metadata_message,
        ),
        Hook(
            _COMMON + "CommonKVManager._send_abort_ack",
            _p("self room target"),
            source.send_abort_ack_0_5_23,
            through=(_MOONCAKE + "MooncakeKVManager._send_abort_ack",),
        ),
        Hook(
            _D + "decode:DecodeTransferQueue.__init__",
            _p("self req_to_metadata_buffer_idx_allocator metadata_buffers scheduler tree_cache"),
            decode.transfer_queue_init,
        ),
    ]
