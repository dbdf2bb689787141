//! Compiling a form, and walking along it.

use crate::{NoForm, cost, schema};
use llguidance::api::{ParserLimits, TopLevelGrammar};
use llguidance::earley::SlicedBiasComputer;
use llguidance::toktrie::{
    ApproximateTokEnv, InferenceCapabilities, SimpleVob, TokEnv, TokRxInfo, TokTrie,
};
use llguidance::{Matcher, ParserFactory};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use tokenizer::Tokenizer;
use wire::Form;

/// What a compiled form and one mask of it may cost. A mask that needs more ends its request.
fn limits() -> ParserLimits {
    ParserLimits {
        max_items_in_row: 2_000,
        initial_lexer_fuel: 1_000_000,
        step_lexer_fuel: 200_000,
        step_max_items: 50_000,
        max_lexer_states: 50_000,
        max_grammar_size: 100_000,
        precompute_large_lexemes: false,
        // Errors would have the answer so far in them.
        verbose_errors: false,
    }
}

/// Compiles forms for one vocabulary.
pub struct Grammars {
    factory: ParserFactory,
}

impl Grammars {
    /// Reads the vocabulary once, which takes a while (a tenth of a second for 50,000 tokens).
    pub fn new(tokenizer: &Tokenizer) -> Result<Self, NoForm> {
        guarded(|| {
            let words: Vec<Vec<u8>> = (0..tokenizer.vocab_size() as u32)
                .map(|id| word(tokenizer, id))
                .collect();
            let ends: Vec<u32> = tokenizer.ends().collect();
            let Some(&end) = ends.first() else {
                let problem =
                    "no token of this model ends an answer, so none can be held to a form";
                return Err(NoForm::whole(problem));
            };
            let trie = TokTrie::from(&TokRxInfo::new(words.len() as u32, end), &words);
            let env: TokEnv = Arc::new(ApproximateTokEnv::new(trie.with_eos_tokens(&ends)));
            let (caps, slices) = (
                InferenceCapabilities::default(),
                SlicedBiasComputer::general_slices(),
            );
            let mut factory = ParserFactory::new(&env, caps, &slices).map_err(explained)?;
            factory.quiet();
            *factory.limits_mut() = limits();
            Ok(Self { factory })
        })
    }

    /// The beginning of a form. Takes some stack: see [`crate::STACK_BYTES`].
    ///
    /// # Errors
    /// The form is none, is too large, or says what is not implemented.
    pub fn begin(&self, form: &Form) -> Result<Walk, NoForm> {
        guarded(|| {
            let grammar = match form {
                Form::Json(text) => {
                    let schema = schema::read(text)?;
                    cost::of_schema(&schema)?;
                    schema::judge(&schema)?;
                    return self.begin_with(&schema).map_err(|bad| NoForm {
                        at: schema::place(&schema, |part| self.begin_with(part).is_err()),
                        ..bad
                    });
                }
                Form::Regex(text) => {
                    cost::of_regex(text)?;
                    TopLevelGrammar::from_regex(schema::shallow(text)?)
                }
                Form::Lark(text) => {
                    cost::of_grammar(text)?;
                    TopLevelGrammar::from_lark(schema::shallow(text)?.to_owned())
                }
            };
            self.compile(grammar)
        })
    }

    fn begin_with(&self, schema: &serde_json::Value) -> Result<Walk, NoForm> {
        self.compile(TopLevelGrammar::from_json_schema(schema::written(schema)))
    }

    fn compile(&self, grammar: TopLevelGrammar) -> Result<Walk, NoForm> {
        let parser = guarded(|| self.factory.create_parser(grammar).map_err(explained))?;
        let matcher = Matcher::new(Ok(parser));
        match matcher.get_error() {
            None => Ok(Walk { matcher }),
            Some(error) => Err(NoForm::whole(error)),
        }
    }
}

/// What a token is in text; control tokens are in none.
fn word(tokenizer: &Tokenizer, id: u32) -> Vec<u8> {
    let bytes = tokenizer.token_bytes(id).unwrap_or_default();
    if tokenizer.is_special(id) {
        return [&[TokTrie::SPECIAL_TOKEN_MARKER], bytes].concat();
    }
    bytes.to_vec()
}

fn explained(error: impl std::fmt::Display) -> NoForm {
    NoForm::whole(error.to_string())
}

/// What panics below is an error here.
fn guarded<T>(work: impl FnOnce() -> Result<T, NoForm>) -> Result<T, NoForm> {
    let done = catch_unwind(AssertUnwindSafe(work));
    done.unwrap_or_else(|_| Err(NoForm::whole("it cannot be compiled")))
}

/// The walk along a form cannot go on: it has cost too much, or what was said is not in the form.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the form cannot be followed further: {0}")]
pub struct Stuck(String);

/// One choice on its way through its form.
pub struct Walk {
    matcher: Matcher,
}

impl Clone for Walk {
    /// With caches of its own, so that two walks never wait for each other.
    fn clone(&self) -> Self {
        Self {
            matcher: self.matcher.deep_clone(),
        }
    }
}

impl std::fmt::Debug for Walk {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Walk")
    }
}

impl Walk {
    /// Goes on by tokens that were said.
    ///
    /// # Errors
    /// One of them cannot stand there.
    pub fn take(&mut self, tokens: &[u32]) -> Result<(), Stuck> {
        for token in tokens {
            // A walk that is complete takes nothing but an end.
            let allowed = self.matcher.try_consume_tokens(&[*token]);
            match allowed {
                Ok(1) => {}
                Ok(_) => return Err(Stuck(format!("token {token} is not in it"))),
                Err(error) => return Err(Stuck(error.to_string())),
            }
        }
        Ok(())
    }

    /// What may come next: one token at least.
    ///
    /// # Errors
    /// It costs too much to know.
    pub fn mask(&mut self) -> Result<Mask, Stuck> {
        let mask = self.matcher.compute_mask_or_eos();
        let mask = mask.map_err(|error| Stuck(error.to_string()))?;
        match mask.is_zero() {
            true => Err(Stuck("nothing can come next".to_owned())),
            false => Ok(Mask(mask)),
        }
    }

    /// Whether an answer may end here.
    pub fn may_end(&mut self) -> bool {
        self.matcher.is_stopped() || self.matcher.is_accepting().unwrap_or(false)
    }
}

/// The tokens that may come next.
#[derive(Clone, Debug)]
pub struct Mask(SimpleVob);

impl Mask {
    /// Bit `t % 32` of word `t / 32` says whether token `t` may.
    pub fn words(&self) -> &[u32] {
        self.0.as_slice()
    }

    /// How many may.
    pub fn count(&self) -> usize {
        self.0.num_set()
    }

    /// Whether this token may.
    pub fn allows(&self, token: u32) -> bool {
        (token as usize) < self.0.len() && self.0.is_allowed(token)
    }
}
