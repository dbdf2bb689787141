"""What the client of a refused request is answered, in vLLM's API server.

vLLM answers every failed load with 500 "Internal server error". Here the refusal's own words stand in
the answer, and one for slowness is 503, vLLM's own way to say that a request may be asked again. What
was refused travels with the connector's statistics, in the same message as the failure itself; where
they are switched off (`--disable-log-stats`) the answer is vLLM's, as before: never a 200."""

from __future__ import annotations

import re
import threading
from collections import OrderedDict
from collections.abc import Iterable
from typing import Any

from ..causes import status_of

# Refusals remembered for requests that nobody has answered yet; the oldest go first.
KEPT_MAX = 4096

# The prompt's number, and what makes a name unique.
_BEHIND = re.compile(r"(-\d+)?(-[0-9a-f]{8})?")

_lock = threading.Lock()
_kept: OrderedDict[str, tuple[int, str]] = OrderedDict()


def remember(told: Iterable[Any]) -> None:
    """(request, cause, text) of refusals, as the engine's processes said them."""
    with _lock:
        for request, cause, text in told:
            _kept[str(request)] = (status_of(cause), str(text))
            while len(_kept) > KEPT_MAX:
                _kept.popitem(last=False)


def find(request: str) -> tuple[int, str] | None:
    """Status and text for a request as the API server names it. The engine's name of the same request
    has more behind it."""
    with _lock:
        if (found := _kept.pop(request, None)) is not None:
            return found
        for name in _kept:
            if name.startswith(request) and _BEHIND.fullmatch(name, len(request)):
                return _kept.pop(name)
    return None


def install() -> None:
    """Into this process's API server, once."""
    from vllm.entrypoints.generate.base.serving import GenerateBaseServing
    from vllm import exceptions

    original = GenerateBaseServing._raise_if_error
    if getattr(original, "cofferdam", False):
        return

    def _raise_if_error(self: Any, finish_reason: str | None, request_id: str) -> None:
        refusal = find(request_id) if finish_reason == "error" else None
        if refusal is not None:
            status, text = refusal
            # vLLM to 0.31 has no word for "ask again": 500 there too, with the same text.
            again = getattr(exceptions, "RetryableRequestError", exceptions.GenerationError)
            raise again(text) if status == 503 else exceptions.GenerationError(text)
        original(self, finish_reason, request_id)

    _raise_if_error.cofferdam = True  # type: ignore[attr-defined]
    GenerateBaseServing._raise_if_error = _raise_if_error
