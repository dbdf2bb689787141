"""Stops Mooncake's transfers half way, for as long as a file is there: so that a test can act while a transfer is
really under way.

Put this folder on `PYTHONPATH` and name a folder in COFFERDAM_HALFWAY. While `hold` is in it, a transfer that has
written the first half of each of its blocks leaves a file called by its process's id and waits. Nothing else of
Mooncake or of the engine is touched, and a pair without the guard gets it like a guarded one."""

import importlib.abc
import importlib.machinery
import os
import sys
import time
from pathlib import Path

WHERE = os.environ.get("COFFERDAM_HALFWAY")


def halve(module) -> None:
    engine, folder = module.TransferEngine, Path(WHERE)
    write = engine.batch_transfer_sync_write

    def halfway(self, peer, sources, targets, lengths):
        if not (folder / "hold").exists():
            return write(self, peer, sources, targets, lengths)
        first = [length // 2 for length in lengths]
        found = write(self, peer, sources, targets, first)
        (folder / str(os.getpid())).touch()
        while (folder / "hold").exists():
            time.sleep(0.01)
        rest = [
            [at + done for at, done in zip(sources, first)],
            [at + done for at, done in zip(targets, first)],
            [length - done for length, done in zip(lengths, first)],
        ]
        return found or write(self, peer, *rest)

    engine.batch_transfer_sync_write = halfway


class AfterImport(importlib.abc.MetaPathFinder):
    """Finds Mooncake's engine as everybody would, and changes it once it has been loaded."""

    def find_spec(self, name, path=None, target=None):
        if name != "mooncake.engine":
            return None
        spec = importlib.machinery.PathFinder.find_spec(name, path, target)
        if spec is not None:
            load = spec.loader.exec_module
            spec.loader.exec_module = lambda loaded: (load(loaded), halve(loaded))
        return spec


if WHERE:
    sys.meta_path.insert(0, AfterImport())
