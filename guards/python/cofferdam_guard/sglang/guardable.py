"""Set-ups that the guard does not cover, as far as SGLang's settings tell: so that they are refused before
a model is loaded. (`install.require_guardable` looks at the scheduler's own objects, later.)"""

from __future__ import annotations

import os
from typing import Any


HOST_RECEIVE = "host receive buffers"


class Unguardable(Exception):
    """A set-up in which the guard cannot promise what it says."""


def by_settings(args: Any) -> list[str]:
    """What is set and not guarded; `args` are SGLang's `ServerArgs`."""

    def value(name: str, default: Any) -> Any:
        return getattr(args, name, default)

    backend = value("disaggregation_transfer_backend", "mooncake")
    staging = os.environ.get("SGLANG_DISAGG_STAGING_BUFFER", "").strip().lower()
    problems = {
        f"transfer backend {backend}: only mooncake is guarded": backend != "mooncake",
        "pipeline parallelism": value("pp_size", 1) > 1,
        "context parallelism": value("attn_cp_size", 1) > 1,
        # The ranks of plain data parallelism share nothing; these share each pass, and no whole pair was run.
        "data-parallel attention": bool(value("enable_dp_attention", False)) or value("attn_dp_size", 1) > 1,
        # Its data-parallel ranks come, go and change their numbers while requests are bound to them.
        "elastic expert parallelism": bool(value("elastic_ep_backend", None)),
        "several machines for one server": value("nnodes", 1) > 1,
        "speculative decoding": bool(value("speculative_algorithm", None)),
        "hierarchical cache": bool(value("enable_hierarchical_cache", False)),
        "a staging buffer (SGLANG_DISAGG_STAGING_BUFFER)": staging in ("1", "true", "yes", "y"),
        "a radix cache on decode": bool(value("disaggregation_decode_enable_radix_cache", False)),
        "offloading of decode's KV": bool(
            value("disaggregation_decode_enable_offload_kvcache", False)
        ),
        "decode allocation after prefill": value("disaggregation_decode_allocation_policy", "early")
        != "early",
        # 0 is off in 0.5.21 and always on since: `install` looks at the queue that comes of it.
        HOST_RECEIVE: value("disaggregation_decode_host_receive_threshold", 1) not in (0, 1),
        "unified memory": bool(value("enable_unified_memory", False)),
    }
    return [name for name, present in problems.items() if present]


def refuse(found: list[str]) -> None:
    """Raises `Unguardable` if anything was found."""
    if found:
        raise Unguardable(
            f"not guarded together with: {'; '.join(found)}. Switch it off, or run without the guard "
            "(COFFERDAM_GUARD_ARM=never)"
        )
