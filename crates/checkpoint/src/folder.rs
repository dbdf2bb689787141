//! A folder as Hugging Face ships it, as the GGUF that it would be.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io::Read;
use std::path::Path;

use gguf::{DType, Described, Metadata, Part};
use serde_json::Value as Json;

use crate::config::Config;
use crate::error::bad;
use crate::names::{Change, Heads, named};
use crate::shard::{Shard, Stored};
use crate::{Error, JSON_BYTES_MAX, SHARDS_MAX};

const CONFIG: &str = "config.json";
const WHOLE: &str = "model.safetensors";
const INDEX: &str = "model.safetensors.index.json";
/// What else makes tokens of a text, and so belongs to the model's fingerprint.
const TOKENS: [&str; 5] = [
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "chat_template.jinja",
    "generation_config.json",
];

pub(crate) fn metadata(dir: &Path) -> Result<Metadata, Error> {
    let config = config(dir)?;
    let shards = shards(dir)?;
    plan(&config, &shards)?;
    Ok(config.metadata)
}

/// A hash of what says how the model is computed and how texts become tokens.
pub(crate) fn texts(dir: &Path) -> Result<[u8; 32], Error> {
    let mut hash = blake3::Hasher::new();
    for name in [CONFIG].iter().chain(&TOKENS) {
        let path = dir.join(name);
        if !path.is_file() {
            continue;
        }
        let bad = |error| bad(&path, error);
        let file = File::open(&path).map_err(bad)?;
        let bytes = blake3::Hasher::new()
            .update_reader(file)
            .map_err(bad)?
            .finalize();
        hash.update(name.as_bytes()).update(bytes.as_bytes());
    }
    Ok(*hash.finalize().as_bytes())
}

pub(crate) fn open(dir: &Path) -> Result<gguf::File, Error> {
    let config = config(dir)?;
    let shards = shards(dir)?;
    let mut described = Vec::new();
    let mut made = Made::default();
    for planned in plan(&config, &shards)? {
        let stored = planned.stored;
        if planned.plus_one {
            let mut numbers = shards[planned.part].vector(stored)?;
            numbers.iter_mut().for_each(|x| *x += 1.0);
            made.add(&planned.name, &numbers);
            continue;
        }
        described.push(Described {
            name: planned.name,
            dims: stored.shape.iter().rev().map(|dim| *dim as u64).collect(),
            dtype: stored.dtype,
            part: planned.part,
            offset: stored.offset,
            paired: planned.paired,
        });
    }
    for (name, numbers) in &config.tensors {
        made.add(name, numbers);
    }
    let mut parts: Vec<Part> = shards.into_iter().map(Shard::part).collect();
    let part = parts.len();
    let of_memory = made
        .described
        .into_iter()
        .map(|it| Described { part, ..it });
    described.extend(of_memory);
    parts.push(Part::of_memory(made.bytes));
    Ok(gguf::File::assembled(config.metadata, parts, described)?)
}

/// Vectors that stand in no file as they are used.
#[derive(Default)]
struct Made {
    described: Vec<Described>,
    bytes: Vec<u8>,
}

impl Made {
    fn add(&mut self, name: &str, numbers: &[f32]) {
        self.described.push(Described {
            name: name.to_owned(),
            dims: vec![numbers.len() as u64],
            dtype: DType::F32,
            part: 0,
            offset: self.bytes.len() as u64,
            paired: None,
        });
        self.bytes
            .extend(numbers.iter().flat_map(|x| x.to_le_bytes()));
    }
}

fn config(dir: &Path) -> Result<Config, Error> {
    Config::read(&json(&dir.join(CONFIG))?)
}

