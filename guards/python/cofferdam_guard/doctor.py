"""``cofferdam-guard doctor``: what is guarded and what is not, of engines that run (their `/metrics`) and of
those that are installed here (their files; nothing of them is imported)."""

from __future__ import annotations

import re
import urllib.error
import urllib.request
from importlib import metadata

from .coverage import CHECKS, NEVER
from .evidence import PREFIX
from .settings import BadSettings, load
from .sources import Sources, root_of

GUARDED, NOT_GUARDED, UNKNOWN = 0, 1, 3
_MAX_BYTES = 16 << 20
_SAMPLE = re.compile(r"^(\w+)(?:\{(.*)\})? (\S+)$", re.M)
_LABEL = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')
# What an engine must do at least to be called guarded.
_LEAST = ("identity", "content", "release", "selftest")


def run(urls: list[str], timeout: float = 10.0) -> int:
    """Prints, and gives the exit status: 0 all guarded, 1 one is not, 3 one could not be asked."""
    if not urls:
        return _installed()
    return max((_running(url, timeout) for url in urls), default=UNKNOWN)


def samples(text: str) -> list[tuple[str, dict[str, str], float]]:
    """The guard's own samples in Prometheus' text format, without their prefix."""
    found = []
    for name, labels, value in _SAMPLE.findall(text):
        if name.startswith(PREFIX):
            try:
                found.append((name.removeprefix(PREFIX), dict(_LABEL.findall(labels)), float(value)))
            except ValueError:
                continue
    return found


def _running(url: str, timeout: float) -> int:
    address = url.rstrip("/") + "/metrics"
    try:
        with urllib.request.urlopen(address, timeout=timeout) as answer:
            text = answer.read(_MAX_BYTES).decode(errors="replace")
    except (OSError, ValueError) as fault:
        print(f"{url}: cannot be asked ({fault}). SGLang has /metrics with --enable-metrics")
        return UNKNOWN
    found = samples(text)
    who = [(name, labels) for name, labels, value in found if name in ("ready", "info") and value == 1]
    if not who:
        print(f"{url}: NO guard is ready here. Its log says why it is not, if it was loaded at all")
        return NOT_GUARDED
    on = {labels["check"]: value == 1 for name, labels, value in found if name == "check"}
    name, first = who[0]
    if name == "ready":
        version, where = first.get("guard"), f"SGLang {first.get('engine')} ({first.get('engine_type')})"
    else:
        version, where = first.get("version"), f"vLLM (policy {first.get('policy')})"
    print(f"{url}: guard {version} in {where}")
    for name, what in CHECKS.items():
        # An older guard says nothing of single checks.
        mark = {True: "guarded    ", False: "NOT guarded"}.get(on.get(name), "not said   ")
        print(f"  {mark}  {name}: {what}")
    print(f"  NOT guarded  {NEVER}")
    _counts(found)
    return GUARDED if all(on.get(name) for name in _LEAST) else NOT_GUARDED


def _counts(found: list[tuple[str, dict[str, str], float]]) -> None:
    verified = sum(value for name, _, value in found if name == "verified_total")
    causes: dict[str, float] = {}
    for name, labels, value in found:
        if name == "refusals_total" and value:
            cause = labels.get("cause", "?")
            causes[cause] = causes.get(cause, 0) + value
    refused = ", ".join(f"{n:.0f} {cause}" for cause, n in sorted(causes.items())) or "none"
    held = sum(value for name, _, value in found if name == "quarantined_pages")
    quarantined = f"; {held:.0f} pages in quarantine" if held else ""
    print(f"  {verified:.0f} verified (each rank counts its own); refused: {refused}{quarantined}")


def _installed() -> int:
    """Whether the guard fits what is installed beside it, and whether its settings make sense."""
    seen, worst = False, GUARDED
    for engine, package, differences in (("SGLang", "sglang", _sglang), ("vLLM", "vllm", _vllm)):
        root = root_of(package)
        if root is None:
            continue
        seen = True
        wrong, tried = differences(Sources(root))
        version = _version(package)
        if wrong:
            worst = NOT_GUARDED
            print(f"{engine} {version}: the guard does NOT fit; it would not start:")
            print("".join(f"  {one}\n" for one in wrong), end="")
        else:
            note = "" if version in tried else f" (whole pairs were run with {', '.join(tried)})"
            print(f"{engine} {version}: the guard fits{note}; the self-test at start decides")
    if not seen:
        print("neither SGLang nor vLLM is installed in this environment")
        worst = UNKNOWN
    try:
        load()
        print("settings: a secret, and everything else that is set, can be used")
    except BadSettings as fault:
        worst = max(worst, NOT_GUARDED)
        print(f"settings: {fault}")
    print("name the URLs of running engines to see what is guarded in them")
    return worst


def _version(package: str) -> str:
    for name in (package, f"{package}-cpu"):
        try:
            return metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return "?"


def _sglang(sources: Sources) -> tuple[list, tuple[str, ...]]:
    from .sglang import plugin, surface

    return list(surface.fit(sources).differences), plugin.TRIED


def _vllm(sources: Sources) -> tuple[list, tuple[str, ...]]:
    from .vllm import surface

    return sources.differences(surface.FUNCTIONS, surface.NAMES), tuple(surface.TRIED)
