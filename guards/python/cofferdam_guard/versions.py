"""Which engines the guard knows. Internals of an engine have no version of their own, so each guard
lists the engine versions that it was tested with, and looks at the signatures it relies on."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable


class UnknownEngine(RuntimeError):
    """The guard must not run here: it could be silently without effect."""


def require_version(engine: str, found: str, supported: Iterable[str], force: bool) -> bool:
    """Whether ``found`` is on the list; if it is not: an error, unless forced."""
    supported = list(supported)
    if found in supported:
        return True
    if force:
        return False
    raise UnknownEngine(
        f"cofferdam-guard was tested with {engine} {', '.join(supported)}, this is {found}. It does "
        f"not start on an engine it does not know, because a hook that no longer fits would protect "
        f"nothing. Install a tested version, or set COFFERDAM_GUARD_FORCE=1 and run the self-test."
    )


def require_signatures(expected: Iterable[tuple[Callable, list[str]]]) -> None:
    """Each callable has these parameters first, by name and in this order; anything else is an
    error, forced or not."""
    wrong = []
    for function, names in expected:
        got = list(inspect.signature(function).parameters)
        if got[: len(names)] != names:
            where = f"{function.__module__}.{function.__qualname__}"
            wrong.append(f"{where}{tuple(got)}, expected {tuple(names)}")
    if wrong:
        raise UnknownEngine(
            "internals of the engine that the guard relies on have changed:\n  " + "\n  ".join(wrong)
        )
