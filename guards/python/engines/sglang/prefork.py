"""Prefill and decode from one process that has imported SGLang once and forks: for machines on which
importing it six times takes half an hour. Not how SGLang starts; everything after the import is its
own code. Plugins are loaded in each process as by SGLang's own calls.

    python prefork.py ROLE_ARGUMENTS_AS_JSON      [{"role": ..., "argv": [...], "env": {...}, "log": ...}]
"""

import json
import multiprocessing
import os
import signal
import sys
import time

plan = json.loads(sys.argv[1])
os.environ["PROMETHEUS_MULTIPROC_DIR"] = plan[0]["env"]["PROMETHEUS_MULTIPROC_DIR"]

multiprocessing.set_start_method("fork")
multiprocessing.set_start_method = lambda *a, **k: None
multiprocessing.context.DefaultContext.set_start_method = lambda *a, **k: None

began = time.time()
import sglang.launch_server as launcher  # noqa: E402
import sglang.srt.disaggregation.mooncake.conn  # noqa: E402,F401
import sglang.srt.entrypoints.http_server  # noqa: E402,F401
import sglang.srt.managers.detokenizer_manager  # noqa: E402,F401
import sglang.srt.managers.scheduler  # noqa: E402,F401
import sglang.srt.plugins as plugins  # noqa: E402

print("imported", round(time.time() - began), "s", flush=True)

_load, _done = plugins.load_plugins, set()


def load_plugins():
    """A forked process inherits that its parent has loaded its plugins; it has to load its own."""
    if os.getpid() not in _done:
        _done.add(os.getpid())
        plugins._plugins_loaded = False
        _load()


for module in list(sys.modules.values()):
    if getattr(module, "load_plugins", None) is _load:
        module.load_plugins = load_plugins

pids = []
for one in plan:
    pid = os.fork()
    if pid == 0:
        os.setsid()
        log = os.open(one["log"], os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
        os.dup2(log, 1)
        os.dup2(log, 2)
        os.environ.update(one["env"])
        sys.argv = ["launch_server", *one["argv"]]
        load_plugins()
        launcher.run_server(launcher.prepare_server_args(one["argv"]))
        os._exit(0)
    pids.append(pid)
    print(one["role"], pid, flush=True)
signal.signal(signal.SIGTERM, lambda *a: sys.exit(0))
while True:
    time.sleep(1)
