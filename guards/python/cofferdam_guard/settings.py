"""What the operator sets. Engines pass their own options; the environment holds for all of them."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from .core import Secret

FAIL, RECOMPUTE = "fail", "recompute"


class BadSettings(RuntimeError):
    """The guard cannot start like this; the message says what to change."""


@dataclass(frozen=True)
class Settings:
    secret: Secret
    # What a request gets whose blocks are refused: an error, or its prompt computed here.
    policy: str
    # Where guards of one pair talk to each other: rank r listens r ports above.
    host: str
    port: int
    # How long a consumer waits for a producer's statement after its blocks have arrived.
    wait_s: float
    # File of the audit log; empty: the engine's log only.
    audit: str
    # Run with engine versions that are not on the list.
    force: bool

    def with_policy(self, policy: str) -> "Settings":
        return Settings(**{**self.__dict__, "policy": policy})


def load(options: Mapping[str, Any] | None = None, env: Mapping[str, str] | None = None) -> Settings:
    """Settings from the engine's options (``guard_...``) over ``COFFERDAM_GUARD_...`` variables."""
    env = os.environ if env is None else env
    options = options or {}

    def value(name: str, default: str) -> str:
        found = options.get("guard_" + name, env.get("COFFERDAM_GUARD_" + name.upper(), default))
        return str(found)

    policy = value("policy", FAIL)
    if policy not in (FAIL, RECOMPUTE):
        raise BadSettings(f"COFFERDAM_GUARD_POLICY is {policy!r}: 'fail' or 'recompute'")
    try:
        port, wait_s = int(value("port", "5700")), float(value("wait_s", "30"))
    except ValueError as error:
        raise BadSettings(f"a number of the guard's settings is none: {error}") from error
    if not 0 < port < 65536 or not 0 < wait_s <= 600:
        raise BadSettings(f"port {port} or wait_s {wait_s} is out of range (1-65535, up to 600 s)")
    return Settings(
        secret=Secret(_secret(env)),
        policy=policy,
        host=value("host", "127.0.0.1"),
        port=port,
        wait_s=wait_s,
        audit=value("audit", ""),
        force=env.get("COFFERDAM_GUARD_FORCE") == "1",
    )


def _secret(env: Mapping[str, str]) -> bytes:
    """Never an option: options are printed by the engines."""
    path = env.get("COFFERDAM_GUARD_SECRET_FILE")
    if path:
        with open(path, "rb") as file:
            return file.read().strip()
    if secret := env.get("COFFERDAM_GUARD_SECRET"):
        return secret.encode()
    raise BadSettings(
        "the guard has no secret: set COFFERDAM_GUARD_SECRET_FILE (or COFFERDAM_GUARD_SECRET) to "
        "the same long random secret on every engine of the fleet (openssl rand -hex 32)"
    )
