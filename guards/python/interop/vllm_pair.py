"""A vLLM prefill/decode pair on this machine's CPU, stock or guarded, for the scripts beside it.

    python vllm_pair.py start guarded --model DIR [--policy recompute] [--faulty] [--blocks 300]
    python vllm_pair.py start guarded --only decode ...    # another one for the same prefill
    python vllm_pair.py start guarded --tp 2 --model DIR
    python vllm_pair.py stop

Run it with the Python of an environment that has vLLM, NIXL and this package. Ports 8100 (prefill)
and 8200 (decode) for the guarded pair, 8110 and 8210 for the stock one; logs and process ids in the
folder that COFFERDAM_RUN names (default: ./run). Several pairs at once need several folders, and ports
moved by COFFERDAM_PORT_OFFSET."""

from __future__ import annotations

import argparse
import json
import os
import shlex
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path

HERE = Path(__file__).resolve().parent
RUN = Path(os.environ.get("COFFERDAM_RUN", "run"))
OFFSET = int(os.environ.get("COFFERDAM_PORT_OFFSET", "0"))
PORTS = {"guarded": (8100 + OFFSET, 8200 + OFFSET), "stock": (8110 + OFFSET, 8210 + OFFSET)}
SECRET = "a secret for tests on one machine only"


def transfer_config(kind: str, policy: str, faulty: bool, lease: int) -> str:
    config = {
        "kv_connector": "NixlConnector",
        "kv_role": "kv_both",
        "kv_buffer_device": "cpu",
        "kv_load_failure_policy": policy,
        "kv_connector_extra_config": {"kv_lease_duration": lease},
    }
    if kind == "guarded":
        config["kv_connector"] = "FaultyNixlConnector" if faulty else "GuardedNixlConnector"
        module = "faulty" if faulty else "cofferdam_guard.vllm.connector"
        config["kv_connector_module_path"] = module
    return json.dumps(config)


def start(kind: str, part: str, args: argparse.Namespace) -> subprocess.Popen:
    port = PORTS[kind][("prefill", "decode").index(part)]
    # Only the receiving side makes faults.
    faulty = args.faulty and part == "decode"
    command = [sys.executable, "-m", "vllm.entrypoints.openai.api_server", "--model", args.model]
    command += ["--served-model-name", "m", "--host", "127.0.0.1", "--port", str(port)]
    command += ["--dtype", args.dtype, "--block-size", "32", "--enforce-eager"]
    command += ["--max-model-len", str(args.max_len), "--num-gpu-blocks-override", str(args.blocks)]
    command += ["--tensor-parallel-size", str(args.tp), *shlex.split(args.more)]
    command += ["--kv-transfer-config", transfer_config(kind, args.policy, faulty, args.lease)]
    env = os.environ | {
        "VLLM_SERVER_DEV_MODE": "1",
        "VLLM_NO_USAGE_STATS": "1",
        "DO_NOT_TRACK": "1",
        "HF_HUB_OFFLINE": "1",
        "VLLM_CPU_KVCACHE_SPACE": "1",
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",
        "OMP_NUM_THREADS": "1",
        "VLLM_NIXL_SIDE_CHANNEL_HOST": "127.0.0.1",
        "VLLM_NIXL_SIDE_CHANNEL_PORT": str(port + 1000),
        "COFFERDAM_GUARD_SECRET": SECRET,
        "COFFERDAM_GUARD_AUDIT": str(RUN.resolve() / f"audit-{kind}-{part}.jsonl"),
        "COFFERDAM_GUARD_SELFTEST": "1",
        # `calm` makes NIXL's progress threads sleep: there is one for each worker.
        "PYTHONPATH": os.pathsep.join([str(HERE), str(HERE / "calm"), os.environ.get("PYTHONPATH", "")]),
    }
    log = open(RUN / f"{kind}-{part}.log", "w")
    process = subprocess.Popen(
        command, env=env, stdout=log, stderr=subprocess.STDOUT, start_new_session=True
    )
    (RUN / f"{kind}-{part}.pid").write_text(str(process.pid))
    return process


def is_up(port: int) -> bool:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=5):
            return True
    except (urllib.error.URLError, OSError):
        return False


def stop() -> None:
    for file in RUN.glob("*.pid"):
        try:
            os.killpg(int(file.read_text()), signal.SIGTERM)
        except ProcessLookupError:
            pass
        file.unlink()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=["start", "stop"])
    parser.add_argument("kind", nargs="?", choices=list(PORTS), default="guarded")
    parser.add_argument("--model")
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--policy", default="fail", choices=["fail", "recompute"])
    parser.add_argument("--faulty", action="store_true")
    parser.add_argument("--only", choices=["prefill", "decode"])
    parser.add_argument("--blocks", type=int, default=300)
    parser.add_argument("--max-len", type=int, default=4096)
    parser.add_argument("--lease", type=int, default=30)
    parser.add_argument("--wait", type=int, default=1200)
    parser.add_argument("--tp", type=int, default=1, help="ranks of each engine")
    parser.add_argument("--more", default="", help="more of vLLM's own arguments, as one string")
    args = parser.parse_args()
    RUN.mkdir(exist_ok=True)
    if args.what == "stop":
        return stop()
    wanted = [args.only] if args.only else ["prefill", "decode"]
    parts = {part: start(args.kind, part, args) for part in wanted}
    end = time.monotonic() + args.wait
    for part in parts:
        port = PORTS[args.kind][("prefill", "decode").index(part)]
        while not is_up(port):
            if parts[part].poll() is not None or time.monotonic() > end:
                sys.exit(f"{args.kind} {part} did not come up: see {RUN}/{args.kind}-{part}.log")
            time.sleep(1)
        print(f"{args.kind} {part}: http://127.0.0.1:{port}", flush=True)


if __name__ == "__main__":
    main()