/// The shards of a folder, in the order of their names, each with a checked header.
fn shards(dir: &Path) -> Result<Vec<Shard>, Error> {
    let whole = dir.join(WHOLE);
    if whole.is_file() {
        return Ok(vec![Shard::open(&whole)?]);
    }
    let index = dir.join(INDEX);
    if !index.is_file() {
        let problem =
            format!("has neither {WHOLE} nor {INDEX}; other formats of weights are not read");
        return Err(bad(dir, problem));
    }
    let json = json(&index)?;
    let Json::Object(map) = &json["weight_map"] else {
        return Err(bad(&index, "has no weight_map"));
    };
    let mut places = BTreeMap::new();
    for (tensor, shard) in map {
        let shard = shard.as_str().unwrap_or_default();
        // Only a file beside the index.
        if !shard.ends_with(".safetensors") || shard.contains(['/', '\\']) {
            return Err(bad(
                &index,
                format!("tensor {tensor:?} lies in {shard:?}, which is no file's name"),
            ));
        }
        places.insert(tensor.as_str(), shard);
    }
    let names: BTreeSet<&str> = places.values().copied().collect();
    if names.len() > SHARDS_MAX {
        return Err(bad(
            &index,
            format!("names {} files, the limit is {SHARDS_MAX}", names.len()),
        ));
    }
    let open = |name: &&str| Shard::open(&dir.join(name));
    let shards: Vec<Shard> = names.iter().map(open).collect::<Result<_, _>>()?;
    for (shard, name) in shards.iter().zip(&names) {
        for tensor in &shard.tensors {
            match places.remove(tensor.name.as_str()) {
                Some(place) if place == *name => {}
                Some(place) => {
                    let problem = format!(
                        "has tensor {:?}, which lies in {place} by the index",
                        tensor.name
                    );
                    return Err(bad(&shard.path, problem));
                }
                None => {
                    let problem = format!(
                        "has tensor {:?}, which is not in the index, or twice",
                        tensor.name
                    );
                    return Err(bad(&shard.path, problem));
                }
            }
        }
    }
    match places.iter().next() {
        None => Ok(shards),
        Some((tensor, shard)) => Err(bad(
            &dir.join(shard),
            format!("has no tensor {tensor:?}, but by the index it has"),
        )),
    }
}

/// A tensor that is computed with: where it lies, and what becomes of it.
struct Planned<'s> {
    part: usize,
    stored: &'s Stored,
    name: String,
    /// Rows of a head that become pairs.
    paired: Option<usize>,
    plus_one: bool,
}

fn plan<'s>(config: &Config, shards: &'s [Shard]) -> Result<Vec<Planned<'s>>, Error> {
    let mut planned = Vec::new();
    let mut head = false;
    for (part, stored) in shards
        .iter()
        .enumerate()
        .flat_map(|(part, shard)| shard.tensors.iter().map(move |stored| (part, stored)))
    {
        let known = named(&stored.name, config.family).ok_or_else(|| Error::Tensor {
            name: stored.name.clone(),
            problem: "is not known: no model of this model_type has it".into(),
        })?;
        let is_head = known.name == "output.weight";
        head |= is_head;
        // Of a model whose head is the embedding it is a copy.
        if known.change == Change::LeftOut || is_head && config.tied {
            continue;
        }
        let paired = match known.change {
            Change::Nothing | Change::PlusOne | Change::LeftOut => None,
            Change::Pairs(Heads::Queries) => Some(head_rows(stored, config.heads)?),
            Change::Pairs(Heads::Keys) => Some(head_rows(stored, config.kv_heads)?),
        };
        planned.push(Planned {
            part,
            stored,
            name: known.name,
            paired,
            plus_one: known.change == Change::PlusOne,
        });
    }
    if !head && !config.tied {
        return Err(Error::Tensor {
            name: "lm_head.weight".into(),
            problem: "is missing, and config.json does not say tie_word_embeddings".into(),
        });
    }
    Ok(planned)
}

fn head_rows(stored: &Stored, heads: usize) -> Result<usize, Error> {
    let rows = stored.shape.first().copied().unwrap_or_default();
    if rows == 0 || !rows.is_multiple_of(2 * heads) {
        return Err(Error::Tensor {
            name: stored.name.clone(),
            problem: format!("has {rows} rows, which are no pairs of {heads} heads"),
        });
    }
    Ok(rows / heads)
}

fn json(path: &Path) -> Result<Json, Error> {
    let file = File::open(path).map_err(|error| bad(path, error))?;
    let mut bytes = Vec::new();
    let read = file.take(JSON_BYTES_MAX + 1).read_to_end(&mut bytes);
    read.map_err(|error| bad(path, error))?;
    if bytes.len() as u64 > JSON_BYTES_MAX {
        return Err(bad(path, format!("has more than {JSON_BYTES_MAX} bytes")));
    }
    serde_json::from_slice(&bytes).map_err(|error| bad(path, error))
}
