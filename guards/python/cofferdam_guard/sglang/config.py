"""Settings, all from the environment, for SGLang has no place for a plugin's flags.

Every value is read once, when the scheduler process starts.
"""

import os
from dataclasses import dataclass


@dataclass(frozen=True)
class Config:
    """What an operator may choose. Defaults are the strict choice."""

    # Shared secret of prefill and decode: tickets, statements and page tags are keyed with it.
    key: bytes
    # JSON lines go there; none: only counters and the log.
    audit_path: str | None
    # Parts of the pool that may be held for writers which never proved their end.
    quarantine_limit: float
    # Whether each page's bytes are summed on both sides.
    checksum: bool
    # Whether every step's block table is compared with the tags.
    step_check: bool
    # Faults on request (`rid` of a certain form), for tests and the self-test only.
    faults: bool
    # A peer without a guard is refused unless this says otherwise.
    allow_unguarded_peer: bool
    # Break one hook on purpose, to show that the server then refuses to start.
    break_hook: str | None


def read() -> Config:
    """Settings of this process; raises `ValueError` naming the variable that makes no sense."""
    limit = os.environ.get("COFFERDAM_GUARD_QUARANTINE_LIMIT", "0.25")
    try:
        fraction = float(limit)
    except ValueError:
        fraction = -1.0
    if not 0.0 < fraction <= 1.0:
        raise ValueError(
            f"COFFERDAM_GUARD_QUARANTINE_LIMIT is {limit!r}; a part of the pool is wanted, 0 < x <= 1"
        )
    return Config(
        key=os.environ.get("COFFERDAM_GUARD_KEY", "").encode(),
        audit_path=os.environ.get("COFFERDAM_GUARD_AUDIT") or None,
        quarantine_limit=fraction,
        checksum=_flag("COFFERDAM_GUARD_CHECKSUM", True),
        step_check=_flag("COFFERDAM_GUARD_STEP_CHECK", True),
        faults=_flag("COFFERDAM_GUARD_FAULTS", False),
        allow_unguarded_peer=_flag("COFFERDAM_GUARD_ALLOW_UNGUARDED_PEER", False),
        break_hook=os.environ.get("COFFERDAM_GUARD_TEST_BREAK") or None,
    )


def _flag(name: str, default: bool) -> bool:
    value = os.environ.get(name)
    if value is None or value == "":
        return default
    if value not in ("0", "1"):
        raise ValueError(f"{name} is {value!r}; 0 or 1 is wanted")
    return value == "1"
