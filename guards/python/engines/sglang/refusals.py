"""The guard refuses to start what it cannot guard: one engine each, no model is loaded for most.

python refusals.py 0.5.19
"""

import os
import subprocess
import sys

from pair import Pair, check, finish

CASES = {
    "no secret": ({"COFFERDAM_GUARD_SECRET": ""}, "the guard has no secret"),
    "a setting that is none": (
        {"COFFERDAM_GUARD_STEP_CHECK": "maybe"},
        "COFFERDAM_GUARD_STEP_CHECK",
    ),
    "a hook that is not in place": (
        {
            "COFFERDAM_GUARD_TEST_BREAK": "sglang.srt.disaggregation.prefill"
            ":PrefillBootstrapQueue.add"
        },
        "PrefillBootstrapQueue.add: the hook does not answer",
    ),
}


def main():
    version = sys.argv[1]
    for name, (env, reason) in CASES.items():
        pair = Pair(
            version, True, prefill_pool=2000, decode_pool=8000, port=33100, router=False, env=env
        )
        pair.logs.mkdir(parents=True, exist_ok=True)
        pair._start_engine("prefill")
        process = pair.processes["prefill"]
        try:
            code = process.wait(500)
        except subprocess.TimeoutExpired:
            code = None
        pair.__exit__()
        log = pair.log("prefill").read_text(errors="replace")
        said = [line for line in log.splitlines() if "cofferdam-guard: refusing to start" in line]
        check(code not in (None, 0), f"{name}: the server does not start", f"exit {code}")
        check(any(reason in line for line in said), f"{name}: and says why", said[:1])
    finish()


if __name__ == "__main__":
    os.environ.setdefault("COFFERDAM_GUARD_SECRET", "")
    main()
