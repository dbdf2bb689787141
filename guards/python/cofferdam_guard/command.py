"""``cofferdam-guard``: what is guarded, and the self-test, from outside, over HTTP."""

from __future__ import annotations

import argparse
import sys


def main() -> None:
    parser = argparse.ArgumentParser(prog="cofferdam-guard")
    commands = parser.add_subparsers(dest="command", required=True)
    vllm = commands.add_parser(
        "selftest-vllm",
        help="sends one sound and one spoilt handoff through a guarded pair and asserts both fates",
        description="The decode instance must run with COFFERDAM_GUARD_SELFTEST=1: then one byte of "
        "what it receives for this command's second request is flipped on arrival.",
    )
    vllm.add_argument("--prefill", required=True, help="http://host:port of the prefill instance")
    vllm.add_argument("--decode", required=True, help="http://host:port of the decode instance")
    vllm.add_argument("--model", required=True, help="the served model's name")
    doctor = commands.add_parser(
        "doctor",
        help="what is guarded and what is not, in engines that run or are installed here",
        description="With URLs: reads each engine's /metrics. Without: reads the files of the engines that "
        "are installed in this environment, and the settings. Exit status: 0 guarded, 1 not, 3 unknown.",
    )
    doctor.add_argument("urls", nargs="*", metavar="URL", help="http://host:port of an engine")
    args = parser.parse_args()
    if args.command == "doctor":
        from .doctor import run as look

        sys.exit(look(args.urls))
    from .vllm.selftest import run

    sys.exit(0 if run(args.prefill, args.decode, args.model) else 1)
