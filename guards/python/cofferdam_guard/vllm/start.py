"""What must hold before the guard starts: a known engine, settings that make sense, a layout it can
check, ports that can be had.

vLLM imports the connector's module while it makes its configuration, long before a model is loaded.
So all of this is looked at there, and once more when the connector is made: what happened in between
(another process on the port) is found then.
"""

from __future__ import annotations

import importlib
import os
import socket
import sys
from typing import Any

from ..settings import BadSettings, Settings, load
from ..versions import require_signatures
from . import surface

# The guard's own side channel is this far above NIXL's unless it is set.
ABOVE_NIXL = 1000
LEASE_S = 30  # vLLM's default of kv_lease_duration
# Set in the first process, for its children: ports are theirs by then.
_LOOKED = "COFFERDAM_GUARD_PORTS_LOOKED_AT"


def early(engine: Any) -> None:
    """Everything that can be known while vLLM makes its configuration (`engine`: the package)."""
    surface.require(engine.__version__)
    config, transfer = _being_made()
    if transfer is None:
        load()  # the secret at least
        return
    settings, _ = settings_of(transfer, os.environ)
    if config is None:
        return
    require_config(config)
    if _LOOKED not in os.environ and serves(transfer):
        require_ports(settings, config.parallel_config, local_ranks(config.parallel_config))
        os.environ[_LOOKED] = "1"


def _being_made() -> tuple[Any, Any]:
    """The configuration that vLLM is making, from the stack: nothing else tells it this early. The
    import comes out of `KVConnectorFactory.get_connector_class`, and that out of the configuration's
    own checks, or from elsewhere, later: then there is none."""
    frame, config, transfer = sys._getframe(), None, None
    while frame is not None:
        if transfer is None and frame.f_code.co_name == "get_connector_class":
            transfer = frame.f_locals.get("kv_transfer_config")
        if frame.f_code.co_name == "__post_init__":
            made = frame.f_locals.get("self")
            if hasattr(made, "parallel_config") and hasattr(made, "kv_transfer_config"):
                config = made
        frame = frame.f_back
    return config, transfer


def settings_of(transfer: Any, env: Any) -> tuple[Settings, float]:
    """The guard's settings and the lease, from the transfer's options and the environment."""
    extra = transfer.kv_connector_extra_config or {}
    # vLLM's own policy decides what a failed load means, so it decides here too.
    options = dict(extra) | {"guard_policy": transfer.kv_load_failure_policy}
    side = env.get("VLLM_NIXL_SIDE_CHANNEL_PORT", "5600")
    try:
        port = str(int(side) + ABOVE_NIXL)
        lease = float(extra.get("kv_lease_duration", LEASE_S))
    except (TypeError, ValueError) as error:
        raise BadSettings(
            f"VLLM_NIXL_SIDE_CHANNEL_PORT ({side!r}) or kv_lease_duration is no number: {error}"
        ) from error
    if not 0 < lease <= 86400:
        raise BadSettings(f"kv_lease_duration is {lease}: seconds, above 0, at most a day")
    default = {"host": env.get("VLLM_NIXL_SIDE_CHANNEL_HOST", "localhost"), "port": port}
    return load(options, env, default), lease


def serves(transfer: Any) -> bool:
    """Whether this instance answers claims."""
    return transfer.kv_role != "kv_consumer"


def local_ranks(parallel: Any) -> int:
    """How many ranks of this machine listen, each on a port of its own."""
    return parallel.tensor_parallel_size * max(1, getattr(parallel, "data_parallel_size_local", 1))


def first_port(settings: Settings, parallel: Any) -> int:
    """The port of this engine's first rank; the others listen above it."""
    return settings.port + parallel.data_parallel_index * parallel.tensor_parallel_size


def require_ports(settings: Settings, parallel: Any, count: int) -> None:
    """Every port that the guard is going to listen on can be had now."""
    first = first_port(settings, parallel)
    side = int(os.environ.get("VLLM_NIXL_SIDE_CHANNEL_PORT", "5600"))
    nixl = range(side, side + max(1, parallel.data_parallel_size))
    for port in range(first, first + count):
        if port > 65535:
            raise BadSettings(no_port(settings, port, "there is no such port"))
        if port in nixl:
            what = "it is NIXL's own (VLLM_NIXL_SIDE_CHANNEL_PORT and one for each data-parallel rank)"
            raise BadSettings(no_port(settings, port, what))
        try:
            _bind(settings.host, port)
        except OSError as fault:
            raise BadSettings(no_port(settings, port, fault.strerror or str(fault))) from fault


def _bind(host: str, port: int) -> None:
    family, kind, protocol, _, address = socket.getaddrinfo(
        None if host == "*" else host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
    )[0]
    with socket.socket(family, kind, protocol) as listening:
        # As ZeroMQ does; whoever listens there is in the way all the same.
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind(address)
        listening.listen(1)


def no_port(settings: Settings, port: int, why: str) -> str:
    """The message for a port that cannot be had: which, where it comes from, what to set."""
    offset = port - settings.port
    return (
        f"the guard cannot listen on {settings.host}:{port}: {why}. The port is {settings.port} "
        f"(guard_port in kv_connector_extra_config, else COFFERDAM_GUARD_PORT, else "
        f"VLLM_NIXL_SIDE_CHANNEL_PORT + {ABOVE_NIXL}) + {offset} for the rank. Set "
        f"COFFERDAM_GUARD_PORT on this prefill instance to a port that is free, with as many free "
        f"above it as there are ranks; references carry it, so decode needs no change. If the host is "
        f"wrong: COFFERDAM_GUARD_HOST"
    )


def require_engine(engine: Any) -> None:
    """Raises if this vLLM must not be run with. What was read from files is looked at once more as it was
    imported: somebody else may have patched it."""
    surface.require(engine.__version__)
    require_signatures((_imported(one.target), _seen(one)) for one in surface.FUNCTIONS)


def _imported(target: str) -> Any:
    module, _, path = target.partition(":")
    found = importlib.import_module(module)
    for part in path.split("."):
        found = getattr(found, part)
    return found


def _seen(function: Any) -> list[str]:
    """A bound class method shows no `cls`."""
    return [name for name in function.parameters if name != "cls"]


def require_config(vllm_config: Any) -> None:
    """Refuses what is set and cannot be checked. The guard starts nowhere else: it would look like
    protection."""
    parallel, transfer = vllm_config.parallel_config, vllm_config.kv_transfer_config
    wrong = []
    if parallel.pipeline_parallel_size != 1:
        wrong.append("pipeline parallelism")
    if parallel.decode_context_parallel_size != 1 or parallel.prefill_context_parallel_size != 1:
        wrong.append("context parallelism")
    if transfer.get_from_extra_config("bidirectional_kv_xfer", False):
        wrong.append("bidirectional_kv_xfer")
    speculative = vllm_config.speculative_config
    # Found in the prompt, drafts have no KV of their own, and a prompt's statement never names one as filled.
    if speculative is not None and (method := getattr(speculative, "method", None)) != "ngram":
        wrong.append(f"speculative decoding by {method} (a draft with KV of its own)")
    _refuse(wrong)


def _refuse(wrong: list[str]) -> None:
    if wrong:
        raise BadSettings(f"cofferdam-guard cannot check {', '.join(wrong)} yet, so it does not start")
