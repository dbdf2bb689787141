#!/usr/bin/env python3
"""Records what `transformers` (float32, CPU, eager attention) makes of small random models.

    python3 -m venv V && V/bin/pip install torch transformers==4.57.6 gguf==0.19.0
    V/bin/python make.py                    record every case anew: NAME.json and NAME.logits here
    V/bin/python make.py --check [NAME …]   compute them again and compare with what is recorded
    V/bin/python make.py --write DIR        only write the GGUF files

The weights are not kept: this script and `tests/support/drawn.rs` draw the same ones from the tensors'
names, quantized ones as random blocks. Here the `gguf` package writes them to a file and
`transformers` reads that file by its own table of names; where it has none, by `names.py`.
NAME.logits has, little endian, float32 `[format][position][vocabulary]`; after the formats one more
block: F32 with keys and values rounded to float16 before they are used, as our pages hold them.
"""
import argparse
import json
import pathlib
import sys
import tempfile

import gguf
import numpy as np
import torch
import transformers
from gguf import GGMLQuantizationType as Q
from transformers.cache_utils import DynamicCache
from transformers.modeling_gguf_pytorch_utils import load_gguf_checkpoint

import cases
import names

HERE = pathlib.Path(__file__).parent
FORMATS = ["F32", "F16", "BF16", "Q8_0", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "IQ4_NL", "Q4_K", "Q5_K", "Q6_K"]
PROMPT, DECODED = 150, 8
POSITIONS = [5, 40, 99, 149, 150, 157]
# Where a block has its float16 numbers, and what they are multiplied with so that random codes give
# numbers of standard deviation 1 (and mean 0, nearly).
HALVES = {
    "Q4_0": [(0, 0.217)], "Q4_1": [(0, 0.217), (2, -1.627)],
    "Q5_0": [(0, 0.108)], "Q5_1": [(0, 0.108), (2, -1.68)],
    "Q8_0": [(0, 0.01353)], "IQ4_NL": [(0, 0.0139)],
    "Q4_K": [(0, 0.00387), (2, 0.029)], "Q5_K": [(0, 0.0019), (2, 0.0294)], "Q6_K": [(208, 0.000733)],
}


def stream(name, count):
    """SplitMix64, seeded with the FNV-1a hash of the name."""
    seed = 0xCBF29CE484222325
    for byte in name.encode():
        seed = (seed ^ byte) * 0x100000001B3 % 2 ** 64
    with np.errstate(over="ignore"):
        z = np.uint64(seed) + np.arange(1, count + 1, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)
        z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return z ^ (z >> np.uint64(31))


def normal(name, count):
    bits = stream(name, count)
    total = sum((bits >> np.uint64(16 * part)) & np.uint64(0xFFFF) for part in range(4))
    return (total.astype(np.float32) - np.float32(131070)) / np.float32(37837.228)


