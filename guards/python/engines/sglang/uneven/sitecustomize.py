"""Gives each data-parallel rank of one server a pool of its own size, as ranks with different neighbours have:
COFFERDAM_UNEVEN pages fewer for each rank than for the one before.

Put this folder on `PYTHONPATH`. Only the number that SGLang's own `--max-total-tokens` would have given is lowered."""

import importlib.abc
import importlib.machinery
import os
import sys

FEWER = int(os.environ.get("COFFERDAM_UNEVEN", "0"))
MODULE = "sglang.srt.mem_cache.kv_cache_configurator"


def lower(module) -> None:
    from sglang.srt.runtime_context import get_parallel

    kind = module.KVCacheConfigurator
    limit = kind._apply_token_constraints

    def limited(self, token_capacity):
        ranks = get_parallel()
        return limit(self, token_capacity) - FEWER * ((ranks.dp_rank or 0) + (ranks.attn_dp_rank or 0))

    kind._apply_token_constraints = limited


class AfterImport(importlib.abc.MetaPathFinder):
    """Finds the module as everybody would, and changes it once it has been loaded."""

    def find_spec(self, name, path=None, target=None):
        if name != MODULE:
            return None
        spec = importlib.machinery.PathFinder.find_spec(name, path, target)
        if spec is not None:
            load = spec.loader.exec_module
            spec.loader.exec_module = lambda loaded: (load(loaded), lower(loaded))
        return spec


if FEWER:
    sys.meta_path.insert(0, AfterImport())
