"""What the entry point of group `sglang.srt.plugins` names.

SGLang calls `activate` in every process it starts and swallows whatever exception comes out of it
(`except Exception`). A guard that fails open is worse than none, so every failure here becomes
`SystemExit`, which SGLang does not catch: the process ends and the server does not start.

Nothing but the standard library is imported while this module loads, because an import that fails
*there* would be swallowed too.
"""

import sys
import traceback

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


def activate() -> None:
    """Puts the guard into this process, or ends the process with the reason."""
    kind = _process_kind()
    try:
        from . import versions

        version = versions.require_supported()
        if kind == "scheduler":
            from . import install

            install.into_scheduler(version)
    except SystemExit:
        raise
    except BaseException as fault:  # noqa: B036 - whatever it is, the server must not start
        traceback.print_exc()
        _refuse(f"{type(fault).__name__}: {fault}")


def _refuse(reason: str) -> None:
    message = f"cofferdam-guard: refusing to start SGLang: {reason}"
    print(message, file=sys.stderr, flush=True)
    raise SystemExit(message)
