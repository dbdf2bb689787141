"""Which SGLang this guard was written for and tested with.

The guard sits on functions that SGLang does not promise to keep. A version that is not listed is
refused; `COFFERDAM_GUARD_FORCE=1` goes on with the table of the nearest listed version, and the
signatures are checked all the same.
"""

import os
from importlib import metadata

SUPPORTED = ("0.5.19", "0.5.23")


class Unsupported(Exception):
    """The engine is one that the guard does not know."""


def require_supported() -> str:
    """The version whose table of hooks applies; raises `Unsupported`."""
    found = metadata.version("sglang")
    if found in SUPPORTED:
        return found
    listed = ", ".join(SUPPORTED)
    if os.environ.get("COFFERDAM_GUARD_FORCE") != "1":
        raise Unsupported(
            f"SGLang {found} is not one of the versions this guard was tested with ({listed}). "
            "Install one of these, a newer cofferdam-guard, or set COFFERDAM_GUARD_FORCE=1 to go "
            "on untested"
        )
    return SUPPORTED[0] if _key(found) < _key("0.5.21") else SUPPORTED[1]


def _key(version: str) -> tuple:
    """Numbers of a version, good enough to say before or after."""
    return tuple(int(part) for part in version.split(".")[:3] if part.isdigit())
