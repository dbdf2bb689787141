"""Lets NIXL's progress thread sleep between two looks.

NIXL has a delay for that thread (`pthrDelay`), and its Python binding fixes it at 0: one thread of each
worker then polls without a pause and takes a whole core. On a machine with fewer cores than that,
everything else waits for them, and what is measured is the wait. Put this folder on `PYTHONPATH` and the
delay is COFFERDAM_NIXL_PAUSE_US. Nothing else of NIXL or of the engine is touched, and a stock pair gets
it like a guarded one."""

import importlib.abc
import importlib.machinery
import os
import sys

PAUSE_US = int(os.environ.get("COFFERDAM_NIXL_PAUSE_US", "500"))


def pause(binding) -> None:
    base = binding.nixlAgentConfig

    class Paused(base):
        def __setattr__(self, name, value):
            super().__setattr__(name, PAUSE_US if name == "pthrDelay" else value)

    binding.nixlAgentConfig = Paused


class AfterImport(importlib.abc.MetaPathFinder):
    """Finds NIXL's binding as everybody would, and changes it once it has been loaded."""

    def find_spec(self, name, path=None, target=None):
        package, _, module = name.rpartition(".")
        if module != "_bindings" or not package.startswith("nixl"):
            return None
        spec = importlib.machinery.PathFinder.find_spec(name, path, target)
        if spec is not None:
            load = spec.loader.exec_module
            spec.loader.exec_module = lambda loaded: (load(loaded), pause(loaded))
        return spec


sys.meta_path.insert(0, AfterImport())
