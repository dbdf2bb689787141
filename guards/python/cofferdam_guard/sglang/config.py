"""Settings, all from the environment, for SGLang has no place for a plugin's flags.

Secret, audit file and force are those of the whole package (`..settings`); these are SGLang's own.
"""

import hashlib
import os
from dataclasses import dataclass

from .. import settings
from ..core import Secret

# Values of COFFERDAM_GUARD_STEP_CHECK beside 0 and 1.
WITH_OUTPUT = "with-output"


@dataclass(frozen=True)
class Config:
    """What an operator may choose. Defaults are the strict choice."""

    secret: Secret
    # What tickets, statements and page tags are keyed with, made from the secret.
    key: bytes
    # JSON lines go there; empty: the engine's log only.
    audit: str
    # Part of the pool that may be held for writers which never proved their end.
    quarantine_limit: float
    # Whether each page's bytes are summed on both sides.
    checksum: bool
    # Whether every step's block table is compared with the tags; `WITH_OUTPUT`: and the result is
    # read with the step's output on a CPU too, as it is on every other device.
    step_check: bool | str
    # Faults on request (`rid` of a certain form), for tests and the self-test only.
    faults: bool
    # A peer without a guard is refused unless this says otherwise.
    allow_unguarded_peer: bool
    # Leave one hook out on purpose, to show that the server then refuses to start.
    break_hook: str
    # How long decode waits for what it compares after prefill has said that all has arrived.
    wait_s: float = 30.0


def read() -> Config:
    """Settings of this process; raises `settings.BadSettings` naming what makes no sense."""
    common = settings.load()
    limit = os.environ.get("COFFERDAM_GUARD_QUARANTINE_LIMIT", "0.25")
    try:
        fraction = float(limit)
    except ValueError:
        fraction = -1.0
    if not 0.0 < fraction <= 1.0:
        raise settings.BadSettings(
            f"COFFERDAM_GUARD_QUARANTINE_LIMIT is {limit!r}: a part of the pool, above 0, at most 1"
        )
    return Config(
        secret=common.secret,
        key=hashlib.blake2b(common.secret.coefficients(8), person=b"cofferdam-sglang").digest(),
        audit=common.audit,
        quarantine_limit=fraction,
        checksum=_flag("COFFERDAM_GUARD_CHECKSUM", True),
        step_check=_flag("COFFERDAM_GUARD_STEP_CHECK", True, WITH_OUTPUT),
        faults=_flag("COFFERDAM_GUARD_FAULTS", False),
        allow_unguarded_peer=_flag("COFFERDAM_GUARD_ALLOW_UNGUARDED_PEER", False),
        break_hook=os.environ.get("COFFERDAM_GUARD_TEST_BREAK", ""),
        wait_s=common.wait_s,
    )


def _flag(name: str, default: bool, *more: str) -> bool | str:
    value = os.environ.get(name, "")
    if value in more:
        return value
    if value not in ("", "0", "1"):
        raise settings.BadSettings(f"{name} is {value!r}: {', '.join(('0', *more))} or 1")
    return default if value == "" else value == "1"
