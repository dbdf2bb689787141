//! A model's folder as Hugging Face has it: `tokenizer.json`, and beside it `tokenizer_config.json`,
//! `special_tokens_map.json`, `chat_template.jinja`, `generation_config.json` and `config.json`.
//!
//! Words become tokens by the crate that Hugging Face's own libraries use. Control tokens do not go
//! through it: they are found here, as those of a GGUF are, so that one rule says who may write them.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io::Read;
use std::path::Path;

use serde_json::Value;
use tokenizers::{AddedToken, ModelWrapper, PreTokenizerWrapper};

use crate::pieces::{SPACE, byte};
use crate::vocabulary::looks_like_control;
use crate::{Error, byte_level};

const TOKENIZER: &str = "tokenizer.json";
const TOKENIZER_CONFIG: &str = "tokenizer_config.json";
const SPECIALS: &str = "special_tokens_map.json";
const TEMPLATE: &str = "chat_template.jinja";
const GENERATION: &str = "generation_config.json";
const CONFIG: &str = "config.json";

/// Bytes of a `tokenizer.json` that are read (Gemma's has 33 MB), and of any other file.
const TOKENIZER_BYTES_MAX: u64 = 128 << 20;
const BYTES_MAX: u64 = 8 << 20;
/// Tokens of a vocabulary, at most; also of what `config.json` says that it has.
const TOKENS_MAX: usize = 4 << 20;

/// What turns text between control tokens into tokens.
pub(crate) struct Encoder {
    /// As the file says, control tokens left out.
    first: tokenizers::Tokenizer,
    /// The same behind a control token, where a text at the beginning gets a space that others do not.
    later: Option<Box<tokenizers::Tokenizer>>,
}

/// What a folder says of its tokenizer.
pub(crate) struct Folder {
    pub(crate) encoder: Encoder,
    /// Bytes of each token, and whether it is a control token.
    pub(crate) tokens: Vec<(Vec<u8>, bool)>,
    pub(crate) control: Vec<(String, u32)>,
    /// Control tokens that take the white space before or behind them with them.
    pub(crate) strips: BTreeMap<u32, Strips>,
    pub(crate) bos: Option<u32>,
    pub(crate) eos: Option<u32>,
    pub(crate) ends: BTreeSet<u32>,
    pub(crate) add_bos: bool,
}

/// On which sides a control token takes white space with it.
#[derive(Clone, Copy)]
pub(crate) struct Strips {
    pub(crate) left: bool,
    pub(crate) right: bool,
}

impl Encoder {
    /// Appends the tokens of a text; `first`: nothing stands before it.
    pub(crate) fn encode(&self, text: &str, first: bool, into: &mut Vec<u32>) {
        let later = self.later.as_deref().filter(|_| !first);
        let encoded = later.unwrap_or(&self.first).encode_fast(text, false);
        // It can fail on a character for which there is no token at all, which was tried.
        into.extend(encoded.expect("tried when it was read").get_ids());
    }

    pub(crate) fn decode(&self, ids: &[u32]) -> String {
        self.first.decode(ids, false).unwrap_or_default() // of texts it fails on none
    }
}

impl Folder {
    pub(crate) fn read(dir: &Path) -> Result<Folder, Error> {
        let file = bytes(dir, TOKENIZER, TOKENIZER_BYTES_MAX)?;
        let file = file.ok_or_else(|| {
            let problem = "is not in this folder; one that has only tokenizer.model can be loaded and \
                           saved again with transformers, which makes one";
            bad(TOKENIZER, problem)
        })?;
        let whole = tokenizers::Tokenizer::from_bytes(file);
        let mut whole = whole.map_err(|error| bad(TOKENIZER, error))?;
        check_kind(&whole)?;
        let config = configured(dir)?;
        let model = object(dir, CONFIG)?;
        let (bos, eos) = (
            special_token(&whole, &config, "bos_token")?,
            special_token(&whole, &config, "eos_token")?,
        );
        let add_bos = adds_bos(&whole, &config)?;
        // Nothing is ever cut to fit.
        whole
            .with_truncation(None)
            .map_err(|error| bad(TOKENIZER, error))?
            .with_padding(None);
        let generation = object(dir, GENERATION)?;
        let stated = named_ids(&model, &generation)?;
        let mut ends = stated.ends();
        name_special(&mut whole, &config, &ends)?;
        let (added, special) = added(&whole, &config)?;
        let tokens = tokens(&whole, &model, &added, &special)?;
        stated.check(tokens.len())?;
        ends.extend(eos);
        let control = special
            .iter()
            .map(|id| (added[id].0.clone(), *id))
            .collect();
        let strips = special.iter().map(|id| (*id, added[id].1));
        let strips = strips.filter(|(_, it)| it.left || it.right).collect();
        Ok(Folder {
            encoder: encoder(whole, &special)?,
            tokens,
            control,
            strips,
            bos,
            eos,
            ends,
            add_bos,
        })
    }
}

