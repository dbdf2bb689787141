"""What several data-parallel ranks of one engine are run with on a CPU. Put this folder on `PYTHONPATH`.

COFFERDAM_UNEVEN: pages that each rank's pool has fewer than that of the rank before, as ranks with different
neighbours have; only the number that SGLang's own `--max-total-tokens` would have given is lowered.

SGLang's attention in plain PyTorch lacks one method that data-parallel attention asks for on a CPU: which length a
padded sequence has. It is given that of SGLang's other backend for CPUs."""

import importlib.abc
import importlib.machinery
import os
import sys

FEWER = os.environ.get("COFFERDAM_UNEVEN")


def lower(module) -> None:
    from sglang.srt.runtime_context import get_parallel

    kind = module.KVCacheConfigurator
    limit = kind._apply_token_constraints

    def limited(self, token_capacity):
        ranks = get_parallel()
        return limit(self, token_capacity) - int(FEWER) * ((ranks.dp_rank or 0) + (ranks.attn_dp_rank or 0))

    kind._apply_token_constraints = limited


def pad(module) -> None:
    module.TorchNativeAttnBackend.get_cpu_graph_seq_len_fill_value = lambda self: 1


CHANGED = {
    "sglang.srt.mem_cache.kv_cache_configurator": lower,
    "sglang.srt.layers.attention.torch_native_backend": pad,
}


class AfterImport(importlib.abc.MetaPathFinder):
    """Finds a module as everybody would, and changes it once it has been loaded."""

    def find_spec(self, name, path=None, target=None):
        if name not in CHANGED:
            return None
        spec = importlib.machinery.PathFinder.find_spec(name, path, target)
        if spec is not None:
            load = spec.loader.exec_module
            spec.loader.exec_module = lambda loaded: (load(loaded), CHANGED[name](loaded))
        return spec


if FEWER:
    sys.meta_path.insert(0, AfterImport())
