"""Two attention layers, set by hand, that go on with whatever they have read before, word for word.
The first looks one token back and notes which it was; the second looks for the places where that
note is the token of now, and says what stood there. It quotes its own prompt, and would quote
anybody's that it attends to: with it a leak is seen at once, whatever the engine.

    python copying_model.py FOLDER_OF_A_MODEL_WITH_A_TOKENIZER NEW_FOLDER [CONTEXT] [IDLE_LAYERS]

Idle layers change nothing but the time: without any, a prefill takes as long as the handoff, and
nothing can be told from times. Serve it in float32. The same model as a GGUF: crates/testkit/src/copying.rs."""

from __future__ import annotations

import json
import math
import shutil
import sys
from pathlib import Path

import torch
from safetensors.torch import save_file

HIDDEN, HEAD, CODE, INNER = 256, 128, 64, 32
NOTE, ALWAYS, EVER, BASE = CODE, 2 * CODE, 8.0, 1e12
PAIRS = HEAD // 2
MASK = (1 << 64) - 1
CONTROL = 17
# Of several places the second layer prefers those about so many tokens back, and where none fits it
# says what stands there. Nearer ones would be its own last words: it would go round in circles.
FAR = 40


def code(token: int) -> list[float]:
    """SplitMix64 of the token: 64 signs. Control tokens have none: after one of them the model says
    what stands about FAR back."""
    if token < CONTROL:
        return [0.0] * CODE
    z = (token + 0x9E3779B97F4A7C15) & MASK
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & MASK
    z ^= z >> 31
    return [1.0 if z >> bit & 1 else -1.0 for bit in range(CODE)]


def row(pair: int, second: bool) -> int:
    """Where a rotated pair's halves stand in a Hugging Face head."""
    return pair + PAIRS * second


class Layer:
    def __init__(self) -> None:
        self.q = torch.zeros(HIDDEN, HIDDEN)
        self.k, self.v = torch.zeros(HEAD, HIDDEN), torch.zeros(HEAD, HIDDEN)
        self.o = torch.zeros(HIDDEN, HIDDEN)
        for bit in range(CODE):
            self.v[bit, bit] = 1.0

    @classmethod
    def idle(cls) -> Layer:
        layer = cls()
        layer.v.zero_()
        return layer

    def back(self, tokens: int, pairs: range, scale: float) -> None:
        """Scores that are highest so many tokens back: keys are turned ahead by as many."""
        for pair in pairs:
            turn = tokens * BASE ** (-2.0 * pair / HEAD)
            self.q[row(pair, False), ALWAYS] = scale / EVER
            self.k[row(pair, False), ALWAYS] = scale * math.cos(turn) / EVER
            self.k[row(pair, True), ALWAYS] = scale * math.sin(turn) / EVER

    def not_itself(self, pairs: range, force: float) -> None:
        """Lowers the score of a token's own place. Where the token before is missing, as on stale
        pages, a token's note is itself, and it would say itself for ever."""
        for pair in pairs:
            if not self.q[row(pair, False), ALWAYS]:
                self.q[row(pair, False), ALWAYS] = 1.0
            self.k[row(pair, False), ALWAYS] -= force / EVER / EVER / self.q[row(pair, False), ALWAYS]


def layers() -> list[Layer]:
    previous, lookup = Layer(), Layer()
    previous.back(1, range(0, 17), 16.0)
    for bit in range(CODE):
        previous.o[NOTE + bit, bit] = 1.0
        still = row(PAIRS - CODE // 2 + bit // 2, bit % 2 == 1)
        lookup.q[still, bit] = 2.5
        lookup.k[still, NOTE + bit] = 2.5
        lookup.o[bit, bit] = 4.0
    lookup.back(FAR, range(2, 16), 3.4)
    lookup.not_itself(range(7), 60.0)
    return [previous, lookup]


def main() -> None:
    source, target = Path(sys.argv[1]), Path(sys.argv[2])
    context = int(sys.argv[3]) if len(sys.argv) > 3 else 8192
    idle = int(sys.argv[4]) if len(sys.argv) > 4 else 0
    inner = INNER if idle == 0 else 32 * INNER
    target.mkdir(parents=True, exist_ok=True)
    for name in source.iterdir():
        if name.suffix in (".json", ".jinja", ".txt", ".model") and "safetensors" not in name.name:
            shutil.copy(name, target)
    config = json.loads((source / "config.json").read_text())
    config |= {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "num_hidden_layers": 2 + idle,
        "hidden_size": HIDDEN,
        "num_attention_heads": HIDDEN // HEAD,
        "num_key_value_heads": 1,
        "head_dim": HEAD,
        "intermediate_size": inner,
        "max_position_embeddings": context,
        "rope_theta": BASE,
        "tie_word_embeddings": True,
        "torch_dtype": "float32",
    }
    (target / "config.json").write_text(json.dumps(config, indent=1))
    embedding = torch.zeros(config["vocab_size"], HIDDEN)
    embedding[:, :CODE] = torch.tensor([code(it) for it in range(config["vocab_size"])])
    embedding[:, ALWAYS] = EVER
    embedding[:CONTROL, ALWAYS] = EVER / 2  # less likely than any other where nothing is
    weights = {"model.embed_tokens.weight": embedding, "model.norm.weight": torch.ones(HIDDEN)}
    for n, layer in enumerate([*layers(), *(Layer.idle() for _ in range(idle))]):
        # Every token has the same norm; it is taken out of what reads normed values.
        rms = math.sqrt(((n + 1) * CODE + EVER * EVER) / HIDDEN)
        at = f"model.layers.{n}."
        for norm in ("input_layernorm", "post_attention_layernorm"):
            weights[f"{at}{norm}.weight"] = torch.ones(HIDDEN)
        for name, matrix in (("q", layer.q), ("k", layer.k), ("v", layer.v)):
            weights[f"{at}self_attn.{name}_proj.weight"] = matrix * rms
        weights[f"{at}self_attn.o_proj.weight"] = layer.o
        weights[f"{at}mlp.gate_proj.weight"] = torch.zeros(inner, HIDDEN)
        weights[f"{at}mlp.up_proj.weight"] = torch.zeros(inner, HIDDEN)
        weights[f"{at}mlp.down_proj.weight"] = torch.zeros(HIDDEN, inner)
    save_file(weights, target / "model.safetensors", metadata={"format": "pt"})


if __name__ == "__main__":
    main()