/// The chat template of a folder, and the texts of its BOS and EOS.
pub(crate) fn template(dir: &Path) -> Result<(String, String, String), Error> {
    let config = configured(dir)?;
    let own = bytes(dir, TEMPLATE, BYTES_MAX)?;
    let source = match own {
        Some(bytes) => String::from_utf8(bytes).map_err(|error| bad(TEMPLATE, error))?,
        None => {
            let given = &config["chat_template"];
            let named = given.as_array().into_iter().flatten();
            let default = named.into_iter().find(|it| it["name"] == "default");
            let source = default.map_or(given, |it| &it["template"]).as_str();
            source.map(str::to_owned).ok_or_else(|| {
                let problem = "names no chat_template, and there is no chat_template.jinja beside it: \
                               a chat could not be written as this model expects it";
                bad(TOKENIZER_CONFIG, problem)
            })?
        }
    };
    let text = |name: &str| token_text(&config[name]).unwrap_or_default().to_owned();
    Ok((source, text("bos_token"), text("eos_token")))
}

fn bad(file: &'static str, problem: impl ToString) -> Error {
    let problem = problem.to_string();
    Error::Folder { file, problem }
}

/// A file of the folder, if it is there.
fn bytes(dir: &Path, name: &'static str, limit: u64) -> Result<Option<Vec<u8>>, Error> {
    let file = match File::open(dir.join(name)) {
        Ok(file) => file,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(bad(name, error)),
    };
    let mut bytes = Vec::new();
    let read = file.take(limit + 1).read_to_end(&mut bytes);
    read.map_err(|error| bad(name, error))?;
    match bytes.len() as u64 > limit {
        true => Err(bad(name, format!("has more than {limit} bytes"))),
        false => Ok(Some(bytes)),
    }
}

/// A small file of the folder; null if it is not there.
fn object(dir: &Path, name: &'static str) -> Result<Value, Error> {
    let bytes = bytes(dir, name, BYTES_MAX)?;
    let value = bytes.map_or(Ok(Value::Null), |bytes| {
        serde_json::from_slice(&bytes).map_err(|error| bad(name, error))
    })?;
    match value {
        Value::Null | Value::Object(_) => Ok(value),
        _ => Err(bad(name, "is no object")),
    }
}

fn unsupported(key: &'static str, found: impl ToString, expected: &str) -> Error {
    Error::Unsupported {
        key: key.to_owned(),
        found: found.to_string(),
        expected: expected.to_owned(),
    }
}

/// Only what gives the same tokens in every process, and fails on no text.
fn check_kind(whole: &tokenizers::Tokenizer) -> Result<(), Error> {
    match whole.get_model() {
        ModelWrapper::BPE(bpe) if bpe.dropout.is_none_or(|rate| rate == 0.0) => {}
        ModelWrapper::Unigram(_) => {}
        ModelWrapper::BPE(_) => return Err(unsupported("model.dropout", "a number", "null")),
        ModelWrapper::WordPiece(_) => {
            return Err(unsupported("model.type", "WordPiece", "BPE, Unigram"));
        }
        ModelWrapper::WordLevel(_) => {
            return Err(unsupported("model.type", "WordLevel", "BPE, Unigram"));
        }
    }
    // A character that no vocabulary has.
    let tried = whole.encode_fast("\u{10FFFD}", false);
    tried
        .map(drop)
        .map_err(|error| bad(TOKENIZER, format!("it cannot encode every text: {error}")))
}

