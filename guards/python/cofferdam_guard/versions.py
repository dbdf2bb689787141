"""What an engine has decides whether the guard runs in it, not what its version is called: signatures
before anything loads, a self-test on the live process after. A list of versions is advice."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable


class UnknownEngine(RuntimeError):
    """The guard must not run here: it could be silently without effect."""


def advice(engine: str, found: str, tried: Iterable[str]) -> str:
    """One line for the log on which versions were tried; empty for one of them."""
    tried = list(tried)
    if found in tried:
        return ""
    return (
        f"{engine} {found} has everything that the guard stands on; whole pairs were run with "
        f"{', '.join(tried)}. The self-test at start decides"
    )


def require_signatures(expected: Iterable[tuple[Callable, list[str]]]) -> None:
    """Each callable has these parameters first, by name and in this order; anything else is an
    error."""
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
