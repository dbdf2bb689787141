"""Stops Mooncake's transfers half way, for as long as a file is there: so that a test can act while a transfer is
really under way.

Name a folder in COFFERDAM_HALFWAY. While `hold` is in it, a transfer that has
written the first half of each of its blocks leaves a file called by its process's id and waits. Nothing else of
Mooncake or of the engine is touched, and a pair without the guard gets it like a guarded one."""

import os
import time
from pathlib import Path

WHERE = os.environ.get("COFFERDAM_HALFWAY")
MODULE = "mooncake.engine"


def asked() -> bool:
    return bool(WHERE)


def change(module) -> None:
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
