//! What else than the model's name decides what its weights are and how they compute.

use crate::facts::combine::derived;
use crate::facts::figure::{Fact, Figure};

/// Nothing is changed.
pub(crate) const DEFAULT: &str = "default";

/// Ways to read the same weights: from files of several forms, streamed, from a running instance.
pub(crate) const SAME_WEIGHTS: [&str; 13] = [
    "auto",
    "hf",
    "safetensors",
    "fastsafetensors",
    "instanttensor",
    "pt",
    "npcache",
    "layered",
    "sharded_state",
    "runai_streamer",
    "runai_streamer_sharded",
    "remote_instance",
    "mistral",
];

/// How weights are quantized: a name may also say by which kernel they are computed.
pub(crate) fn quantization(says: Fact<Figure<String>>) -> Fact<Figure<String>> {
    let mut figure = says?;
    if let Some(of) = figure.value.strip_suffix("_marlin") {
        figure.value = of.to_owned();
    }
    Ok(figure)
}

/// One setting of several.
pub(crate) struct Setting {
    /// As people call it: `revision`.
    pub name: &'static str,
    /// What it says.
    pub says: Fact<Figure<String>>,
    /// Values that change nothing.
    pub plain: &'static [&'static str],
    /// A version that does not have it is none that hides it.
    pub may_lack: bool,
}

/// All settings as one text: those that change something, by name, else [`DEFAULT`].
///
/// # Errors
/// One that must be there is not, or one is absurd.
pub(crate) fn together(settings: Vec<Setting>) -> Fact<Figure<String>> {
    let (mut changed, mut from) = (Vec::new(), Vec::new());
    for setting in settings {
        let figure = match setting.says {
            Ok(figure) => figure,
            Err(crate::facts::Unknown::NotReported { .. }) if setting.may_lack => continue,
            Err(why) => return Err(why),
        };
        from.push(figure.source);
        if figure.value != "none" && !setting.plain.contains(&figure.value.as_str()) {
            changed.push(format!("{} {}", setting.name, figure.value));
        }
    }
    changed.sort(); // logs and answers tell them in other orders
    let text = match changed.is_empty() {
        true => DEFAULT.to_owned(),
        false => changed.join(", "),
    };
    Ok(derived(text, "settings", from))
}