def draw(name, dims, mean, deviation, form):
    """The tensor as it is stored, and its type."""
    shape, count, kind = dims[::-1], int(np.prod(dims)), Q[form]
    deviation = np.float32(deviation)
    if form in HALVES:
        length, size = gguf.GGML_QUANT_SIZES[kind]
        blocks = count // length
        raw = stream(name, -(-blocks * size // 8)).view(np.uint8)[: blocks * size].reshape(blocks, size).copy()
        for at, factor in HALVES[form]:
            spread = np.float32(0.75) + raw[:, at].astype(np.float32) / np.float32(512)
            halves = (deviation * np.float32(factor) * spread).astype(np.float16)
            raw[:, at:at + 2] = halves.view(np.uint8).reshape(blocks, 2)
        return raw.reshape(*shape[:-1], -1), kind
    floats = (np.float32(mean) + deviation * normal(name, count)).reshape(shape)
    if form == "BF16":
        return gguf.quants.quantize(floats, kind), kind
    return floats.astype(np.float16 if form == "F16" else np.float32), kind


def write(case, form, path):
    writer = gguf.GGUFWriter(path, case.architecture)
    for key, value in case.keys.items():
        put = {bool: writer.add_bool, int: writer.add_uint32, float: writer.add_float32,
               str: writer.add_string, list: writer.add_array}[type(value)]
        put(f"{case.architecture}.{key}", value)
    for name, dims, mean, deviation, kind in case.tensors:
        stored = form if kind == cases.MATRIX else "F32"
        array, dtype = draw(name, dims, mean, deviation, stored)
        writer.add_tensor(name, array, raw_dtype=dtype)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def named_as(kind, model):
    """The model whose names the reader knows: its table has none for Mistral, which is named as Llama is."""
    if kind != "MistralConfig":
        return model
    return transformers.LlamaForCausalLM(transformers.LlamaConfig(num_hidden_layers=model.config.num_hidden_layers,
                                                                  hidden_size=8, intermediate_size=8,
                                                                  num_attention_heads=1, vocab_size=8))


def load(case, path):
    kind, settings = case.config()
    model = transformers.AutoModelForCausalLM.from_config(
        getattr(transformers, kind)(**settings), torch_dtype=torch.float32)
    own = names.TABLES.get(case.architecture)
    if own:
        tensors = own(case, names.read(path))
    else:
        tensors = load_gguf_checkpoint(path, return_tensors=True, model_to_load=named_as(kind, model))["tensors"]
    missing, unexpected = model.load_state_dict(tensors, strict=False)
    missing = [name for name in missing if not (case.tied and name == "lm_head.weight")]
    assert not missing and not unexpected, (missing, unexpected)
    model.tie_weights()
    return model.eval()


class HalfCache(DynamicCache):
    """Keys and values rounded to float16, also for the tokens that have just been computed."""

    def update(self, key, value, layer, kwargs=None):
        return super().update(key.half().float(), value.half().float(), layer, kwargs)


def tokens():
    return [(i * i * 31 + i * 7 + 3) % cases.VOCAB for i in range(PROMPT + DECODED)]


@torch.no_grad()
def logits(model, cache):
    """Of the prompt at once, then of one token at a time."""
    ids = torch.tensor([tokens()])
    first = model(ids[:, :PROMPT], past_key_values=cache, use_cache=True).logits[0]
    rows = [first]
    for at in range(PROMPT, PROMPT + DECODED):
        rows.append(model(ids[:, at:at + 1], past_key_values=cache, use_cache=True).logits[0])
    return torch.cat(rows)[POSITIONS].numpy().astype("<f4")


def half_logits(case, path):
    model, own = load(case, path), names.HALF.get(case.architecture)
    if own:
        own(model)
    return logits(model, DynamicCache() if own else HalfCache())


def compute(case):
    blocks = []
    with tempfile.TemporaryDirectory() as folder:
        for form in FORMATS:
            path = str(pathlib.Path(folder) / "model.gguf")
            write(case, form, path)
            model = load(case, path)
            blocks.append(logits(model, DynamicCache()))
            if form == "F32":
                half = half_logits(case, path)
    return np.stack(blocks + [half])


def about(case):
    return {
        "architecture": case.architecture, "reference": f"transformers {transformers.__version__}",
        "keys": {f"{case.architecture}.{key}": value for key, value in case.keys.items()},
        "tensors": case.tensors, "tokens": tokens(), "positions": POSITIONS, "formats": FORMATS,
    }


def text(case):
    lines = json.dumps(about(case)).replace('], ["', '],\n["').replace('}, "', '},\n"')
    return lines + "\n"


def main():
    options = argparse.ArgumentParser()
    options.add_argument("names", nargs="*")
    options.add_argument("--check", action="store_true")
    options.add_argument("--write", metavar="DIR")
    options = options.parse_args()
    wrong = 0
    torch.set_num_threads(1)
    for case in cases.CASES:
        if options.names and case.name not in options.names:
            continue
        if options.write:
            for form in FORMATS:
                write(case, form, str(pathlib.Path(options.write) / f"{case.name}-{form}.gguf"))
            continue
        found = compute(case)
        assert np.isfinite(found).all(), case.name
        spread = float(found[0].std())
        off = float(np.abs(found[0] - found[-1]).max())
        print(f"{case.name}: standard deviation {spread:.2f}; float16 pages move a logit by {off:.5f} at most")
        recorded = HERE / f"{case.name}.logits"
        if options.check:
            same = (HERE / f"{case.name}.json").read_text() == text(case)
            off = np.abs(found.ravel() - np.fromfile(recorded, "<f4")).max()
            print(f"  {'as' if same else 'NOT as'} recorded; logits differ by {off:.2e} at most")
            wrong += not same or off > 1e-3
        else:
            found.tofile(recorded)
            (HERE / f"{case.name}.json").write_text(text(case))
    sys.exit(bool(wrong))


main()
