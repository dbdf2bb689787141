"""What of SGLang the guard stands on: the functions that it hooks, with the parameters relied on, and the
names that it uses beside them. Where versions differ, every form that the guard knows is listed, and the
first that this SGLang has is taken: no version number decides. Data only: it is read before anything of
the engine, or torch, is imported (`..sources`); `table` says what is run for each hook."""

from __future__ import annotations

from dataclasses import dataclass

from ..sources import Difference, Function, Sources

_S = "sglang.srt."
_D = _S + "disaggregation."
_MOONCAKE = _D + "mooncake.conn:"
_COMMON = _D + "common.conn:"
_SCHEDULER = _S + "managers.scheduler:Scheduler."
_P_MIXIN = _D + "prefill:SchedulerDisaggregationPrefillMixin."
_D_MIXIN = _D + "decode:SchedulerDisaggregationDecodeMixin."
SEND = _MOONCAKE + "MooncakeKVSender.send"

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
    _f(
        _D + "utils:poll_and_all_reduce",
        "pollers gloo_group decode_reqs metadata_buffers",
        _D + "decode:poll_and_all_reduce",
    ),
    _f(_D + "utils:MetadataBuffers.set_buf", "self req"),
    _f(_D + "prefill:PrefillBootstrapQueue.add", "self req num_kv_heads"),
    _f(_D + "prefill:PrefillBootstrapQueue.finalize_bootstrap", "self req"),
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
    # Only what it leaves behind counts: it may take whatever it likes.
    _f(_D + "decode:DecodeTransferQueue.__init__", "self", exact=False),
]



@dataclass(frozen=True)
class Form:
    """One way in which an SGLang does something: functions to hook, and names that come with them."""

    functions: tuple[Function, ...]
    names: tuple[str, ...] = ()


_SEND_METADATA = "self kv_indices aux_index state_indices decode_prefix_len "
# What differs between versions, with every form that the guard knows.
FORMS: dict[str, tuple[Form, ...]] = {
    "how a sender is polled": (
        Form((_f(_COMMON + "CommonKVSender.poll", "self", _MOONCAKE + "MooncakeKVSender.poll"),)),
        Form((_f(_MOONCAKE + "MooncakeKVSender.poll", "self"),)),
    ),
    "how a receiver is polled": (
        Form((_f(_COMMON + "CommonKVReceiver.poll", "self", _MOONCAKE + "MooncakeKVReceiver.poll"),)),
        Form((_f(_MOONCAKE + "MooncakeKVReceiver.poll", "self"),)),
    ),
    "how decode says where to write": (
        Form(
            (
                _f(
                    _COMMON + "CommonKVReceiver.send_metadata",
                    _SEND_METADATA + "destination device_kv_indices",
                    _MOONCAKE + "MooncakeKVReceiver.send_metadata",
                ),
                _f(
                    _MOONCAKE + "MooncakeKVManager.build_receiver_metadata_message",
                    "self bootstrap_room required_dst_info_num kv_indices aux_index state_indices "
                    "decode_prefix_len is_dummy device_kv_indices",
                ),
            )
        ),
        Form(
            (
                _f(
                    _MOONCAKE + "MooncakeKVReceiver.send_metadata",
                    _SEND_METADATA + "device_kv_indices",
                ),
            ),
            (_MOONCAKE + "MooncakeKVReceiver._connect_to_bootstrap_server",),
        ),
    ),
    "how prefill proves that its writing has ended": (
        Form(
            (
                _f(
                    _COMMON + "CommonKVManager._send_abort_ack",
                    "self room target",
                    _MOONCAKE + "MooncakeKVManager._send_abort_ack",
                ),
            )
        ),
        Form(
            (
                _f(
                    _COMMON + "CommonKVManager._send_abort_ack",
                    "self decode_ip decode_port room",
                    _MOONCAKE + "MooncakeKVManager._send_abort_ack",
                ),
            )
        ),
    ),
    "how decode asks for that proof": (
        Form((), (_MOONCAKE + "MooncakeKVReceiver.ensure_abort_notified",)),
        Form((), (_MOONCAKE + "MooncakeKVManager.register_deferred_abort_room",)),
    ),
    "how an aborted request's pages are freed after its pass": (
        Form(
            (
                _f(
                    _P_MIXIN + "_retire_aborted_prefill_result",
                    "self req",
                    _SCHEDULER + "_retire_aborted_prefill_result",
                ),
            )
        ),
        # Not at all: it is handed over like any other, and `poll` decides.
        Form(()),
    ),
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
    _f(_MOONCAKE + "MooncakeKVReceiver.init", "self prefill_dp_rank", exact=False),
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
        "_prefill_unique_rank attn_tp_rank attn_tp_size attn_dp_rank attn_dp_size system_dp_size system_dp_rank "
        "prefill_info_table transfer_infos request_status req_to_decode_prefix_len "
        "get_session_id addr_to_rooms_tracker kv_args engine",
    ),
    *_of(
        _MOONCAKE + "MooncakeKVReceiver.",
        "kv_mgr bootstrap_room bootstrap_infos abort_notified init_time conclude_state "
        "required_dst_info_num clear init",
    ),
    *_of(_MOONCAKE + "MooncakeKVSender.", "kv_mgr bootstrap_room curr_idx conclude_state abort"),
    *_of(_D + "decode:DecodePreallocQueue.", "kv_manager transfer_backend scheduler _resolve_prefill_dp_rank"),
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
        "token_to_kv_pool_allocator req_to_token_pool attn_tp_cpu_group",
    ),
]


@dataclass(frozen=True)
class Fit:
    """What to hook in this SGLang, and what of it is not as the guard needs it."""

    hooked: tuple[Function, ...]
    differences: tuple[Difference, ...]


def fit(sources: Sources) -> Fit:
    """Everything is read from files."""
    hooked = list(_BOTH)
    wrong = sources.differences([*_BOTH, *_CALLED], _NAMED)
    for forms in FORMS.values():
        tried = [(form, _without(sources, form)) for form in forms]
        form, missing = min(tried, key=lambda one: len(one[1]))
        hooked += form.functions
        wrong += missing
    return Fit(tuple(hooked), tuple(wrong))


def _without(sources: Sources, form: Form) -> list[Difference]:
    """What is missing of a form. A function that is there and takes something else is missing even where
    the form is that there is none: what the guard does not know must not run unhooked."""
    if form.functions or form.names:
        return sources.differences(form.functions, form.names)
    return [
        Difference(one.target, f"({', '.join(one.parameters)}), or none", f"({', '.join(found)})")
        for one in _ABSENT_OR_KNOWN
        if (found := sources.parameters(one.target)) is not None
    ]


_ABSENT_OR_KNOWN = FORMS["how an aborted request's pages are freed after its pass"][0].functions


def called() -> list[Function]:
    """The functions that the guard calls, in every version."""
    return _CALLED


def named() -> list[str]:
    """The other names that it uses in every version."""
    return _NAMED


def every() -> tuple[list[Function], list[str]]:
    """All functions and names of all forms, for whoever writes an engine down."""
    forms = [form for known in FORMS.values() for form in known]
    functions = [one for form in forms for one in form.functions]
    return [*_BOTH, *_CALLED, *functions], [*_NAMED, *(n for form in forms for n in form.names)]
