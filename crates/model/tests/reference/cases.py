"""The small random models whose logits are recorded: for each, the GGUF's keys and tensors, and the
configuration by which `transformers` computes the same. Names and shapes are those that llama.cpp's
`convert_hf_to_gguf.py` writes; sizes are the smallest in which nothing is trivial (grouped heads, a
window shorter than the prompt, rows of 256 so that K-quants fit).
"""
HIDDEN, FF, HEADS, KV_HEADS, DIM, VOCAB, CONTEXT = 256, 256, 4, 2, 64, 128, 512
WINDOW = 24
MATRIX, EXACT = "matrix", "exact"  # takes the case's format, or is F32 in every file


class Case:
    """Keys without the architecture's prefix; tensors as (name, dims, mean, standard deviation, kind)."""

    def __init__(self, name, architecture, layers=3, **about):
        self.name, self.architecture, self.layers = name, architecture, layers
        self.heads, self.kv_heads, self.dim = HEADS, KV_HEADS, about.pop("dim", DIM)
        self.tied = about.pop("tied", False)
        self.keys = {
            "block_count": layers, "context_length": CONTEXT, "embedding_length": HIDDEN,
            "feed_forward_length": FF, "attention.head_count": self.heads,
            "attention.head_count_kv": self.kv_heads, "attention.layer_norm_rms_epsilon": 1e-5,
            "rope.freq_base": 10000.0, "vocab_size": VOCAB,
        }
        self.keys.update(about.pop("keys", {}))
        self.hf = about.pop("hf")
        self.tensors = []
        # Of variance 1 where they are not scaled, and once they are.
        self.matrix("token_embd.weight", HIDDEN, VOCAB, 1.0 if about.pop("scaled", False) else HIDDEN ** 0.5)
        factors = about.pop("factors", ())
        for length, factor in zip(("short", "long"), factors):
            pairs = self.keys["rope.dimension_count"] // 2
            self.tensors.append((f"rope_factors_{length}.weight", [pairs], factor, 0.0, EXACT))
        for layer in range(layers):
            self.block(layer, f"blk.{layer}.", **about)
        self.norm("output_norm.weight", HIDDEN)
        if not self.tied:
            self.matrix("output.weight", HIDDEN, VOCAB, 2.0)

    def matrix(self, name, inputs, outputs, gain=1.0, kind=MATRIX, many=()):
        """Inputs of variance 1 give outputs of standard deviation `gain`."""
        self.tensors.append((name, [inputs, outputs, *many], 0.0, gain / inputs ** 0.5, kind))

    def norm(self, name, width):
        self.tensors.append((name, [width], 1.0, 0.25, EXACT))

    def bias(self, name, width, size=0.5):
        self.tensors.append((name, [width], 0.0, size, EXACT))

    def block(self, layer, at, **about):
        self.norm(at + "attn_norm.weight", HIDDEN)
        if about.get("latent"):
            self.latent(at)
        else:
            self.attention(at, **{k: about[k] for k in ("biases", "head_norms", "fused") if k in about})
        if about.get("post_norms"):
            self.norm(at + "post_attention_norm.weight", HIDDEN)
        self.norm(at + "ffn_norm.weight", HIDDEN)
        if about.get("experts") and layer >= self.keys.get("leading_dense_block_count", 0):
            self.experts(at)
        else:
            self.feed_forward(at, about.get("fused"))
        if about.get("post_norms"):
            self.norm(at + "post_ffw_norm.weight", HIDDEN)

    def attention(self, at, biases=False, head_norms=False, fused=False):
        query, kv = self.heads * self.dim, self.kv_heads * self.dim
        if fused:
            self.matrix(at + "attn_qkv.weight", HIDDEN, query + 2 * kv, 1.5)
        else:
            for part, rows, gain in (("q", query, 1.5), ("k", kv, 1.0), ("v", kv, 1.0)):
                self.matrix(f"{at}attn_{part}.weight", HIDDEN, rows, gain)
                if biases:
                    self.bias(f"{at}attn_{part}.bias", rows)
        if head_norms:
            self.norm(at + "attn_q_norm.weight", self.dim)
            self.norm(at + "attn_k_norm.weight", self.dim)
        self.matrix(at + "attn_output.weight", query, HIDDEN, 4.0)

    def latent(self, at):
        rope = self.keys["rope.dimension_count"]
        rank, key = self.keys["attention.kv_lora_rank"], self.keys["attention.key_length_mla"]
        value = self.keys["attention.value_length_mla"]
        self.matrix(at + "attn_q.weight", HIDDEN, self.heads * key, 1.5)
        self.matrix(at + "attn_kv_a_mqa.weight", HIDDEN, rank + rope)
        self.norm(at + "attn_kv_a_norm.weight", rank)
        self.matrix(at + "attn_k_b.weight", key - rope, rank, many=[self.heads])
        self.matrix(at + "attn_v_b.weight", rank, value, many=[self.heads])
        self.matrix(at + "attn_output.weight", self.heads * value, HIDDEN, 4.0)

    def experts(self, at):
        count, width = self.keys["expert_count"], self.keys["expert_feed_forward_length"]
        self.matrix(at + "ffn_gate_inp.weight", HIDDEN, count, 3.0, EXACT)
        self.matrix(at + "ffn_gate_exps.weight", HIDDEN, width, many=[count])
        self.matrix(at + "ffn_up_exps.weight", HIDDEN, width, many=[count])
        self.matrix(at + "ffn_down_exps.weight", width, HIDDEN, 2.0, many=[count])
        shared = width * self.keys.get("expert_shared_count", 0)
        if shared:
            self.matrix(at + "ffn_gate_shexp.weight", HIDDEN, shared)
            self.matrix(at + "ffn_up_shexp.weight", HIDDEN, shared)
            self.matrix(at + "ffn_down_shexp.weight", shared, HIDDEN, 2.0)

    def feed_forward(self, at, fused=False):
        if fused:
            self.matrix(at + "ffn_up.weight", HIDDEN, 2 * FF)
        else:
            self.matrix(at + "ffn_gate.weight", HIDDEN, FF)
            self.matrix(at + "ffn_up.weight", HIDDEN, FF)
        self.matrix(at + "ffn_down.weight", FF, HIDDEN, 2.0)

    def config(self):
        """The configuration of `transformers`, from the keys and what this architecture adds."""
        kind, more = self.hf
        common = dict(
            vocab_size=VOCAB, hidden_size=HIDDEN, intermediate_size=FF, head_dim=self.dim,
            num_hidden_layers=self.layers, num_attention_heads=self.heads,
            num_key_value_heads=self.kv_heads, max_position_embeddings=CONTEXT,
            rms_norm_eps=self.keys["attention.layer_norm_rms_epsilon"],
            rope_theta=self.keys["rope.freq_base"], tie_word_embeddings=self.tied,
            attn_implementation="eager", pad_token_id=0, bos_token_id=1, eos_token_id=2,
        )
        return kind, {**common, **more}


