"""Architectures whose GGUF files `transformers` does not read itself: what its tensors are there."""
import gguf
import numpy as np
import torch


def read(path):
    return {t.name: gguf.quants.dequantize(t.data, t.tensor_type) for t in gguf.GGUFReader(path).tensors}


def tensor(array):
    return torch.from_numpy(np.ascontiguousarray(array, dtype=np.float32))


def deepseek2(case, stored):
    """Its `kv_b_proj` is our `attn_k_b`, transposed, and `attn_v_b`, head by head."""
    plain = {
        "attn_norm": "input_layernorm", "attn_q": "self_attn.q_proj",
        "attn_kv_a_mqa": "self_attn.kv_a_proj_with_mqa", "attn_kv_a_norm": "self_attn.kv_a_layernorm",
        "attn_output": "self_attn.o_proj", "ffn_norm": "post_attention_layernorm",
        "ffn_gate": "mlp.gate_proj", "ffn_up": "mlp.up_proj", "ffn_down": "mlp.down_proj",
        "ffn_gate_inp": "mlp.gate", "ffn_gate_shexp": "mlp.shared_experts.gate_proj",
        "ffn_up_shexp": "mlp.shared_experts.up_proj", "ffn_down_shexp": "mlp.shared_experts.down_proj",
    }
    out = {
        "model.embed_tokens.weight": stored["token_embd.weight"],
        "model.norm.weight": stored["output_norm.weight"], "lm_head.weight": stored["output.weight"],
    }
    for name, array in stored.items():
        if not name.startswith("blk."):
            continue
        _, layer, part, _ = name.split(".")
        at = f"model.layers.{layer}."
        if part in plain:
            out[f"{at}{plain[part]}.weight"] = array
        elif part.endswith("_exps"):
            for expert, one in enumerate(array):
                out[f"{at}mlp.experts.{expert}.{part[4:-5]}_proj.weight"] = one
        elif part == "attn_k_b":
            values = stored[name.replace("attn_k_b", "attn_v_b")]
            both = [np.concatenate([keys.T, value]) for keys, value in zip(array, values)]
            out[f"{at}self_attn.kv_b_proj.weight"] = np.concatenate(both)
    return {name: tensor(array) for name, array in out.items()}


def deepseek2_half(model):
    """What its pages hold is the latent after its norm, and the rotated part of the key."""
    from transformers.models.deepseek_v2 import modeling_deepseek_v2 as module
    rotate = module.apply_rotary_emb

    def rounded(query, key, angles):
        query, key = rotate(query, key, angles)
        return query, key.half().float()

    module.apply_rotary_emb = rounded
    for layer in model.model.layers:
        layer.self_attn.kv_a_layernorm.register_forward_hook(lambda _, __, out: out.half().float())


TABLES = {"deepseek2": deepseek2}
HALF = {"deepseek2": deepseek2_half}
