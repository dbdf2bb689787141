"""What has to hold before a server may start, and the memory that the guard brings along."""

import logging
import os
import threading

import torch

from .. import core
from ..coverage import GAUGE, Coverage
from . import config as settings
from . import guardable, hooks, prefill, proof, source, state
from . import pages as page
from .hooks import Hook, NotInPlace
from .ranks import Ranks, data_parallel
from .record import Record
from .table import table

logger = logging.getLogger("cofferdam_guard.sglang")


_installed: list[Hook] = []


def into_scheduler(functions, chosen: settings.Config) -> None:
    """Called by SGLang's plugin loader in a scheduler process, before the scheduler exists."""
    # Both sides: prefill has to prove the end of its writes, decode to wait for the proof.
    os.environ["SGLANG_DISAGGREGATION_DEFERRED_DECODE_KV_RELEASE"] = "1"
    _replace_queue()
    found = table(functions, init_disaggregation)
    hooks.install(found, chosen.break_hook)
    _installed.extend(found)
    state.put(state.Guard(chosen, "unknown", Record("unknown", "", False)))
    logger.info("cofferdam-guard: %d hooks are in place and answer", len(found))


def _replace_queue() -> None:
    """The transfer queue becomes one that knows what is not finished."""
    from sglang.srt.disaggregation.mooncake import conn
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType

    base = conn.FastQueue
    HookRegistry.register(
        "sglang.srt.disaggregation.mooncake.conn.FastQueue",
        source.counting_queue(base),
        HookType.REPLACE,
    )


def init_disaggregation(original, self):
    """`Scheduler.init_disaggregation`: the guard learns who it serves; then everything is proven
    once more on the objects that are now in use."""
    from sglang.srt.runtime_context import get_disagg

    guard = state.here()
    mode = get_disagg().disaggregation_mode
    guard.role = {"null": "unified"}.get(mode, mode)
    enabled = bool(getattr(self.server_args, "enable_metrics", False))
    guard.record = Record(guard.role, guard.config.audit, enabled)
    guard.scheduler = self
    guard.page_size = self.token_to_kv_pool_allocator.page_size
    guard.model = model_name(self)
    guard.ranks = Ranks(self.attn_tp_cpu_group)
    if guard.role != "unified":
        try:
            require_guardable(self)
        except (guardable.Unguardable, page.Unreachable) as fault:
            raise SystemExit(f"cofferdam-guard: refusing to start SGLang: {fault}") from fault
    original(self)
    if guard.role == "unified":
        guard.record.begin()
        logger.warning("cofferdam-guard: this server hands nothing over; there is nothing to guard")
        return
    try:
        _prove(self, guard)
    except NotInPlace as fault:
        raise SystemExit(f"cofferdam-guard: refusing to start SGLang: {fault}") from fault
    _say_ready(guard)


def _say_ready(guard) -> None:
    """In the log, the audit log and the metrics: what is looked at here."""
    from importlib.metadata import version

    ranks, rank = guard.ranks.size, guard.ranks.rank
    tp = f", rank {rank} of {ranks}" if ranks > 1 else ""
    replica, replicas = guard.data_parallel
    tp += f", data-parallel rank {replica} of {replicas}" if replicas > 1 else ""
    covers = Coverage(
        shape=f"{guard.role}, {len(guard.kv.rows)} KV buffers, {guard.kv.pages} pages of "
        f"{guard.page_size} tokens{tp}"
    ).set(
        identity=True,
        content=guard.config.checksum,
        step=bool(guard.config.step_check) and guard.role == "decode",
        release=True,
        ranks=True,
        selftest=True,
    )
    guard.record.gauge("ready", 1, guard=guard_version(), engine=version("sglang"))
    for name, on in covers.on.items():
        guard.record.gauge(GAUGE, int(on), check=name)
    guard.record.audit(
        "ready", hooks=len(_installed), engine=version("sglang"), pages=guard.kv.pages, rank=rank
    )
    logger.info(
        "%s; %d hooks proven on the objects in use, checksum %s, step check %s",
        covers.line(),
        len(_installed),
        "on" if guard.config.checksum else "OFF",
        _step_check(guard),
    )


def _step_check(guard) -> str:
    """When the result of a step's check is read, for the log."""
    if not guard.config.step_check:
        return "OFF"
    if guard.config.step_check == settings.WITH_OUTPUT or guard.role != "decode":
        return "on, read with the step's output"
    on_cpu = guard.table.rows.device.type == "cpu"
    return "on, read before the pass" if on_cpu else "on, read with the step's output"


def model_name(scheduler) -> str:
    """What both sides call the model. Not its path: that differs from machine to machine."""
    found = scheduler.model_config.hf_config
    facts = ("model_type", "vocab_size", "hidden_size", "num_hidden_layers")
    return "/".join(str(getattr(found, name, "")) for name in facts)


def guard_version() -> str:
    """Version of the installed distribution."""
    from importlib import metadata

    try:
        return metadata.version("cofferdam-guard")
    except metadata.PackageNotFoundError:
        return "unreleased"


def require_guardable(scheduler) -> None:
    """Set-ups in which some page would reach an attention pass unguarded are refused: what the settings
    say once more, as they are in use now, and what only the scheduler knows."""
    from sglang.srt.environ import envs
    from sglang.srt.runtime_context import get_disagg

    backend = get_disagg().disaggregation_transfer_backend
    problems = {
        f"transfer backend {backend}: only mooncake is guarded": backend != "mooncake",
        "a staging buffer (SGLANG_DISAGG_STAGING_BUFFER)": envs.SGLANG_DISAGG_STAGING_BUFFER.get(),
        "hisparse": bool(getattr(scheduler, "enable_hisparse", False)),
        "a draft model": scheduler.draft_worker is not None,
    }
    found = guardable.by_settings(scheduler.server_args)
    found += [name for name, present in problems.items() if present and name not in found]
    guardable.refuse(found)


def register_memory(manager) -> None:
    """Tags (decode) and what is sent (prefill) are registered with the transfer engine."""
    from sglang.srt.disaggregation.utils import DisaggregationMode

    guard = state.here()
    args = manager.kv_args
    if any(args.state_types):
        raise SystemExit(
            "cofferdam-guard: refusing to start SGLang: this model transfers more than KV pages "
            f"({', '.join(str(kind) for kind in args.state_types)}), and that would go unguarded"
        )
    if guard.kv_manager is None:
        guard.data_parallel = data_parallel(manager)
        guard.record.begin(*guard.data_parallel)
    guard.kv_manager = manager
    if guard.kv is None:
        pool = guard.scheduler.token_to_kv_pool_allocator.get_kvcache()
        guard.kv = page.KvBytes(
            args, [pool, getattr(pool, "full_kv_pool", None)], guard.config.secret
        )
    if manager.disaggregation_mode == DisaggregationMode.DECODE:
        if guard.table is None:
            guard.table = page.TagTable(guard.kv.pages, guard.kv.device)
            guard.ledger = core.Ledger(guard.kv.pages, guard.page_size)
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
        if getattr(scheduler.disagg_decode_transfer_queue, "enable_host_receive", False):
            raise NotInPlace(f"{guardable.HOST_RECEIVE}: not guarded")
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
    proof.prove(guard, scheduler, manager)
