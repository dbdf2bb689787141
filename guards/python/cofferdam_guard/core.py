"""The Rust core, as Python sees it. A refusal is a ``GuardFault`` with args (kind, message)."""

from ._core import (
    Counters,
    GuardFault,
    Ledger,
    Producer,
    Reference,
    Secret,
    Seen,
    Statement,
    audit_line,
    claim_message,
    read_claim,
)

__all__ = [
    "Counters",
    "GuardFault",
    "Ledger",
    "Producer",
    "Reference",
    "Secret",
    "Seen",
    "Statement",
    "audit_line",
    "claim_message",
    "kind_of",
    "read_claim",
]


def kind_of(fault: GuardFault) -> str:
    """The short word for what was refused, for counters and audit records."""
    return fault.args[0] if fault.args else "unknown"
