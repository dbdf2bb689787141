"""Ordinary traffic: many requests of mixed lengths, eight at a time, some of them given up half-way.

    python ordinary.py --pair guarded --requests 1000 --save guarded.json --alone
    python ordinary.py --pair stock --requests 1000 --save stock.json --against guarded.json

Asserts that no answer (greedy) differs from the other pair's, or from what the decode instance answers
by itself (--alone: no handoff, no guard), that the guard refused nothing and verified what was
answered, and that afterwards no block is in use and no thread was left behind."""

from __future__ import annotations

import argparse
import json
import os
import random
import socket
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from client import ASK, Pair, Verdict
from vllm_pair import PORTS, RUN


def prompt_of(number: int) -> list[int]:
    """Tokens, so that lengths are exact: 3 to 700 of them, every eighth with a common prefix."""
    rng = random.Random(number)
    tokens = [rng.randrange(100, 40000) for _ in range(rng.choice([3, 17, 32, 33, 64, 150, 700]))]
    return [7] * 64 + tokens if number % 8 == 0 else tokens


def give_up(port: int, body: dict, after_s: float) -> None:
    """A client that closes its connection before it is answered."""
    data = json.dumps(body).encode()
    head = f"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
    with socket.create_connection(("127.0.0.1", port)) as connection:
        connection.sendall(f"{head}Content-Length: {len(data)}\r\n\r\n".encode() + data)
        time.sleep(after_s)


def one(pair: Pair, kind: str, number: int) -> tuple[int, str | None]:
    """(number, answer); None for one that was given up."""
    rng, prompt = random.Random(-number), prompt_of(number)
    tokens = rng.randrange(1, 20)
    body = {"model": "m", "prompt": prompt, "max_tokens": tokens, "temperature": 0}
    fate = number % 20
    if fate == 3:  # given up during prefill
        give_up(PORTS[kind][0], body | {"max_tokens": 1, "kv_transfer_params": ASK}, rng.random() / 5)
        return number, None
    refs = pair.prefill(prompt, f"o{number}")
    if fate == 7:  # given up during the fetch or decode
        body |= {"max_tokens": 200, "kv_transfer_params": refs}
        give_up(PORTS[kind][1], body, rng.random() / 3)
        return number, None
    if fate == 11:  # given up between the two: nobody ever fetches it
        return number, None
    status, answer = pair.decode(prompt, refs, f"o{number}", tokens)
    return number, answer if status == 200 else f"HTTP {status}: {answer}"


def alone(pair: Pair, number: int) -> str:
    tokens = random.Random(-number).randrange(1, 20)
    return pair.d.complete(prompt_of(number), f"alone{number}", tokens)[1]["choices"][0]["text"]


def usage(kind: str) -> dict[str, tuple[int, int]]:
    """(threads, resident MiB) of every process of the pair."""
    found = {}
    for part in ("prefill", "decode"):
        group = int((RUN / f"{kind}-{part}.pid").read_text())
        threads = resident = 0
        for process in Path("/proc").glob("[0-9]*"):
            try:
                if os.getpgid(int(process.name)) != group:
                    continue
                status = (process / "status").read_text()
            except (ProcessLookupError, FileNotFoundError):
                continue
            fields = dict(line.split(":", 1) for line in status.splitlines() if ":" in line)
            threads += int(fields.get("Threads", 0))
            resident += int(fields.get("VmRSS", "0 kB").split()[0]) // 1024
        found[part] = (threads, resident)
    return found


def at_rest(pair: Pair) -> bool:
    for server in (pair.p, pair.d):
        metrics = server.metrics()
        if metrics["vllm:num_requests_running"] or metrics["vllm:num_requests_waiting"]:
            return False
        if metrics["vllm:kv_cache_usage_perc"]:
            return False
    return True


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pair", default="guarded", choices=list(PORTS))
    parser.add_argument("--requests", type=int, default=1000)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--save", required=True)
    parser.add_argument("--against")
    parser.add_argument("--alone", action="store_true")
    args = parser.parse_args()
    pair, verdict = Pair(*PORTS[args.pair]), Verdict()
    numbers = range(args.first, args.first + args.requests)
    with ThreadPoolExecutor(8) as pool:
        # Warm, and eight at a time, so that threads and memory are those of a running pair.
        list(pool.map(lambda number: one(pair, args.pair, number), range(-80, 0)))
        before, counted = usage(args.pair), pair.guard_counts()
        begin = time.monotonic()
        answers = dict(pool.map(lambda number: one(pair, args.pair, number), numbers))
    took = time.monotonic() - begin
    while not at_rest(pair):
        if time.monotonic() - begin > took + 180:
            break
        time.sleep(1)
    after = pair.guard_counts()
    Path(args.save).write_text(json.dumps(answers))
    answered = [answer for answer in answers.values() if answer is not None]
    errors = [answer for answer in answered if answer.startswith("HTTP ")]
    print(f"{len(answers)} requests in {took:.0f} s, {len(answers) - len(answered)} given up")
    verdict.row("errors", errors[:3], not errors)
    verdict.row("all blocks free again", pair.d.metrics()["vllm:kv_cache_usage_perc"], at_rest(pair))
    now = usage(args.pair)
    same = all(now[part][0] <= before[part][0] for part in now)
    verdict.row("(threads, MiB) before and after", f"{before} {now}", same)
    if args.pair == "guarded":
        moved = {key: after[key] - counted.get(key, 0) for key in after}
        alarms = {key: n for key, n in moved.items() if n and not key.startswith(("verified", "stated"))}
        verdict.row("alarms", alarms, not alarms)
        verified = moved.get("verified_total", 0)
        verdict.row("verified", moved, verified >= len(answered))
    if args.alone:
        pair.d.forget()
        differ = [n for n, text in answers.items() if text not in (None, alone(pair, n))]
        verdict.row("answers that differ from those without a handoff", differ[:5], not differ)
    if args.against:
        other = json.loads(Path(args.against).read_text())
        both = [n for n in answers if answers[n] is not None and other.get(str(n)) is not None]
        differ = [n for n in both if answers[n] != other[str(n)]]
        verdict.row(f"{len(both)} answers compared, different", differ[:5], not differ and bool(both))
    verdict.end()


if __name__ == "__main__":
    main()
