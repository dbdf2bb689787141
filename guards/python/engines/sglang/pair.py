"""One prefill, one decode and SGLang's own router on loopback, with the guard or without.

Needs, by environment: COFFERDAM_INTEROP (a folder with `venv-sglang-VERSION`, `venv-router`,
`models`, and `libs` for libibverbs) and COFFERDAM_KERNEL_STANDIN (a folder with a module
`sgl_kernel` that stands in for SGLang's CPU kernels). COFFERDAM_GUARD_SOURCE, if set, is put on
PYTHONPATH: the guard from a checkout instead of an installed wheel. COFFERDAM_MEMORY_FRACTION: SGLang's
`--mem-fraction-static`, for a machine on which other work takes memory meanwhile.
"""

import http.client
import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

START_S = 1500
# How many tokens fewer each data-parallel rank has than the one before (see changed/uneven.py).
FEWER = {"prefill": 100, "decode": 2000}


class Pair:
    """A running pair. Use as a context manager: everything started is stopped, by its own id."""

    def __init__(
        self,
        version,
        guard,
        *,
        prefill_pool,
        decode_pool,
        faults=False,
        model=None,
        port=31100,
        router=True,
        env=None,
        arguments=(),
        attach=False,
        tp=1,
        dp=(1, 1),
        dp_attention=False,
        paths=(),
    ):
        self.version, self.guard, self.faults = version, guard, faults
        if dp[0] > 1:
            prefill_pool += FEWER["prefill"] * (dp[0] - 1)
        self.pools = {"prefill": prefill_pool, "decode": decode_pool}
        self.home = Path(os.environ["COFFERDAM_INTEROP"])
        self.model = model or str(self.home / "models" / "tiny-llama-random")
        self.ports = {"prefill": port, "decode": port + 100, "router": port + 300}
        self.with_router = router
        self.extra_env, self.arguments = dict(env or {}), list(arguments)
        self.logs = Path(os.environ.get("COFFERDAM_ENGINE_LOGS", "/tmp/cofferdam-engines"))
        self.processes, self.attach = {}, attach
        self.tp, self.paths = tp, list(paths)
        if max(dp) > 1:
            self.paths.append(str(Path(__file__).parent / "changed"))
        self.dp, self.dp_attention = dict(zip(("prefill", "decode"), dp)), dp_attention
        # SGLang's router 0.3.2 names no rank of prefill, and without a name SGLang serves one rank's rooms only.
        self.direct = self.dp["prefill"] > 1 and not dp_attention
        self._asked, self.several = 0, max(dp) > 1
        if tp > 1:
            self.arguments += ["--tp-size", str(tp)]

    # -- life ---------------------------------------------------------------------------------

    def __enter__(self):
        self.logs.mkdir(parents=True, exist_ok=True)
        if threading.current_thread() is threading.main_thread():
            # Ended from outside, what was started here is stopped all the same.
            signal.signal(signal.SIGTERM, lambda *_: sys.exit("ended"))
        if self.attach:
            ids = json.loads(self._state().read_text())
            self.processes = {name: _Held(pid) for name, pid in ids.items()}
            return self
        try:
            for role in ("prefill", "decode"):
                self._start_engine(role)
            for role in ("prefill", "decode"):
                self._wait(role, "/health")
            if self.with_router:
                self._start_router()
            self._state().write_text(json.dumps({n: p.pid for n, p in self.processes.items()}))
        except BaseException:
            self.__exit__(None, None, None)
            raise
        return self

    def _state(self) -> Path:
        return self.logs / f"{self.version}-{'guard' if self.guard else 'stock'}.json"

    def __exit__(self, *_):
        if self.attach:
            return
        for process in self.processes.values():
            try:
                os.killpg(process.pid, signal.SIGTERM)
            except ProcessLookupError:
                pass
        end = time.monotonic() + 20
        for process in self.processes.values():
            try:
                process.wait(max(0.1, end - time.monotonic()))
            except subprocess.TimeoutExpired:
                pass
            try:
                os.killpg(process.pid, signal.SIGKILL)
            except ProcessLookupError:
                pass

    def _start_engine(self, role):
        port, args = (
            self.ports[role],
            [
                "--model-path",
                self.model,
                "--device",
                "cpu",
                "--attention-backend",
                "torch_native",
                "--sampling-backend",
                "pytorch",
                "--disable-cuda-graph",
                "--mem-fraction-static",
                os.environ.get("COFFERDAM_MEMORY_FRACTION", "0.2"),
                "--host",
                "127.0.0.1",
                "--port",
                str(self.ports[role]),
                "--enable-metrics",
                "--skip-server-warmup",
                "--max-running-requests",
                "16",
                "--sleep-on-idle",
                "--max-total-tokens",
                str(self.pools[role]),
                "--disaggregation-mode",
                role,
                "--disaggregation-transfer-backend",
                "mooncake",
            ],
        )
        if role == "prefill":
            args += ["--disaggregation-bootstrap-port", str(self._bootstrap_port())]
        else:
            backup = "cpu_tensor" if self.version in ("0.5.19", "0.5.20") else "none"
            args += ["--disaggregation-decode-retraction-backup", backup]
        if self.dp[role] > 1:
            args += ["--dp-size", str(self.dp[role])]
            args += ["--enable-dp-attention"] if self.dp_attention else []
        env = {**os.environ, **self._engine_env(role), **self._ranks_env(role), **self.extra_env}
        python = self.home / f"venv-sglang-{self.version}" / "bin" / "python"
        self._spawn(
            role, [str(python), "-m", "sglang.launch_server", *args, *self.arguments], env, port
        )

    def _engine_env(self, role):
        libs = self.home / "libs"
        path = [*self.paths, os.environ["COFFERDAM_KERNEL_STANDIN"]]
        if os.environ.get("COFFERDAM_GUARD_SOURCE"):
            path.append(os.environ["COFFERDAM_GUARD_SOURCE"])
        return {
            "SGLANG_USE_CPU_ENGINE": "1",
            "CUDA_VISIBLE_DEVICES": "",
            "OMP_NUM_THREADS": "1",
            "MC_FORCE_TCP": "1",
            "MC_TCP_BIND_ADDRESS": "127.0.0.1",
            "SGLANG_HOST_IP": "127.0.0.1",
            "HOST_IP": "127.0.0.1",
            "HF_HUB_OFFLINE": "1",
            "TOKENIZERS_PARALLELISM": "false",
            "LD_LIBRARY_PATH": f"{libs}/usr/lib/x86_64-linux-gnu:{libs}/lib/x86_64-linux-gnu",
            "PYTHONPATH": os.pathsep.join(path),
            "SGLANG_PLUGINS": "cofferdam_guard" if self.guard else "none",
            "COFFERDAM_GUARD_SECRET": "0123456789abcdef" * 4,
            "COFFERDAM_GUARD_FAULTS": "1" if self.faults else "0",
            "COFFERDAM_GUARD_AUDIT": str(self.logs / f"audit-{role}.jsonl"),
        }

    def _ranks_env(self, role):
        """One core a rank, and no NCCL: its ranks are on a CPU. Attention in parallel divides the tensor ranks."""
        ranks = self.tp * (1 if self.dp_attention else self.dp[role])
        if ranks == 1:
            return {}
        cores = "|".join(str(rank % os.cpu_count()) for rank in range(ranks))
        fewer = str(FEWER[role]) if self.dp[role] > 1 else "0"
        return {
            "SGLANG_CPU_OMP_THREADS_BIND": cores,
            "SGLANG_NCCL_SO_PATH": "/none",
            "COFFERDAM_UNEVEN": fewer,
        }

    def pool(self, role, rank=0):
        """Tokens in the pool of a data-parallel rank; each is of another size."""
        return self.pools[role] - rank * FEWER[role]

    def _bootstrap_port(self):
        return (self.ports["prefill"] + 7000) % 60000

    def _start_router(self):
        python = self.home / "venv-router" / "bin" / "python"
        host = "http://127.0.0.1:"
        command = [
            str(python),
            "-m",
            "sglang_router.launch_router",
            "--pd-disaggregation",
            "--prefill",
            host + str(self.ports["prefill"]),
            str(self._bootstrap_port()),
            "--decode",
            host + str(self.ports["decode"]),
            "--host",
            "127.0.0.1",
            "--port",
            str(self.ports["router"]),
            "--prometheus-port",
            str(self.ports["router"] + 90),
            "--prometheus-host",
            "127.0.0.1",
            "--policy",
            "round_robin",
            "--log-level",
            "info",
        ]
        self._spawn("router", command, dict(os.environ), self.ports["router"])
        end = time.monotonic() + START_S
        while time.monotonic() < end:
            status, body = self.get("router", "/readiness")
            if status == 200 and json.loads(body).get("healthy_workers") == 2:
                return
            self._alive("router")
            time.sleep(0.5)
        raise SystemExit("the router does not see both workers")

    def _spawn(self, name, command, env, port):
        log = self.log(name).open("wb")
        self.processes[name] = subprocess.Popen(
            command, stdout=log, stderr=subprocess.STDOUT, env=env, start_new_session=True
        )

    def log(self, name) -> Path:
        kind = "guard" if self.guard else "stock"
        return self.logs / f"{self.version}-{kind}-{name}.log"

    def _alive(self, name):
        if self.processes[name].poll() is not None:
            tail = self.log(name).read_text(errors="replace").splitlines()[-25:]
            raise SystemExit(
                f"{name} ended with {self.processes[name].returncode}:\n" + "\n".join(tail)
            )

    def _wait(self, name, path):
        end = time.monotonic() + START_S
        while time.monotonic() < end:
            self._alive(name)
            if self.get(name, path)[0] == 200:
                return
            time.sleep(1)
        raise SystemExit(f"{name} is not up after {START_S} s, see {self.log(name)}")

    # -- talk ---------------------------------------------------------------------------------

    def get(self, name, path, timeout=10):
        """(status, body) or (0, reason)."""
        try:
            connection = http.client.HTTPConnection("127.0.0.1", self.ports[name], timeout=timeout)
            connection.request("GET", path)
            answer = connection.getresponse()
            return answer.status, answer.read().decode(errors="replace")
        except OSError as fault:
            return 0, str(fault)

    def post(self, path, body, name="router", timeout=60):
        """(status, answer as text, seconds); status 0: no answer within the time."""
        began = time.monotonic()
        connection = http.client.HTTPConnection("127.0.0.1", self.ports[name], timeout=timeout)
        try:
            connection.request("POST", path, json.dumps(body), {"Content-Type": "application/json"})
            answer = connection.getresponse()
            return answer.status, answer.read().decode(errors="replace"), time.monotonic() - began
        except OSError as fault:
            return 0, f"{type(fault).__name__}: {fault}", time.monotonic() - began
        finally:
            connection.close()

    def generate(self, ids, new=8, *, rid=None, timeout=60, name="router", at=None):
        """Greedy answer to token ids: (status, output ids or error text, seconds). `at`: which data-parallel rank of
        prefill and which of decode; without it the router chooses, or they take turns."""
        if name == "router" and (self.direct or at is not None):
            return self.handoff(ids, new, rid=rid, timeout=timeout, at=at or self._turn())
        status, text, seconds = self.post("/generate", self._body(ids, new, rid), name, timeout)
        if status != 200:
            return status, text, seconds
        answer = json.loads(text)
        if isinstance(answer, list):
            answer = answer[0]
        return status, answer["output_ids"], seconds

    def _body(self, ids, new, rid=None):
        sampling = {"max_new_tokens": new, "temperature": 0, "ignore_eos": True}
        body = {"input_ids": list(ids), "sampling_params": sampling}
        return body | ({"rid": rid} if rid else {})

    def _turn(self):
        """Data-parallel ranks of both, each pair of them in its turn."""
        self._asked += 1
        return self._asked % self.dp["prefill"], self._asked // 2 % self.dp["decode"]

    def legs(self, body, at=(0, 0), told=None, room=None):
        """The same request as each engine is asked it, by name. `told`: which rank of prefill decode is told, if
        not the one that is asked."""
        room = random.getrandbits(63) if room is None else room
        body = body | {
            "bootstrap_host": "127.0.0.1",
            "bootstrap_port": self._bootstrap_port(),
            "bootstrap_room": room,
        }
        found = {"prefill": dict(body), "decode": dict(body)}
        if self.dp["prefill"] > 1:
            found["prefill"]["disagg_prefill_dp_rank"] = at[0]
            found["decode"]["disagg_prefill_dp_rank"] = at[0] if told is None else told
        for (name, leg), rank in zip(found.items(), at):
            if self.dp[name] > 1:
                leg["routed_dp_rank"] = rank
        return found

    def handoff(self, ids, new=8, *, timeout=60, rid=None, at=(0, 0), told=None, room=None):
        """As a router asks: both engines at once. (status, output ids or error text, seconds) of decode, or of prefill
        where prefill has an error; both have answered by then."""
        bodies, found = self.legs(self._body(ids, new, rid), at, told, room), {}

        def ask(name):
            found[name] = self.post("/generate", bodies[name], name, timeout)

        other = threading.Thread(target=ask, args=("prefill",))
        other.start()
        ask("decode")
        other.join()
        seconds = max(one[2] for one in found.values())
        for name in ("prefill", "decode"):
            status, text, _ = found[name]
            if status != 200:
                return status, f"{name}: {text}", seconds
        return 200, json.loads(text)["output_ids"], seconds

    def metric(self, name, prefix):
        """Sum of all samples whose line begins with `prefix` (a metric name, labels may follow)."""
        _, text = self.get(name, "/metrics")
        total = 0.0
        for line in text.splitlines():
            head = line.split(" ")[0]
            if (
                head == prefix
                or head.startswith(prefix + "{")
                or (("{" in prefix) and head.startswith(prefix))
            ):
                total += float(line.rsplit(" ", 1)[1])
        return total

    def refused(self, reason=None, role=None, rank=None):
        """How often decode and prefill have refused, for this reason or for any; on one data-parallel rank of one."""
        total = 0.0
        for name in ("prefill", "decode") if role is None else (role,):
            _, text = self.get(name, "/metrics")
            for line in text.splitlines():
                if rank is not None and f'dp_rank="{rank}"' not in line:
                    continue
                guarded = line.startswith(
                    ("cofferdam_guard_refused_", "cofferdam_guard_held_blocks")
                )
                if guarded and (reason is None or f'reason="{reason}"' in line):
                    total += float(line.rsplit(" ", 1)[1])
        return total

    # -- what is left ---------------------------------------------------------------------------

    def _processes(self, name):
        """Process ids of an engine's process group."""
        group = self.processes[name].pid
        for entry in Path("/proc").iterdir():
            try:
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
                if int(fields[2]) == group:
                    yield int(entry.name), fields
            except (OSError, ValueError, IndexError):
                continue

    def cpu_seconds(self):
        """Processor time of all engine processes of this pair."""
        ticks = sum(
            int(f[11]) + int(f[12])
            for role in ("prefill", "decode")
            for _, f in self._processes(role)
        )
        return ticks / os.sysconf("SC_CLK_TCK")

    def residue(self):
        """Pages in use, memory and threads."""
        used, processes = {}, {}
        for role in ("prefill", "decode"):
            loads = json.loads(self.get(role, "/v1/loads")[1])["loads"]
            counted = ("num_used_tokens", "num_running_reqs", "num_waiting_reqs")
            used[role] = sum(load[name] for load in loads for name in counted)
            threads = rss = 0
            for pid, fields in self._processes(role):
                threads += int(fields[17])
                rss += int(fields[21]) * os.sysconf("SC_PAGE_SIZE")
            alive = self.processes[role].poll() is None
            processes[role] = {"threads": threads, "rss_mb": rss >> 20, "alive": alive}
        return {"used": used, "processes": processes}

    def settle(self, seconds=60):
        """`residue` once nothing is in use any more, or when the time is up. Prefill's cache of
        finished prompts is emptied: what is left then is lost."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            self.post("/flush_cache", {}, name="prefill")
            found = self.residue()
            if not any(found["used"].values()):
                break
            time.sleep(1)
        return found


class _Held:
    """A process that another run of these scripts has started."""

    def __init__(self, pid):
        self.pid = pid

    def poll(self):
        return None if Path(f"/proc/{self.pid}").exists() else 1


def prompt(n, seed=0):
    """Token ids that only this seed has."""
    return [3000 + (i * 7919 + seed * 104729 + (seed * i) % 977) % 40000 for i in range(n)]


def check(truth, what, facts=""):
    """Prints, and remembers whether all was so."""
    print(
        f"{'ok  ' if truth else 'FAIL'} {what}{'  ' + str(facts) if facts != '' else ''}",
        flush=True,
    )
    check.failed = getattr(check, "failed", 0) + (0 if truth else 1)
    return truth


def finish():
    failed = getattr(check, "failed", 0)
    print("all as it should be" if not failed else f"{failed} FAILED")
    sys.exit(1 if failed else 0)
