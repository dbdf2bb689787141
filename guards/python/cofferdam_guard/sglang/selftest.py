"""Does the guard of a running pair work? Looks, and on request corrupts a page on purpose.

    python -m cofferdam_guard.sglang.selftest --prefill URL --decode URL
    python -m cofferdam_guard.sglang.selftest --prefill URL --decode URL --router URL --corrupt

The first form is for readiness probes: it reads both `/metrics` and fails unless each side says
that every hook is in place. The second also hands over two requests and has one bit of one page
of the second flipped on the way: the first must be answered, the second refused and counted, the
first answered once more as before. It needs engines that were started with
COFFERDAM_GUARD_FAULTS=1.

Exit status: 0 works, 1 does not, 3 could not be looked at.
"""

import argparse
import json
import sys
import urllib.error
import urllib.request
import uuid

_PREFIX = "cofferdam_guard_"
_MAX_BYTES = 16 << 20
_PROMPT = list(range(1000, 1064))


class Unreachable(Exception):
    """An engine that cannot be asked."""


def main(arguments: list[str] | None = None) -> int:
    """The command; gives the exit status."""
    parser = argparse.ArgumentParser(prog="python -m cofferdam_guard.sglang.selftest")
    parser.add_argument("--prefill", required=True, metavar="URL")
    parser.add_argument("--decode", required=True, metavar="URL")
    parser.add_argument("--router", metavar="URL", help="where requests for this pair go")
    parser.add_argument(
        "--corrupt", action="store_true", help="flip a bit of a page and expect the refusal"
    )
    parser.add_argument("--timeout", type=float, default=60.0, metavar="SECONDS")
    chosen = parser.parse_args(arguments)
    if chosen.corrupt and not chosen.router:
        parser.error("--corrupt needs --router: the requests have to go somewhere")
    try:
        good = look(chosen)
        if good and chosen.corrupt:
            good = corrupt(chosen)
    except Unreachable as fault:
        print(f"cannot tell: {fault}")
        return 3
    print("the guard works" if good else "THE GUARD DOES NOT WORK")
    return 0 if good else 1


def look(chosen) -> bool:
    """Whether both sides say that the guard is in place."""
    good = True
    for role in ("prefill", "decode"):
        ready = samples(getattr(chosen, role), chosen.timeout, "ready")
        fitting = [
            labels for labels, value in ready if f'engine_type="{role}"' in labels and value == 1
        ]
        print(f"{role}: " + (f"ready {fitting[0]}" if fitting else "no guard is ready here"))
        good = good and bool(fitting)
    return good


def corrupt(chosen) -> bool:
    """One bit of one page on the way; everything else has to be as always."""
    before = _altered(chosen)
    status, clean = _ask(chosen, None)
    if status != 200:
        print(f"an ordinary request is answered {status}: {clean[:200]}")
        return False
    status, told = _ask(chosen, f"cofferdam-fault:flip:{uuid.uuid4().hex}")
    refused = status >= 500 and "cofferdam-guard: refused" in told
    print(f"a request with a flipped bit: {status} {told[:160]}")
    counted = _altered(chosen) > before
    print(f"counted: {'yes' if counted else 'no'}")
    status, again = _ask(chosen, None)
    same = status == 200 and again == clean
    what = "the same answer" if same else f"{status} {again[:200]}"
    print(f"the ordinary request once more: {what}")
    return refused and counted and same


def _altered(chosen) -> float:
    found = samples(chosen.decode, chosen.timeout, "refused_content_total")
    return sum(value for labels, value in found if 'reason="altered"' in labels)


def _ask(chosen, rid: str | None) -> tuple[int, str]:
    """Status, and the output ids or the error as text."""
    body = {
        "input_ids": _PROMPT,
        "sampling_params": {"max_new_tokens": 8, "temperature": 0, "ignore_eos": True},
    }
    if rid:
        body["rid"] = rid
    request = urllib.request.Request(
        chosen.router.rstrip("/") + "/generate",
        json.dumps(body).encode(),
        {"Content-Type": "application/json"},
    )
    try:
        with urllib.request.urlopen(request, timeout=chosen.timeout) as answer:
            said = json.loads(answer.read(_MAX_BYTES))
            said = said[0] if isinstance(said, list) else said
            return answer.status, str(said.get("output_ids"))
    except urllib.error.HTTPError as fault:
        return fault.code, fault.read(4096).decode(errors="replace")
    except (OSError, ValueError) as fault:
        raise Unreachable(f"{chosen.router}: {fault}") from fault


def samples(url: str, timeout: float, name: str) -> list[tuple[str, float]]:
    """(labels, value) of every sample of one of the guard's metrics."""
    address = url.rstrip("/") + "/metrics"
    try:
        with urllib.request.urlopen(address, timeout=timeout) as answer:
            text = answer.read(_MAX_BYTES).decode(errors="replace")
    except OSError as fault:
        raise Unreachable(
            f"{address}: {fault} (was SGLang started with --enable-metrics?)"
        ) from fault
    return parse(text, _PREFIX + name)


def parse(text: str, metric: str) -> list[tuple[str, float]]:
    """Samples of one metric in Prometheus' text format."""
    found = []
    for line in text.splitlines():
        head, _, value = line.rpartition(" ")
        name, brace, labels = head.partition("{")
        if name == metric:
            try:
                found.append((brace + labels, float(value)))
            except ValueError:
                continue
    return found


if __name__ == "__main__":
    sys.exit(main())
