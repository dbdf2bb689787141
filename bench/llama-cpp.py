#!/usr/bin/env python3
"""llama.cpp's side of bench/run: tokens per second of prefill and decode, one JSON object a line.

Needs the package llama-cpp-python, best built on this machine (see bench/run). Flash attention on,
f16 KV, the low-level API only: no sampling, no Python per logit.
"""

import argparse
import ctypes
import json
import time

import llama_cpp as api


def context(model, tokens, threads, sequences=1):
    params = api.llama_context_default_params()
    params.n_ctx = (tokens + 256) * sequences
    params.n_batch = 512
    params.n_ubatch = 512
    params.n_seq_max = sequences
    params.n_threads = threads
    params.n_threads_batch = threads
    if hasattr(params, "flash_attn_type"):
        params.flash_attn_type = 1  # enabled
    else:
        params.flash_attn = True
    made = api.llama_init_from_model(model, params)
    assert made, "llama.cpp refused the context"
    return made


def feed(ctx, ids):
    array = (api.llama_token * len(ids))(*ids)
    result = api.llama_decode(ctx, api.llama_batch_get_one(array, len(ids)))
    assert result == 0, f"llama_decode: {result}"


def tokens(n):
    return [(i * 7919 + 17) % 40_000 for i in range(n)]


def report(what, at, n, wall, cpu):
    wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
    line = {"what": what, "at": at, "tokens_per_s": n / wall, "tokens_per_cpu_s": n / cpu}
    print(json.dumps(line), flush=True)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("model")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--prefill", default="512")
    parser.add_argument("--depths", default="0")
    parser.add_argument("--decode", type=int, default=64)
    parser.add_argument(
        "--plain-buffers",
        action="store_true",
        help="no repacked weights: for virtual machines that announce AMX and then fault on it",
    )
    args = parser.parse_args()
    numbers = lambda text: [int(n) for n in text.split(",") if n]

    @ctypes.CFUNCTYPE(None, ctypes.c_int, ctypes.c_char_p, ctypes.c_void_p)
    def silent(level, text, user):
        pass

    api.llama_log_set(silent, None)
    api.llama_backend_init()
    params = api.llama_model_default_params()
    if hasattr(params, "use_extra_bufts"):
        params.use_extra_bufts = not args.plain_buffers
    model = api.llama_model_load_from_file(args.model.encode(), params)
    assert model, "llama.cpp refused the model"
    system = api.llama_print_system_info().decode()
    print(json.dumps({"engine": "llama.cpp", "package": api.__version__, "system": system}))

    for n in numbers(args.prefill):
        ctx = context(model, n, args.threads)
        feed(ctx, tokens(16))  # first use allocates
        api.llama_memory_clear(api.llama_get_memory(ctx), True)
        wall, cpu = time.perf_counter(), time.process_time()
        ids = tokens(n)
        for at in range(0, n, 512):
            feed(ctx, ids[at : at + 512])
        report("prefill", n, n, wall, cpu)
        api.llama_free(ctx)
    for depth in numbers(args.depths):
        ctx = context(model, depth + args.decode + 1, args.threads)
        ids = tokens(depth + 1)
        for at in range(0, len(ids), 512):
            feed(ctx, ids[at : at + 512])
        wall, cpu = time.perf_counter(), time.process_time()
        for token in tokens(args.decode):
            feed(ctx, [token])
        report("decode", depth, args.decode, wall, cpu)
        api.llama_free(ctx)


main()
