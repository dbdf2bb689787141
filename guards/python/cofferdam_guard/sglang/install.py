"""The table of hooks for each version, and what has to hold before a server may start."""

import logging
import threading

import torch

from . import config as settings
from . import decode, door, hooks, prefill, state
from . import pages as page
from .hooks import Hook, NotInPlace
from .record import Record

_D = "sglang.srt.disaggregation."
_MOONCAKE = _D + "mooncake.conn:"
_COMMON = _D + "common.conn:"
_SCHEDULER = "sglang.srt.managers.scheduler:Scheduler."
_P_MIXIN = _D + "prefill:SchedulerDisaggregationPrefillMixin."
_D_MIXIN = _D + "decode:SchedulerDisaggregationDecodeMixin."

logger = logging.getLogger("cofferdam_guard.sglang")


class Unguardable(Exception):
    """A set-up in which the guard cannot promise what it says."""


def _p(text: str) -> tuple[str, ...]:
    return tuple(text.split())


def table(version: str) -> list[Hook]:
    """All hooks of one version."""
    old = version == "0.5.19"
    both = [
        Hook(_SCHEDULER + "init_disaggregation", _p("self"), init_disaggregation),
        Hook(_SCHEDULER + "run_batch", _p("self batch pp_proxy_tensors"), decode.run_batch),
        Hook(
            _SCHEDULER + "process_pending_chunked_abort", _p("self"), prefill.process_pending_chunked_abort
        ),
        Hook(
            "sglang.srt.managers.schedule_batch:ScheduleBatch.prepare_for_decode",
            _p("self"),
            decode.prepare_for_decode,
        ),
        Hook(_D + "utils:prepare_abort", _p("req error_message status_code"), door.prepare_abort,
             through=(_D + "prefill:prepare_abort", _D + "decode:prepare_abort")),
        Hook(_D + "utils:MetadataBuffers.set_buf", _p("self req"), prefill.set_buf),
        Hook(_D + "prefill:PrefillBootstrapQueue.add", _p("self req num_kv_heads"), door.prefill_add),
        Hook(
            _D + "prefill:PrefillBootstrapQueue.finalize_bootstrap", _p("self req"), prefill.finalize_bootstrap
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
            prefill.tick,
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
        Hook(_MOONCAKE + "MooncakeKVManager._handle_aux_data", _p("self msg"), door.handle_aux_data),
        Hook(
            _COMMON + "CommonKVSender.clear",
            _p("self"),
            prefill.sender_clear,
            through=(_MOONCAKE + "MooncakeKVSender.clear",),
        ),
        Hook(
            _D + "decode:DecodePreallocQueue.add", _p("self req is_retracted is_rebootstrap"), door.decode_add
        ),
        Hook(
            _D + "decode:DecodePreallocQueue._create_receiver_and_enqueue",
            _p("self req is_rebootstrap"),
            decode.create_receiver,
        ),
        Hook(
            _D + "decode:DecodePreallocQueue._pre_alloc",
            _p("self req prefix_indices prefix_len total_prefix_len"),
            decode.pre_alloc,
        ),
        Hook(
            _D + "decode:DecodePreallocQueue.resume_retracted_reqs",
            _p("self rids_to_check"),
            decode.resume_retracted_reqs,
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
        Hook(_MOONCAKE + "MooncakeKVSender.poll", _p("self"), prefill.sender_poll),
        Hook(_MOONCAKE + "MooncakeKVReceiver.poll", _p("self"), decode.receiver_poll),
        Hook(
            _MOONCAKE + "MooncakeKVReceiver.send_metadata",
            _p("self kv_indices aux_index state_indices decode_prefix_len device_kv_indices"),
            decode.send_metadata_0_5_19,
        ),
        Hook(
            _COMMON + "CommonKVManager._send_abort_ack",
            _p("self decode_ip decode_port room"),
            prefill.send_abort_ack_0_5_19,
            through=(_MOONCAKE + "MooncakeKVManager._send_abort_ack",),
        ),
        Hook(
            _D + "decode:DecodeTransferQueue.__init__",
            _p("self gloo_group req_to_metadata_buffer_idx_allocator tp_rank metadata_buffers scheduler tree_cache"),
            decode.transfer_queue_init,
        ),
    ]


def _only_0_5_23() -> list[Hook]:
    return [
        Hook(
            _P_MIXIN + "_retire_aborted_prefill_result",
            _p("self req"),
            prefill.retire_aborted_prefill_result,
            through=(_SCHEDULER + "_retire_aborted_prefill_result",),
        ),
        Hook(
            _COMMON + "CommonKVSender.poll",
            _p("self"),
            prefill.sender_poll,
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
            _p("self kv_indices aux_index state_indices decode_prefix_len destination device_kv_indices"),
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
            prefill.send_abort_ack_0_5_23,
            through=(_MOONCAKE + "MooncakeKVManager._send_abort_ack",),
        ),
        Hook(
            _D + "decode:DecodeTransferQueue.__init__",
            _p("self req_to_metadata_buffer_idx_allocator metadata_buffers scheduler tree_cache"),
            decode.transfer_queue_init,
        ),
    ]


_installed: list[Hook] = []


def into_scheduler(version: str) -> None:
    """Called by SGLang's plugin loader in a scheduler process, before the scheduler exists."""
    import os

    chosen = settings.read()
    # Both sides: prefill has to prove the end of its writes, decode to wait for the proof.
    os.environ["SGLANG_DISAGGREGATION_DEFERRED_DECODE_KV_RELEASE"] = "1"
    _replace_queue()
    found = table(version)
    hooks.install(found, chosen.break_hook)
    _installed.extend(found)
    state.put(state.Guard(chosen, version, "unknown", Record("unknown", None, False)))
    logger.info("cofferdam-guard: %d hooks are in place and answer (table for SGLang %s)", len(found), version)


def _replace_queue() -> None:
    """The transfer queue becomes one that knows what is not finished."""
    from sglang.srt.disaggregation.mooncake import conn
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType

    base = conn.FastQueue
    HookRegistry.register(
        "sglang.srt.disaggregation.mooncake.conn.FastQueue", prefill.counting_queue(base), HookType.REPLACE
    )


def init_disaggregation(original, self):
    """`Scheduler.init_disaggregation`: the guard learns who it serves; then everything is proven
    once more on the objects that are now in use."""
    from sglang.srt.runtime_context import get_disagg

    guard = state.here()
    mode = get_disagg().disaggregation_mode
    guard.role = {"null": "unified"}.get(mode, mode)
    enabled = bool(getattr(self.server_args, "enable_metrics", False))
    guard.record = Record(guard.role, guard.config.audit_path, enabled)
    guard.scheduler = self
    guard.page_size = self.token_to_kv_pool_allocator.page_size
    if guard.role != "unified":
        try:
            require_guardable(self)
        except (Unguardable, page.Unreachable) as fault:
            raise SystemExit(f"cofferdam-guard: refusing to start SGLang: {fault}") from fault
    original(self)
    if guard.role == "unified":
        logger.warning("cofferdam-guard: this server hands nothing over; there is nothing to guard")
        return
    try:
        _prove(self, guard)
    except NotInPlace as fault:
        raise SystemExit(f"cofferdam-guard: refusing to start SGLang: {fault}") from fault
    from importlib.metadata import version

    guard.record.gauge("ready", 1, guard=guard_version(), engine=version("sglang"))
    guard.record.audit("ready", hooks=len(_installed), engine=version("sglang"), pages=guard.kv.pages)
    logger.info(
        "cofferdam-guard: ready as %s: %d hooks proven on the objects in use, %d pages of %d tokens, "
        "checksum %s, step check %s",
        guard.role,
        len(_installed),
        guard.kv.pages,
        guard.page_size,
        "on" if guard.config.checksum else "OFF",
        "on" if guard.config.step_check else "OFF",
    )


def guard_version() -> str:
    """Version of the installed distribution."""
    from importlib import metadata

    try:
        return metadata.version("cofferdam-guard")
    except metadata.PackageNotFoundError:
        return "unreleased"


def require_guardable(scheduler) -> None:
    """Set-ups in which some page would reach an attention pass unguarded are refused."""
    from sglang.srt.environ import envs
    from sglang.srt.runtime_context import get_disagg

    args = scheduler.server_args
    backend = get_disagg().disaggregation_transfer_backend
    problems = {
        f"transfer backend {backend}: only mooncake is guarded": backend != "mooncake",
        "tensor parallelism: not tested with this guard": args.tp_size > 1,
        "pipeline parallelism": args.pp_size > 1,
        "data parallelism": args.dp_size > 1,
        "speculative decoding": bool(args.speculative_algorithm),
        "hierarchical cache": bool(args.enable_hierarchical_cache),
        "a staging buffer (SGLANG_DISAGG_STAGING_BUFFER)": envs.SGLANG_DISAGG_STAGING_BUFFER.get(),
        "a radix cache on decode": bool(getattr(args, "disaggregation_decode_enable_radix_cache", False)),
        "offloading of decode's KV": bool(
            getattr(args, "disaggregation_decode_enable_offload_kvcache", False)
        ),
        "hisparse": bool(getattr(scheduler, "enable_hisparse", False)),
        "decode allocation after prefill": getattr(
            args, "disaggregation_decode_allocation_policy", "early"
        )
        != "early",
        "host receive buffers": getattr(args, "disaggregation_decode_host_receive_threshold", 1) < 1,
        "unified memory": bool(getattr(args, "enable_unified_memory", False)),
        "a draft model": scheduler.draft_worker is not None,
    }
    found = [name for name, present in problems.items() if present]
    if found:
        raise Unguardable(
            f"not guarded together with: {'; '.join(found)}. Switch it off, or run without the guard "
            "(SGLANG_PLUGINS)"
        )


def register_memory(manager) -> None:
    """Tags (decode) and the rows that are sent (prefill) are registered with the transfer engine."""
    from sglang.srt.disaggregation.utils import DisaggregationMode

    guard = state.here()
    args = manager.kv_args
    if any(args.state_types):
        raise SystemExit(
            "cofferdam-guard: refusing to start SGLang: this model transfers more than KV pages "
            f"({', '.join(str(kind) for kind in args.state_types)}), and that would go unguarded"
        )
    guard.kv_manager = manager
    if guard.kv is None:
        pool = guard.scheduler.token_to_kv_pool_allocator.get_kvcache()
        guard.kv = page.KvBytes(args, [pool, getattr(pool, "full_kv_pool", None)])
    if manager.disaggregation_mode == DisaggregationMode.DECODE:
        if guard.table is None:
            guard.table = page.TagTable(guard.kv.pages, guard.kv.device)
        address, length = guard.table.region
        manager.engine.batch_register([address], [length])
    elif guard.config.faults:
        _register_fault_memory(guard, manager, max(args.kv_item_lens))


def _register_fault_memory(guard, manager, item: int) -> None:
    guard.fault_page = torch.zeros(item, dtype=torch.uint8, device=guard.kv.device)
    guard.fault_row = torch.zeros(page.WORDS, dtype=torch.int64, device=guard.kv.device)
    guard.other_row = torch.zeros(page.WORDS, dtype=torch.int64, device=guard.kv.device)
    for tensor in (guard.fault_page, guard.fault_row, guard.other_row):
        manager.engine.batch_register([tensor.data_ptr()], [tensor.numel() * tensor.element_size()])


def register_staging(guard) -> None:
    """Rows for the calling transfer worker."""
    # A worker starts inside the manager's constructor, and asks again when it has something to do.
    if guard.kv_manager is None:
        return
    rows = min(prefill.STAGING_ROWS, guard.kv.pages)
    staging = torch.zeros((rows, page.WORDS), dtype=torch.int64, device=guard.kv.device)
    guard.kv_manager.engine.batch_register([staging.data_ptr()], [staging.numel() * 8])
    guard.staging[threading.get_ident()] = staging


def _prove(scheduler, guard) -> None:
    """Probes through the classes of the objects that this scheduler uses."""
    for hook in _installed:
        hooks.probe(hook)
    if guard.role == "prefill":
        queue = scheduler.disagg_prefill_bootstrap_queue
        manager = queue.kv_manager
        for one in manager.transfer_queues:
            if not getattr(one, "cofferdam", False):
                raise NotInPlace("a transfer queue that does not count")
    else:
        queue = scheduler.disagg_decode_prealloc_queue
        manager = queue.kv_manager
        if guard.table is None:
            raise NotInPlace("the table of tags was not registered")
        if scheduler.disagg_decode_transfer_queue.deferred_kv_release_timeout != float("inf"):
            raise NotInPlace("decode would free pages after a time-out")
    if not manager.enable_deferred_decode_kv_release:
        raise NotInPlace("the proof that writing has ended is switched off in the transfer manager")
    if guard.kv is None:
        raise NotInPlace("the transfer manager's memory was not seen")
    live = {type(scheduler): scheduler, type(queue): queue, type(manager): manager}
    for hook in _installed:
        owner, _ = hooks.resolve(hook.target)
        for kind, holder in live.items():
            if isinstance(owner, type) and issubclass(kind, owner):
                hooks.probe_live(hook, holder)
