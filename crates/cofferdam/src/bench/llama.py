"""llama.cpp's side of `cofferdam bench`: reads one order a line, answers with one JSON object a line.

Needs llama-cpp-python. Flash attention on, f16 KV, the low-level API only: no sampling, no Python per
logit. Orders: open (a context with sequences that have so many tokens), prefill, decode, close.
"""

import ctypes
import json
import sys
import time

CHUNK = 512


def say(**fields):
    print(json.dumps(fields), flush=True)


try:
    import llama_cpp as api
except ImportError as error:
    say(missing=str(error))
    sys.exit(0)

model_path, plain = sys.argv[1], sys.argv[2] == "plain"


@ctypes.CFUNCTYPE(None, ctypes.c_int, ctypes.c_char_p, ctypes.c_void_p)
def silent(level, text, user):
    pass


def context(order):
    params = api.llama_context_default_params()
    sequences = order["sequences"]
    params.n_ctx = (order["room"] + 256) * sequences
    params.n_batch = params.n_ubatch = CHUNK
    params.n_seq_max = sequences
    params.n_threads = params.n_threads_batch = order["threads"]
    if hasattr(params, "flash_attn_type"):
        params.flash_attn_type = 1  # enabled
    else:
        params.flash_attn = True
    made = api.llama_init_from_model(model, params)
    assert made, "llama.cpp refused the context"
    return made


def put(batch, token, position, sequence, wanted):
    n = batch.n_tokens
    batch.token[n] = token
    batch.pos[n] = position
    batch.n_seq_id[n] = 1
    batch.seq_id[n][0] = sequence
    batch.logits[n] = wanted
    batch.n_tokens = n + 1


def compute(ctx, batch):
    assert api.llama_decode(ctx, batch) == 0, "llama_decode"
    batch.n_tokens = 0


def feed(ctx, batch, tokens, sequence):
    """A prompt of one sequence, of which the last token's logits are wanted."""
    for i, token in enumerate(tokens):
        put(batch, token, i, sequence, i + 1 == len(tokens))
        if batch.n_tokens == CHUNK or i + 1 == len(tokens):
            compute(ctx, batch)


api.llama_log_set(silent, None)
api.llama_backend_init()
params = api.llama_model_default_params()
if hasattr(params, "use_extra_bufts"):
    params.use_extra_bufts = not plain
model = api.llama_model_load_from_file(model_path.encode(), params)
assert model, "llama.cpp refused the model"
say(version=api.__version__, system=api.llama_print_system_info().decode())

ctx = batch = None
at = sequences = 0
for line in sys.stdin:
    order = json.loads(line)
    kind, tokens = order["do"], order.get("tokens", [])
    if kind == "close":
        api.llama_batch_free(batch)
        api.llama_free(ctx)
        say()
        continue
    if kind == "open":
        ctx, sequences, at = context(order), order["sequences"], len(tokens)
        batch = api.llama_batch_init(max(CHUNK, sequences), 0, 1)
        for sequence in range(sequences):  # first use allocates
            feed(ctx, batch, tokens, sequence)
        say()
        continue
    if kind == "prefill":  # anew, in the one sequence
        api.llama_memory_clear(api.llama_get_memory(ctx), True)
    wall, cpu = time.perf_counter(), time.process_time()
    if kind == "prefill":
        feed(ctx, batch, tokens, 0)
    else:
        for token in tokens:
            for sequence in range(sequences):
                put(batch, token, at, sequence, True)
            compute(ctx, batch)
            at += 1
    api.llama_synchronize(ctx)
    say(wall=time.perf_counter() - wall, cpu=time.process_time() - cpu)
