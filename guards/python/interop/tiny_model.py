"""A two-layer Llama of random weights with somebody else's tokenizer, for traffic in bulk: what it
says means nothing, but it says it fast, and something else for every prompt.

    python tiny_model.py FOLDER_OF_A_MODEL_WITH_A_TOKENIZER NEW_FOLDER"""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path

import torch
from safetensors.torch import save_file

LAYERS, HIDDEN, HEADS, KV_HEADS, DIM, INNER = 2, 256, 4, 2, 64, 512


def main() -> None:
    source, target = Path(sys.argv[1]), Path(sys.argv[2])
    target.mkdir(parents=True, exist_ok=True)
    for name in source.iterdir():
        if name.suffix in (".json", ".jinja", ".txt", ".model") and "safetensors" not in name.name:
            shutil.copy(name, target)
    config = json.loads((source / "config.json").read_text())
    vocabulary = config["vocab_size"]
    config |= {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "num_hidden_layers": LAYERS,
        "hidden_size": HIDDEN,
        "num_attention_heads": HEADS,
        "num_key_value_heads": KV_HEADS,
        "head_dim": DIM,
        "intermediate_size": INNER,
        "max_position_embeddings": 4096,
        "tie_word_embeddings": True,
    }
    (target / "config.json").write_text(json.dumps(config, indent=1))
    generator = torch.Generator().manual_seed(1)

    def random(*shape: int) -> torch.Tensor:
        scale = shape[-1] ** -0.5
        return (torch.randn(*shape, generator=generator) * scale).to(torch.bfloat16)

    weights = {"model.embed_tokens.weight": random(vocabulary, HIDDEN) * 8}
    for layer in range(LAYERS):
        at = f"model.layers.{layer}."
        for norm in ("input_layernorm", "post_attention_layernorm"):
            weights[f"{at}{norm}.weight"] = torch.ones(HIDDEN, dtype=torch.bfloat16)
        for name, rows in (("q", HEADS), ("k", KV_HEADS), ("v", KV_HEADS)):
            # Wide enough that attention picks single tokens instead of averaging all of them.
            weights[f"{at}self_attn.{name}_proj.weight"] = random(rows * DIM, HIDDEN) * 3
        weights[f"{at}self_attn.o_proj.weight"] = random(HIDDEN, HEADS * DIM) * 2
        weights[f"{at}mlp.gate_proj.weight"] = random(INNER, HIDDEN)
        weights[f"{at}mlp.up_proj.weight"] = random(INNER, HIDDEN)
        weights[f"{at}mlp.down_proj.weight"] = random(HIDDEN, INNER)
    weights["model.norm.weight"] = torch.ones(HIDDEN, dtype=torch.bfloat16)
    save_file(weights, target / "model.safetensors", metadata={"format": "pt"})


if __name__ == "__main__":
    main()
