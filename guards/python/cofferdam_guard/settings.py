"""What the operator sets. Engines pass their own options; the environment holds for all of them."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from .core import GuardFault, Secret

FAIL, RECOMPUTE = "fail", "recompute"
# A secret is a line of text; what is longer is another file.
SECRET_BYTES_MAX = 4096


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
    # Whether block tables are compared at every step (vLLM; SGLang's guard has a word more for it).
    step_check: bool = True

    def with_policy(self, policy: str) -> "Settings":
        return Settings(**{**self.__dict__, "policy": policy})


def load(
    options: Mapping[str, Any] | None = None,
    env: Mapping[str, str] | None = None,
    defaults: Mapping[str, str] | None = None,
) -> Settings:
    """Settings from the engine's options (``guard_...``) over ``COFFERDAM_GUARD_...`` variables over
    what the engine's own settings suggest."""
    env = os.environ if env is None else env
    options, defaults = options or {}, defaults or {}

    def value(name: str, default: str) -> str:
        found = options.get("guard_" + name, env.get("COFFERDAM_GUARD_" + name.upper()))
        if found is None:
            found = defaults.get(name, default)
        return str(found)

    policy = value("policy", FAIL)
    if policy not in (FAIL, RECOMPUTE):
        raise BadSettings(f"COFFERDAM_GUARD_POLICY is {policy!r}: 'fail' or 'recompute'")
    try:
        port, wait_s = int(value("port", "5700")), float(value("wait_s", "30"))
    except ValueError as error:
        raise BadSettings(f"a number of the guard's settings is none: {error}") from error
    if not 0 < port < 65536 or not 0 < wait_s <= 600:
        derived = " (the engine's own port + 1000)" if str(port) == defaults.get("port") else ""
        raise BadSettings(
            f"port {port}{derived} or wait_s {wait_s} is out of range (1-65535, up to 600 s): set "
            "COFFERDAM_GUARD_PORT or COFFERDAM_GUARD_WAIT_S"
        )
    _require_writable(value("audit", ""))
    return Settings(
        secret=_secret(env),
        policy=policy,
        host=value("host", "127.0.0.1"),
        port=port,
        wait_s=wait_s,
        audit=value("audit", ""),
        step_check=step_check(env),
    )


def step_check(env: Mapping[str, str] | None = None) -> bool:
    """Whether the check of each step is on."""
    return (os.environ if env is None else env).get("COFFERDAM_GUARD_STEP_CHECK", "1") != "0"


def _secret(env: Mapping[str, str]) -> Secret:
    """Never an option: options are printed by the engines."""
    path = env.get("COFFERDAM_GUARD_SECRET_FILE")
    where, found = "COFFERDAM_GUARD_SECRET", env.get("COFFERDAM_GUARD_SECRET", "").encode()
    if path:
        where = f"COFFERDAM_GUARD_SECRET_FILE ({path})"
        try:
            with open(path, "rb") as file:
                found = file.read(SECRET_BYTES_MAX + 1).strip()
        except OSError as fault:
            raise BadSettings(f"{where} cannot be read: {fault.strerror}") from fault
    elif not found:
        raise BadSettings(
            "the guard has no secret: set COFFERDAM_GUARD_SECRET_FILE (or COFFERDAM_GUARD_SECRET) to "
            "the same long random secret on every engine of the fleet (openssl rand -hex 32)"
        )
    if len(found) > SECRET_BYTES_MAX:
        raise BadSettings(f"{where} is longer than {SECRET_BYTES_MAX} bytes: is it another file?")
    try:
        return Secret(found)
    except GuardFault as fault:
        raise BadSettings(f"{where}: {fault.args[-1]} (openssl rand -hex 32)") from fault


def _require_writable(path: str) -> None:
    """An audit log that cannot be written is said before a model is loaded."""
    if not path:
        return
    try:
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC
        # A pipe that nobody reads must not be waited for.
        os.close(os.open(path, flags | os.O_NONBLOCK, 0o640))
    except OSError as fault:
        raise BadSettings(
            f"the audit log (COFFERDAM_GUARD_AUDIT or guard_audit) {path!r} cannot be written: "
            f"{fault.strerror}. Name a file in a folder of which this user may write, or none"
        ) from fault