/// What `tokenizer_config.json` says, and where it says nothing of a special token, what older folders
/// have beside it.
fn configured(dir: &Path) -> Result<Value, Error> {
    let mut config = object(dir, TOKENIZER_CONFIG)?;
    let specials = object(dir, SPECIALS)?;
    for (name, token) in specials.as_object().into_iter().flatten() {
        if config[name].is_null() {
            config[name] = token.clone(); // of nothing it makes an object
        }
    }
    Ok(config)
}

/// The token that a configuration names by its text. `transformers` would add one that the tokenizer
/// does not have, behind the last that the model knows.
fn special_token(
    whole: &tokenizers::Tokenizer,
    config: &Value,
    name: &str,
) -> Result<Option<u32>, Error> {
    let Some(text) = token_text(&config[name]) else {
        return Ok(None);
    };
    let id = whole.token_to_id(text);
    id.map(Some).ok_or_else(|| {
        let problem = format!("{name} is {text:?}, which {TOKENIZER} does not have");
        bad(TOKENIZER_CONFIG, problem)
    })
}

/// Tokens that configurations name by their numbers.
struct NamedIds(Vec<(&'static str, &'static str, u32)>);

/// What ends an answer is in the first file that says anything of it.
fn named_ids(model: &Value, generation: &Value) -> Result<NamedIds, Error> {
    let mut named = Vec::new();
    for key in ["bos_token_id", "eos_token_id"] {
        let mut files = [(GENERATION, generation), (CONFIG, model)].into_iter();
        let said = |(_, it): &(_, &Value)| it.is_object();
        let Some((file, stated)) = files.find(said) else {
            continue;
        };
        let ids = match &stated[key] {
            Value::Null => &[],
            Value::Array(ids) => ids.as_slice(),
            one => std::slice::from_ref(one),
        };
        for id in ids {
            let number = number(id).ok_or_else(|| {
                let problem = format!("{key} {id} is no number of a token");
                bad(file, problem)
            })?;
            named.push((file, key, number));
        }
    }
    Ok(NamedIds(named))
}

impl NamedIds {
    fn ends(&self) -> BTreeSet<u32> {
        let ends = self.0.iter().filter(|(_, key, _)| *key == "eos_token_id");
        ends.map(|(.., id)| *id).collect()
    }

    /// Each is one of so many.
    fn check(&self, tokens: usize) -> Result<(), Error> {
        let unknown = self.0.iter().find(|(.., id)| *id as usize >= tokens);
        unknown.map_or(Ok(()), |(file, key, id)| {
            let problem = format!("{key} {id} is no token of this vocabulary, which has {tokens}");
            Err(bad(file, problem))
        })
    }
}

/// What is named as special is a control token, whatever the list of added tokens says of it: nobody's
/// words may become it.
fn name_special(
    whole: &mut tokenizers::Tokenizer,
    config: &Value,
    ends: &BTreeSet<u32>,
) -> Result<(), Error> {
    let listed = &config["added_tokens_decoder"];
    let listed = listed.as_object().into_iter().flat_map(|it| it.values());
    let listed = listed.filter(|token| token["special"] == true);
    let more = config["additional_special_tokens"].as_array();
    let one = ["bos_token", "eos_token", "unk_token", "pad_token"].map(|name| &config[name]);
    let named = listed.chain(more.into_iter().flatten()).chain(one);
    let named = named.filter_map(|token| whole.token_to_id(token_text(token)?));
    let added = whole.get_added_tokens_decoder();
    let looks = added
        .iter()
        .filter(|(_, it)| looks_like_control(&it.content));
    let looks = looks.map(|(id, _)| *id);
    let ids: BTreeSet<u32> = named.chain(ends.iter().copied()).chain(looks).collect();
    let ordinary = |id: &u32| {
        let known = added.get(id).cloned();
        let text = whole.id_to_token(*id)?;
        let token = known.unwrap_or_else(|| AddedToken::from(text, true));
        Some(AddedToken {
            special: true,
            ..token
        })
    };
    let ordinary: Vec<AddedToken> = ids.iter().filter_map(ordinary).collect();
    let done = whole.add_special_tokens(ordinary);
    done.map(drop).map_err(|error| bad(TOKENIZER, error))
}

