//! Settings that matter to some models only: where they differ, it may make a difference or none.

use crate::facts::figure::Figure;
use crate::facts::node::Particulars;
use std::collections::BTreeMap;

/// How people call a setting, and where it stands.
type Place = (&'static str, &'static str);

/// Where an engine tells them.
pub(crate) struct Places {
    /// What may make another model of the same weights.
    pub made: &'static [Place],
    /// Types of what goes along with KV: of indexers, of states.
    pub types: &'static [Place],
    /// Pages that some layers have.
    pub pages: &'static [Place],
    /// Which layers have a pool of their own.
    pub layout: &'static [Place],
}

/// Of SGLang's settings, which its log prints too.
pub(crate) const SGLANG: Places = Places {
    made: &[
        ("trust_remote_code", "trust_remote_code"),
        ("model_impl", "model_impl"),
        ("model_config_parser", "model_config_parser"),
        ("model_loader_extra_config", "model_loader_extra_config"),
        ("rl_quant_profile", "rl_quant_profile"),
    ],
    types: &[
        ("FP4 indexer", "enable_deepseek_v4_fp4_indexer"),
        ("type of the indexer", "qsa_indexer_dtype"),
        ("type of states", "mamba_ssm_dtype"),
    ],
    pages: &[("compressed page", "c128_page_size")],
    layout: &[("windows in the whole pool", "disable_hybrid_swa_memory")],
};

/// Of vLLM's settings, as a development server tells them.
pub(crate) const VLLM: Places = Places {
    made: &[
        ("trust_remote_code", "model_config.trust_remote_code"),
        ("model_impl", "model_config.model_impl"),
        ("config_format", "model_config.config_format"),
        (
            "model_class_overrides",
            "model_config.model_class_overrides",
        ),
        (
            "model_loader_extra_config",
            "load_config.model_loader_extra_config",
        ),
        ("quantization configuration", "quant_config"),
    ],
    types: &[
        ("type of the indexer", "attention_config.indexer_kv_dtype"),
        ("type of states", "cache_config.mamba_cache_dtype"),
        ("type of SSM states", "cache_config.mamba_ssm_cache_dtype"),
    ],
    pages: &[],
    layout: &[],
};

/// As vLLM's log prints them with the settings of its engine.
pub(crate) const VLLM_ENGINE: Places = Places {
    made: &[("trust_remote_code", "trust_remote_code")],
    types: &[],
    pages: &[],
    layout: &[],
};

/// As vLLM's log prints them with its arguments.
pub(crate) const VLLM_ARGS: Places = Places {
    made: &[
        ("model_impl", "model_impl"),
        ("config_format", "config_format"),
        ("model_class_overrides", "model_class_overrides"),
        ("model_loader_extra_config", "model_loader_extra_config"),
    ],
    types: &[
        ("type of the indexer", "attention_config.indexer_kv_dtype"),
        ("type of states", "mamba_cache_dtype"),
    ],
    pages: &[],
    layout: &[],
};

/// What an argument of vLLM is where it is not given.
pub(crate) fn default(argument: &str) -> &'static str {
    match argument {
        "model_class_overrides" | "model_loader_extra_config" => "none",
        _ => "auto",
    }
}

/// Those that are told.
pub(crate) fn read(places: &Places, says: impl Fn(&str) -> Option<Figure<String>>) -> Particulars {
    let all = |places: &[Place]| -> BTreeMap<String, Figure<String>> {
        let told = places.iter().filter_map(|(name, field)| {
            let figure = says(field)?;
            Some(((*name).to_owned(), figure))
        });
        told.collect()
    };
    Particulars {
        made: all(places.made),
        types: all(places.types),
        pages: all(places.pages),
        layout: all(places.layout),
    }
}
