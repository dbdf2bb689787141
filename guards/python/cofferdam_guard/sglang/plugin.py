"""What runs when SGLang loads the plugin, in every process that it starts.

SGLang swallows whatever exception comes out of a plugin (`except Exception`). A guard that fails
open is worse than none, so every failure here becomes `SystemExit`, which SGLang does not catch:
the process ends and the server does not start.

What is wrong is said here, by the first process, before anything of the engine is imported: version,
settings, and from the engine's files whether everything is there that the guard stands on.
"""

import os
import sys
import traceback
from collections.abc import Iterable
from types import SimpleNamespace
from typing import Any, NamedTuple

from ..settings import BadSettings
from ..sources import Difference, Sources, root_of
from ..versions import UnknownEngine, advice
from . import guardable, surface

TRIED = ("0.5.19", "0.5.20", "0.5.21", "0.5.22", "0.5.23")  # guarded pairs of these have passed engines/sglang/run_all.py

# Processes that carry no pages. SGLang's schedulers alone transfer and attend; hooking the others
# would only import the whole engine into them.
_WITHOUT_PAGES = {
    "run_detokenizer_process": "detokenizer",
    "run_data_parallel_controller_process": "data-parallel controller",
}
_SCHEDULER = "run_scheduler_process"
ARM = "COFFERDAM_GUARD_ARM"
HANDING_OVER, ALWAYS, NEVER = "disaggregated", "always", "never"


class Process(NamedTuple):
    """Which of SGLang's processes calls, and its settings as far as they are known already."""

    kind: str
    mode: str | None
    args: Any


def _process() -> Process:
    """Read from the stack, for nothing else tells it."""
    frame = sys._getframe()
    kind, mode, args = "launcher", None, None
    while frame is not None:
        name = frame.f_code.co_name
        if name == _SCHEDULER or (kind == "launcher" and name in _WITHOUT_PAGES):
            kind = _WITHOUT_PAGES.get(name, "scheduler")
        if mode is None:
            mode, args = _settings_in(frame)
        frame = frame.f_back
    return Process(kind, mode, args)


def _settings_in(frame) -> tuple[str | None, Any]:
    """Disaggregation mode and settings, from those that SGLang's functions carry, or from the call of
    its `Engine`."""
    where = frame.f_code.co_filename.replace(os.sep, "/")
    if "/sglang/" not in where:
        return None, None
    args, words = frame.f_locals.get("server_args"), frame.f_locals.get("kwargs")
    if args is None and isinstance(words, dict) and where.endswith("/entrypoints/engine.py"):
        args = words.get("server_args") or SimpleNamespace(
            **{"disaggregation_mode": "null"} | words
        )
    found = getattr(args, "disaggregation_mode", None)
    return (found, args) if isinstance(found, str) else (None, None)


def _arm() -> str:
    """For which servers this installation is meant."""
    chosen = os.environ.get(ARM, HANDING_OVER)
    if chosen not in (HANDING_OVER, ALWAYS, NEVER):
        raise BadSettings(f"{ARM} is {chosen!r}: {HANDING_OVER}, {ALWAYS} or {NEVER}")
    return chosen


def require_fit(sources: Sources | None = None) -> tuple[surface.Fit, str]:
    """What to hook in the SGLang that is installed, and its version; raises for one that the guard cannot
    run in. Everything is read from files: nothing of the engine is imported."""
    from importlib import metadata

    found = metadata.version("sglang")
    if sources is None:
        root = root_of("sglang")
        if root is None:
            raise UnknownEngine("the files of SGLang that its package metadata names are not there")
        sources = Sources(root)
    fit = surface.fit(sources)
    if fit.differences:
        raise UnknownEngine(_does_not_fit(found, fit.differences))
    return fit, found


def _does_not_fit(found: str, wrong: Iterable[Difference]) -> str:
    lines = "".join(f"\n  {one}" for one in wrong)
    return (
        f"SGLang {found} is not what the guard was written for. Of what it stands on, these differ here:"
        f"{lines}\n"
        f"These hooks would protect nothing. Install an SGLang that was tried ({', '.join(TRIED)}), or run "
        f"this one without the guard ({ARM}={NEVER})."
    )


def _say(text: str) -> None:
    print(f"cofferdam-guard: {text}", file=sys.stderr, flush=True)


def _stays_away(kind: str, mode: str | None) -> bool:
    """Whether this process is none of the guard's, which is said once a server."""
    arm = _arm()
    if arm == NEVER:
        if kind == "launcher":
            _say(f"OFF in every server started here: {ARM}={NEVER}")
        return True
    if arm == HANDING_OVER and mode == "null":
        if kind == "scheduler":
            _say(
                "not active: this server hands nothing over (no --disaggregation-mode). The package "
                f"is loaded by every SGLang of this environment; {ARM}={ALWAYS} hooks single servers "
                f"too, {ARM}={NEVER} none"
            )
        return True
    return False


def activate() -> None:
    """Puts the guard into this process, or ends the process with the reason."""
    try:
        kind, mode, args = _process()
        if kind in _WITHOUT_PAGES.values() or _stays_away(kind, mode):
            return
        if kind == "launcher" and not _hands_over(mode):
            return
        fit, version = require_fit()
        if mode not in (None, "null"):
            guardable.refuse(guardable.by_settings(args))
        from . import config

        chosen = config.read()
        if kind == "launcher":
            _say(
                advice("SGLang", version, TRIED)
                or f"SGLang {version} fits; its schedulers are going to be guarded"
            )
        else:
            from . import install

            install.into_scheduler(fit.hooked, chosen)
    except SystemExit:
        raise
    except BaseException as fault:  # whatever it is, the server must not start
        if not isinstance(fault, (UnknownEngine, BadSettings, guardable.Unguardable)):
            traceback.print_exc()
        message = f"cofferdam-guard: refusing to start SGLang: {type(fault).__name__}: {fault}"
        print(message, file=sys.stderr, flush=True)
        raise SystemExit(message) from fault


def _hands_over(mode: str | None) -> bool:
    """In the launcher the settings may not be read yet; then its command line tells. Where neither
    does, the scheduler is the first to look: it has the settings."""
    if _arm() == ALWAYS or mode is not None:
        return True
    return any(word.startswith("--disaggregation") for word in sys.argv[1:])