/// Text and sides of each added token, and which of them are control tokens.
type Added = (BTreeMap<u32, (String, Strips)>, BTreeSet<u32>);

fn added(whole: &tokenizers::Tokenizer, config: &Value) -> Result<Added, Error> {
    let (mut added, mut special) = (BTreeMap::new(), BTreeSet::new());
    for (id, token) in whole.get_added_tokens_decoder() {
        if token.special && token.single_word {
            let found = format!("{} with single_word", token.content);
            return Err(unsupported("added_tokens", found, "tokens without"));
        }
        if token.special {
            special.insert(id);
        }
        let strips = Strips {
            left: token.lstrip,
            right: token.rstrip,
        };
        added.insert(id, (token.content, strips));
    }
    // Transformers adds these too; what is in one file alone cannot be told to be the same model's.
    for (id, token) in config["added_tokens_decoder"]
        .as_object()
        .into_iter()
        .flatten()
    {
        let text = token_text(token).unwrap_or_default();
        let known = id.parse().ok().and_then(|id| added.get_key_value(&id));
        if known.is_none_or(|(_, (known, _))| known != text) {
            let problem = format!("names token {id} {text:?}, which {TOKENIZER} does not have");
            return Err(bad(TOKENIZER_CONFIG, problem));
        }
    }
    Ok((added, special))
}

/// The bytes of every token. A number without a token, of which models have some behind the last, is a
/// control token of no bytes.
fn tokens(
    whole: &tokenizers::Tokenizer,
    config: &Value,
    added: &BTreeMap<u32, (String, Strips)>,
    special: &BTreeSet<u32>,
) -> Result<Vec<(Vec<u8>, bool)>, Error> {
    let spelling = Spelling::of(whole)?;
    let vocab = whole.get_vocab(true);
    let last = vocab.values().max().map_or(0, |id| *id as usize + 1);
    let stated = [&config["vocab_size"], &config["text_config"]["vocab_size"]];
    let stated = stated.into_iter().filter_map(number).max();
    let size = last.max(stated.unwrap_or(0) as usize);
    if size > TOKENS_MAX || last == 0 {
        let problem = format!("has {size} tokens; 1 to {TOKENS_MAX} are read");
        return Err(bad(TOKENIZER, problem));
    }
    let mut tokens = vec![(Vec::new(), true); size];
    for (text, id) in vocab {
        tokens[id as usize] = match added.get(&id) {
            Some((text, _)) => (text.as_bytes().to_vec(), special.contains(&id)),
            None => (spelling.bytes(&text), false),
        };
    }
    Ok(tokens)
}

/// How the vocabulary spells bytes.
enum Spelling {
    /// One character of an alphabet for each byte.
    Alphabet,
    /// As text, `▁` for a space, and bytes as `<0x0A>` if so.
    Text { bytes: bool },
}

impl Spelling {
    fn of(whole: &tokenizers::Tokenizer) -> Result<Spelling, Error> {
        const KNOWN: &str = "ByteLevel; Replace of \u{2581}, ByteFallback, Fuse, Strip, Metaspace";
        let decoder = serde_json::to_value(whole.get_decoder()).unwrap_or_default();
        let steps = match &decoder["decoders"] {
            Value::Array(steps) => steps.clone(),
            _ => vec![decoder],
        };
        let kind = |step: &Value| step["type"].as_str().unwrap_or("none").to_owned();
        let kinds: Vec<String> = steps.iter().map(kind).collect();
        if kinds == ["ByteLevel"] {
            return Ok(Spelling::Alphabet);
        }
        let spaces =
            |step: &Value| step["pattern"]["String"] == "\u{2581}" && step["content"] == " ";
        for (step, kind) in steps.iter().zip(&kinds) {
            let known = match kind.as_str() {
                "ByteFallback" | "Fuse" | "Strip" | "Metaspace" => true,
                "Replace" => spaces(step),
                _ => false,
            };
            if !known {
                return Err(unsupported("decoder", kind, KNOWN));
            }
        }
        let bytes = kinds.iter().any(|kind| kind == "ByteFallback");
        Ok(Spelling::Text { bytes })
    }