LENGTHS = {"attention.key_length": DIM, "attention.value_length": DIM}
LONG = CONTEXT * 8
CASES = [
    Case("llama", "llama", keys={"rope.dimension_count": DIM}, hf=("LlamaConfig", {})),
    Case("mistral", "llama", keys={"attention.sliding_window": WINDOW},
         hf=("MistralConfig", {"sliding_window": WINDOW})),
    Case("qwen2", "qwen2", biases=True, keys={"rope.freq_base": 1000000.0}, hf=("Qwen2Config", {})),
    Case("qwen2-tied", "qwen2", biases=True, tied=True, hf=("Qwen2Config", {})),
    Case("qwen3", "qwen3", dim=128, tied=True, head_norms=True,
         keys={"attention.key_length": 128, "attention.value_length": 128},
         hf=("Qwen3Config", {})),
    Case("phi3", "phi3", fused=True,
         keys={"rope.dimension_count": DIM // 2, "attention.sliding_window": WINDOW,
               "rope.scaling.original_context_length": CONTEXT},
         hf=("Phi3Config", {"sliding_window": WINDOW, "partial_rotary_factor": 0.5})),
    Case("phi3-long", "phi3", fused=True, factors=(1.7, 5.0),
         keys={"rope.dimension_count": DIM, "attention.sliding_window": 0, "context_length": LONG,
               "rope.scaling.original_context_length": CONTEXT, "rope.scaling.attn_factor": 1.15470053838},
         hf=("Phi3Config", {"max_position_embeddings": LONG, "original_max_position_embeddings": CONTEXT,
                            "rope_scaling": {"type": "longrope", "short_factor": [1.7] * (DIM // 2),
                                             "long_factor": [5.0] * (DIM // 2)}})),
    Case("gemma2", "gemma2", layers=4, tied=True, scaled=True, post_norms=True,
         keys={**LENGTHS, "attention.sliding_window": WINDOW, "attn_logit_softcapping": 4.0,
               "final_logit_softcapping": 2.0},
         hf=("Gemma2Config", {"sliding_window": WINDOW, "attn_logit_softcapping": 4.0,
                              "final_logit_softcapping": 2.0, "query_pre_attn_scalar": DIM})),
    Case("gemma3", "gemma3", layers=7, tied=True, scaled=True, post_norms=True, head_norms=True,
         keys={**LENGTHS, "attention.sliding_window": WINDOW, "rope.freq_base": 1000000.0,
               "rope.scaling.type": "linear", "rope.scaling.factor": 8.0},
         hf=("Gemma3TextConfig", {"sliding_window": WINDOW, "query_pre_attn_scalar": DIM,
                                  "rope_scaling": {"rope_type": "linear", "factor": 8.0},
                                  "rope_local_base_freq": 10000.0})),
    Case("qwen3moe", "qwen3moe", head_norms=True, experts=True,
         keys={**LENGTHS, "expert_count": 8, "expert_used_count": 3, "expert_feed_forward_length": FF},
         hf=("Qwen3MoeConfig", {"num_experts": 8, "num_experts_per_tok": 3, "moe_intermediate_size": FF,
                                "norm_topk_prob": True, "decoder_sparse_step": 1})),
    Case("deepseek2", "deepseek2", latent=True, experts=True,
         keys={"attention.head_count_kv": 1, "attention.kv_lora_rank": 512, "attention.key_length": 528,
               "attention.value_length": 512, "attention.key_length_mla": 272,
               "attention.value_length_mla": 64, "rope.dimension_count": 16,
               "leading_dense_block_count": 1, "expert_count": 8, "expert_used_count": 3,
               "expert_shared_count": 2, "expert_feed_forward_length": FF,
               "expert_weights_scale": 1.5, "expert_weights_norm": False},
         hf=("DeepseekV2Config", {"num_key_value_heads": HEADS, "kv_lora_rank": 512, "q_lora_rank": None,
                                  "qk_nope_head_dim": 256, "qk_rope_head_dim": 16, "v_head_dim": 64,
                                  "head_dim": 16, "first_k_dense_replace": 1, "n_routed_experts": 8,
                                  "num_experts_per_tok": 3, "n_shared_experts": 2,
                                  "moe_intermediate_size": FF, "routed_scaling_factor": 1.5,
                                  "topk_method": "greedy"})),
]
