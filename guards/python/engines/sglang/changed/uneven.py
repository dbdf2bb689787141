"""Gives each data-parallel rank of one server a pool of its own size, as ranks with different neighbours have:
COFFERDAM_UNEVEN pages fewer for each rank than for the one before.

Only the number that SGLang's own `--max-total-tokens` would have given is lowered."""

import os

FEWER = int(os.environ.get("COFFERDAM_UNEVEN", "0"))
MODULE = "sglang.srt.mem_cache.kv_cache_configurator"


def asked() -> bool:
    return FEWER > 0


def change(module) -> None:
    from sglang.srt.runtime_context import get_parallel

    kind = module.KVCacheConfigurator
    limit = kind._apply_token_constraints

    def limited(self, token_capacity):
        ranks = get_parallel()
        return limit(self, token_capacity) - FEWER * ((ranks.dp_rank or 0) + (ranks.attn_dp_rank or 0))

    kind._apply_token_constraints = limited
