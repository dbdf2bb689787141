"""Putting hooks into SGLang, and proving that they are there.

SGLang's registry swallows what goes wrong while it patches. So the guard applies the hooks itself,
then *calls* every hooked function, through the classes and modules that the engine will call it
through, with a sentinel that only a hook understands. A hook that does not answer, a signature that
changed, a module that still holds the unhooked function: the server does not start.
"""

import importlib
import inspect
import sys
from dataclasses import dataclass
from typing import Callable

_PROBE = object()


class NotInPlace(Exception):
    """A hook is missing or not effective."""


@dataclass(frozen=True)
class Answer:
    """What a hook gives back to the probe: its name, and what it wraps."""

    name: str
    original: Callable


@dataclass(frozen=True)
class Hook:
    """One function of SGLang's that the guard wraps.

    `target` is `module:Class.method` or `module:function`; `parameters` the names that the guard
    relies on (none: it may take anything); `through` further classes by which the engine reaches the same function.
    """

    target: str
    parameters: tuple[str, ...] | None
    run: Callable
    through: tuple[str, ...] = ()

    @property
    def dotted(self) -> str:
        return self.target.replace(":", ".")


def resolve(target: str):
    """Owner (module or class) and attribute name of a target."""
    module_name, _, path = target.partition(":")
    owner = importlib.import_module(module_name)
    *outer, name = path.split(".")
    for part in outer:
        owner = getattr(owner, part)
    return owner, name


def _raw(owner, name: str):
    """The function itself, out of its classmethod or staticmethod."""
    for holder in getattr(owner, "__mro__", (owner,)):
        if name in vars(holder):
            found = vars(holder)[name]
            return getattr(found, "__func__", found)
    raise NotInPlace(f"{owner.__name__} has no {name}")


def check_signature(hook: Hook) -> None:
    """Raises `NotInPlace` when the function is not the one that the guard was written for."""
    try:
        owner, name = resolve(hook.target)
        function = _raw(owner, name)
        found = tuple(inspect.signature(function).parameters)
    except (ImportError, AttributeError) as fault:
        raise NotInPlace(f"{hook.target}: {fault}") from fault
    if hook.parameters is not None and found != hook.parameters:
        raise NotInPlace(
            f"{hook.target} takes ({', '.join(found)}), the guard was written for "
            f"({', '.join(hook.parameters)})"
        )


def install(hooks: list[Hook], break_hook: str | None = None) -> None:
    """Checks signatures, registers, applies, probes. Raises `NotInPlace`."""
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType

    for hook in hooks:
        check_signature(hook)
    originals = {}
    for hook in hooks:
        owner, name = resolve(hook.target)
        originals[hook.target] = _raw(owner, name)
        if hook.target != break_hook:
            HookRegistry.register(hook.dotted, _answering(hook), HookType.AROUND)
    HookRegistry.apply_hooks()
    for hook in hooks:
        probe(hook, originals[hook.target])


def _answering(hook: Hook) -> Callable:
    """The hook, with an answer to the probe in front."""

    def wrapped(original, *args, **kwargs):
        if args and args[-1] is _PROBE:
            return Answer(hook.target, original)
        return hook.run(original, *args, **kwargs)

    return wrapped


def probe(hook: Hook, original: Callable | None = None) -> None:
    """Calls the hooked function in every place that the engine may call it."""
    for place in (hook.target, *hook.through):
        owner, name = resolve(place)
        _ask(hook, place, getattr(owner, name))
    if original is None:
        return
    for module in list(sys.modules.values()):
        name = getattr(module, "__name__", "")
        if not name.startswith("sglang."):
            continue
        for attribute, value in list(vars(module).items()):
            if value is original:
                raise NotInPlace(f"{name}.{attribute} is still the unhooked {hook.target}")


def probe_live(hook: Hook, holder) -> None:
    """The same through an object that is in use: its class may override what was hooked."""
    name = hook.target.rpartition(".")[2]
    _ask(
        hook,
        f"{type(holder).__module__}:{type(holder).__qualname__}.{name}",
        getattr(type(holder), name),
    )


def _ask(hook: Hook, place: str, function: Callable) -> None:
    try:
        answer = function(_PROBE)
    except Exception as fault:
        raise NotInPlace(
            f"{place}: the hook does not answer, the unhooked function ran ({fault})"
        ) from fault
    # Another plugin may wrap outside of us; what comes back must still be our answer.
    if not isinstance(answer, Answer) or answer.name != hook.target:
        raise NotInPlace(f"{place}: the hook does not answer")
