"""Lets NIXL's progress thread sleep between two looks.

NIXL has a delay for that thread (`pthrDelay`), and its Python binding fixes it at 0: one thread of each
worker then polls without a pause and takes a whole core. On a machine with fewer cores than that,
everything else waits for them, and what is measured is the wait. Put this folder on `PYTHONPATH` and the
delay is COFFERDAM_NIXL_PAUSE_US. Nothing else of NIXL or of the engine is touched, and a stock pair gets
it like a guarded one.

With a folder in COFFERDAM_HALFWAY, no transfer is said to have ended while the file `hold` is in it, and each
process that asks leaves a file called by its id: so that `killed.py` can act while a fetch is open."""

import importlib.abc
import importlib.machinery
import os
import sys
from pathlib import Path

PAUSE_US = int(os.environ.get("COFFERDAM_NIXL_PAUSE_US", "500"))


def pause(binding) -> None:
    base = binding.nixlAgentConfig

    class Paused(base):
        def __setattr__(self, name, value):
            super().__setattr__(name, PAUSE_US if name == "pthrDelay" else value)

    binding.nixlAgentConfig = Paused


def keep_open(api) -> None:
    agent, folder = getattr(api, "nixl_agent", None), os.environ.get("COFFERDAM_HALFWAY")
    if not folder or agent is None:
        return
    original = agent.check_xfer_state

    def check_xfer_state(self, handle):
        if not Path(folder, "hold").exists():
            return original(self, handle)
        Path(folder, str(os.getpid())).touch()
        return "PROC"

    agent.check_xfer_state = check_xfer_state


CHANGES = {"_bindings": pause, "_api": keep_open}


class AfterImport(importlib.abc.MetaPathFinder):
    """Finds NIXL's modules as everybody would, and changes them once they have been loaded."""

    def find_spec(self, name, path=None, target=None):
        package, _, module = name.rpartition(".")
        if module not in CHANGES or not package.startswith("nixl"):
            return None
        spec = importlib.machinery.PathFinder.find_spec(name, path, target)
        if spec is not None:
            load = spec.loader.exec_module
            spec.loader.exec_module = lambda loaded: (load(loaded), CHANGES[module](loaded))
        return spec


sys.meta_path.insert(0, AfterImport())