    fn bytes(&self, text: &str) -> Vec<u8> {
        match self {
            Spelling::Alphabet => {
                byte_level::bytes(text).unwrap_or_else(|| text.as_bytes().to_vec())
            }
            Spelling::Text { bytes: true } if byte(text).is_some() => {
                byte(text).into_iter().collect()
            }
            Spelling::Text { .. } => text.replace(SPACE, " ").into_bytes(),
        }
    }
}

/// Whether a prompt begins with BOS: by `add_bos_token`, else by what the file adds to every text.
fn adds_bos(whole: &tokenizers::Tokenizer, config: &Value) -> Result<bool, Error> {
    if config["add_eos_token"] == true {
        return Err(unsupported("add_eos_token", "true", "false"));
    }
    let ids = |special| {
        let encoded = whole.encode_fast("a", special);
        let ids = encoded.map(|it| it.get_ids().to_vec());
        ids.map_err(|error| bad(TOKENIZER, error))
    };
    let (bare, full) = (ids(false)?, ids(true)?);
    let bos = token_text(&config["bos_token"]).and_then(|text| whole.token_to_id(text));
    let around = full.len() - bare.len().min(full.len());
    let adds = match around {
        0 => false,
        1 if full[1..] == bare[..] && Some(full[0]) == bos => true,
        _ => {
            return Err(unsupported(
                "post_processor",
                "other tokens",
                "BOS before a text, or none",
            ));
        }
    };
    Ok(config["add_bos_token"].as_bool().unwrap_or(adds))
}

/// The same tokenizer for texts that others may have written, and for those behind a control token.
fn encoder(mut first: tokenizers::Tokenizer, special: &BTreeSet<u32>) -> Result<Encoder, Error> {
    first.set_encode_special_tokens(true);
    without_control(&mut first, special)?;
    let mut cut = serde_json::to_value(first.get_pre_tokenizer()).unwrap_or_default();
    if !only_at_first(&mut cut) {
        return Ok(Encoder { first, later: None });
    }
    let cut = serde_json::from_value::<PreTokenizerWrapper>(cut);
    let mut later = first.clone();
    later.with_pre_tokenizer(Some(cut.map_err(|error| bad(TOKENIZER, error))?));
    let later = Some(Box::new(later));
    Ok(Encoder { first, later })
}

/// Takes control tokens out of a model that would find them in text: a Unigram knows nothing but the
/// texts of its pieces, nor does a BPE that takes whole words first.
fn without_control(
    whole: &mut tokenizers::Tokenizer,
    special: &BTreeSet<u32>,
) -> Result<(), Error> {
    let finds = match whole.get_model() {
        ModelWrapper::BPE(bpe) => bpe.ignore_merges,
        _ => true,
    };
    let mut model = match finds {
        true => serde_json::to_value(whole.get_model()).unwrap_or_default(),
        false => return Ok(()),
    };
    let unknown = model["unk_token"].as_str().map(str::to_owned);
    match &mut model["vocab"] {
        Value::Array(pieces) => {
            let control = special.iter().filter_map(|id| usize::try_from(*id).ok());
            for id in control.filter(|id| *id < pieces.len()).collect::<Vec<_>>() {
                pieces[id][0] = "".into(); // nothing is found by it
            }
        }
        Value::Object(ids) => ids.retain(|text, id| {
            let control = number(id).is_some_and(|id| special.contains(&id));
            !control || unknown.as_ref() == Some(text)
        }),
        _ => {}
    }
    let model = serde_json::from_value::<ModelWrapper>(model);
    whole.with_model(model.map_err(|error| bad(TOKENIZER, error))?);
    Ok(())
}

/// Changes steps that treat the beginning of a text otherwise; whether there were any.
fn only_at_first(step: &mut Value) -> bool {
    if let Value::Array(steps) = &mut step["pretokenizers"] {
        let mut any = false;
        for step in steps {
            any |= only_at_first(step);
        }
        return any;
    }
    let is = step["type"] == "Metaspace" && step["prepend_scheme"] == "first";
    if is {
        step["prepend_scheme"] = "never".into();
    }
    is
}

/// A token is named by its text, or by an object with it.
fn token_text(value: &Value) -> Option<&str> {
    value.as_str().or_else(|| value["content"].as_str())
}

fn number(value: &Value) -> Option<u32> {
    value.as_u64()?.try_into().ok()
}
