"""What runs when SGLang loads the plugin, in every process that it starts.

SGLang swallows whatever exception comes out of a plugin (`except Exception`). A guard that fails
open is worse than none, so every failure here becomes `SystemExit`, which SGLang does not catch:
the process ends and the server does not start.
"""

import os
import sys
import traceback

SUPPORTED = ("0.5.19", "0.5.23")  # guarded pairs of these have passed engines/sglang/run_all.py
# What there are tables of hooks for: before and since the rework of 0.5.21.
_TABLES = ("0.5.19", "0.5.23")

# Processes that carry no pages. SGLang's schedulers alone transfer and attend; hooking the others
# would only import the whole engine into them.
_WITHOUT_PAGES = {
    "run_detokenizer_process": "detokenizer",
    "run_data_parallel_controller_process": "data-parallel controller",
}
_SCHEDULER = "run_scheduler_process"


def _process_kind() -> str:
    """Which of SGLang's processes calls: read from the stack, for nothing else tells it."""
    frame = sys._getframe()
    names = set()
    while frame is not None:
        names.add(frame.f_code.co_name)
        frame = frame.f_back
    if _SCHEDULER in names:
        return "scheduler"
    for name, kind in _WITHOUT_PAGES.items():
        if name in names:
            return kind
    return "launcher"


def table_version() -> str:
    """The version whose table of hooks applies here; raises for one that is not known."""
    from importlib import metadata

    from ..versions import require_version

    found = metadata.version("sglang")
    forced = os.environ.get("COFFERDAM_GUARD_FORCE") == "1"
    if require_version("SGLang", found, SUPPORTED, forced):
        return found
    numbers = tuple(int(part) for part in found.split(".")[:3] if part.isdigit())
    return _TABLES[0] if numbers < (0, 5, 21) else _TABLES[1]


def activate() -> None:
    """Puts the guard into this process, or ends the process with the reason."""
    kind = _process_kind()
    try:
        version = table_version()
        from . import config

        # The launcher too: what is wrong is said before a model is loaded.
        chosen = config.read()
        if kind == "scheduler":
            from . import install

            install.into_scheduler(version, chosen)
    except SystemExit:
        raise
    except BaseException as fault:  # whatever it is, the server must not start
        traceback.print_exc()
        message = f"cofferdam-guard: refusing to start SGLang: {type(fault).__name__}: {fault}"
        print(message, file=sys.stderr, flush=True)
        raise SystemExit(message) from fault
