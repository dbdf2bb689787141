"""What a guard looks at in the process that it runs in, and what it does not: one line in the engine's log,
one gauge for each check in its `/metrics`, and what `cofferdam-guard doctor` prints."""

from __future__ import annotations

from dataclasses import dataclass, field

GAUGE = "check"
CHECKS = {
    "identity": "the handoff is for this prompt, model, adapter and salt",
    "content": "what arrived is, byte for byte, what was computed for this request",
    "step": "every step's block table names this request's blocks only",
    "release": "blocks are kept until nobody can write or read them any more",
    "ranks": "what one rank refuses, all refuse at the same step",
    "selftest": "this process has refused a flipped bit in its own memory at start",
}
# Nowhere, whatever is set.
NEVER = "bytes that change after the check of what arrived, without their tag; the key's owner"


@dataclass
class Coverage:
    on: dict[str, bool] = field(default_factory=lambda: dict.fromkeys(CHECKS, False))
    # What cannot be said in a yes or no: shape, groups, ranks.
    shape: str = ""

    def set(self, **checks: bool) -> "Coverage":
        unknown = set(checks) - set(CHECKS)
        if unknown:
            raise ValueError(f"no such check: {', '.join(sorted(unknown))}")
        self.on.update(checks)
        return self

    def line(self) -> str:
        """For the engine's log."""
        guarded = [name for name, on in self.on.items() if on]
        left = [name for name, on in self.on.items() if not on]
        shape = f" ({self.shape})" if self.shape else ""
        return (
            f"cofferdam-guard: guarded{shape}: {', '.join(guarded) or 'nothing'}. "
            f"NOT guarded: {', '.join([*left, NEVER])}"
        )
