//! One step: embeddings, layers, logits.

use kernels::{AttendPart, Rows};
use pages::{Verified, VerifiedSequence};

use crate::exec::Split;
use crate::layer::{self, TOKENS_MAX, TokenTile};
use crate::rope::Angles;
use crate::{Error, KvError, KvLayout, KvMemory, Logits, Model};

/// Which logits a sequence wants from a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Want {
    /// None: a prefill chunk that is not the last.
    Nothing,
    /// Those of the last new token.
    Last,
    /// Those of every new token.
    All,
}

/// One sequence's part of a step, in the order of the verified tables.
#[derive(Clone, Copy, Debug)]
pub struct SequenceInput<'a> {
    /// The new tokens, as many as the verified table says.
    pub tokens: &'a [u32],
    /// Which logits to compute.
    pub want: Want,
}

/// Memory that steps reuse. Its contents mean nothing between steps.
#[derive(Clone, Debug, Default)]
pub struct Scratch {
    /// Residual stream, `[token][hidden]`.
    pub(crate) residual: Vec<f32>,
    pub(crate) queries: Vec<f32>,
    pub(crate) keys: Vec<f32>,
    pub(crate) values: Vec<f32>,
    pub(crate) attended: Vec<f32>,
    /// Of rows whose blocks several threads share.
    pub(crate) parts: Vec<AttendPart>,
    pub(crate) angles: Angles,
    /// Of layers with a window, where they rotate by another base.
    pub(crate) local_angles: Angles,
}

impl Model {
    /// Runs one step: writes keys and values of the new tokens into the pages of `tables` and
    /// returns the logits that `inputs` want.
    ///
    /// After an error the pages that the step was to write hold no usable content; sequences in it
    /// must end (or the step be repeated from the same state, where the error was the caller's).
    pub fn forward(
        &self,
        scratch: &mut Scratch,
        kv: &mut KvMemory,
        tables: &Verified<'_>,
        inputs: &[SequenceInput<'_>],
    ) -> Result<Logits, Error> {
        self.check(kv, tables, inputs)?;
        self.exec
            .enter(|| self.run(scratch, kv, tables.sequences(), inputs))
    }

    fn check(
        &self,
        kv: &KvMemory,
        tables: &Verified<'_>,
        inputs: &[SequenceInput<'_>],
    ) -> Result<(), Error> {
        let expected = KvLayout::new(&self.config, tables.page_size());
        if *kv.layout() != expected {
            return Err(Error::Layout {
                expected,
                found: *kv.layout(),
            });
        }
        if !kv.pool().is(tables.pool()) {
            return Err(KvError::OtherPool.into());
        }
        let fault = |sequence, problem| Err(Error::Input { sequence, problem });
        let sequences = tables.sequences();
        if sequences.len() != inputs.len() {
            let (tables, inputs) = (sequences.len(), inputs.len());
            return fault(
                tables.min(inputs),
                format!("{tables} tables, {inputs} inputs"),
            );
        }
        for (i, (table, input)) in sequences.iter().zip(inputs).enumerate() {
            let (new, given) = (table.new_tokens(), input.tokens.len());
            if new != given {
                return fault(
                    i,
                    format!("the table expects {new} tokens, {given} are given"),
                );
            }
            if given == 0 && input.want != Want::Nothing {
                return fault(i, "logits wanted without a token".to_owned());
            }
            let (end, context) = (table.start() + new, self.config.context);
            if end > context {
                return fault(i, format!("{end} tokens, the model's context is {context}"));
            }
            let vocab = self.config.vocab;
            if let Some(token) = input.tokens.iter().find(|token| **token as usize >= vocab) {
                return fault(i, format!("token {token}, the vocabulary has {vocab}"));
            }
        }
        Ok(())
    }

    fn run(
        &self,
        scratch: &mut Scratch,
        kv: &mut KvMemory,
        tables: &[VerifiedSequence<'_>],
        inputs: &[SequenceInput<'_>],
    ) -> Result<Logits, Error> {
        let tokens: usize = inputs.iter().map(|input| input.tokens.len()).sum();
        self.prepare(scratch, tables, inputs, tokens);
        for layer in 0..self.layers.len() {
            let local = self.local_rope.is_some() && self.config.local(layer).is_some();
            self.each_tile(scratch, tokens, local, |tile, split| {
                self.attention_inputs(layer, tile, split)
            });
            self.store_keys_and_values(layer, scratch, kv, tables)?;
            self.attend(layer, scratch, kv, tables)?;
            self.each_tile(scratch, tokens, local, |tile, split| {
                self.after_attention(layer, tile, split)
            });
        }
        self.logits(scratch, tables, inputs)
    }

    fn prepare(
        &self,
        scratch: &mut Scratch,
        tables: &[VerifiedSequence<'_>],
        inputs: &[SequenceInput<'_>],
        tokens: usize,
    ) {
        let config = &self.config;
        for (buffer, width) in [
            (&mut scratch.residual, config.hidden),
            (&mut scratch.queries, config.query_width()),
            (&mut scratch.keys, config.key_width()),
            (&mut scratch.values, config.value_width()),
            (&mut scratch.attended, config.attended_width()),
        ] {
            buffer.resize(tokens * width, 0.0);
        }
        let ids = inputs.iter().flat_map(|input| input.tokens);
        for (id, row) in ids.zip(scratch.residual.chunks_exact_mut(config.hidden)) {
            self.embedding.row(*id as usize, row);
        }
        if config.architecture.embedding_scaled {
            let scale = (config.hidden as f32).sqrt();
            scratch.residual.iter_mut().for_each(|x| *x *= scale);
        }
        let positions = || {
            let of = |t: &VerifiedSequence<'_>| t.start()..t.start() + t.new_tokens();
            tables.iter().flat_map(of)
        };
        self.rope.angles(positions(), &mut scratch.angles);
        if let Some(rope) = &self.local_rope {
            rope.angles(positions(), &mut scratch.local_angles);
        }
    }

    /// Runs `work` on tiles of consecutive tokens: few tokens as one tile whose products are
    /// spread over the threads, many as tiles that are spread themselves.
    fn each_tile(
        &self,
        scratch: &mut Scratch,
        tokens: usize,
        local: bool,
        work: impl Fn(TokenTile<'_>, Split) + Sync,
    ) {
        let threads = self.exec.threads();
        let spread = threads > 1 && tokens >= threads * 16;
        let tile = if spread {
            tokens.div_ceil(threads).next_multiple_of(8).min(TOKENS_MAX)
        } else {
            TOKENS_MAX
        };
        let tiles = layer::tiles(scratch, tokens, tile, local);
        if spread {
            self.exec.for_each(tiles, |tile| work(tile, Split::Whole));
        } else {
            tiles
                .into_iter()
                .for_each(|tile| work(tile, Split::WeightRows));
        }
    }

    fn logits(
        &self,
        scratch: &Scratch,
        tables: &[VerifiedSequence<'_>],
        inputs: &[SequenceInput<'_>],
    ) -> Result<Logits, Error> {
        let (hidden, vocab) = (self.config.hidden, self.config.vocab);
        let mut rows = Vec::new();
        let mut wanted = Vec::new();
        let mut first = 0;
        for (sequence, (table, input)) in tables.iter().zip(inputs).enumerate() {
            let new = input.tokens.len();
            let skipped = match input.want {
                Want::Nothing => new,
                Want::Last => new - 1,
                Want::All => 0,
            };
            for i in skipped..new {
                rows.push((sequence, table.start() + i));
                wanted.extend_from_slice(&scratch.residual[(first + i) * hidden..][..hidden]);
            }
            first += new;
        }
        let mut values = vec![0.0; rows.len() * vocab];
        let tiles = wanted
            .chunks(TOKENS_MAX * hidden)
            .zip(values.chunks_mut(TOKENS_MAX * vocab));
        let head = self.output.as_ref().unwrap_or(&self.embedding);
        for (residual, values) in tiles {
            layer::with_local(|local| {
                local.normed.resize(residual.len(), 0.0);
                let (norm, epsilon) = (&self.output_norm, self.config.rms_epsilon);
                self.exec
                    .kernels
                    .rms_norm(residual, norm, epsilon, &mut local.normed);
                let rows = self.rows(&local.normed, hidden, &mut local.int8);
                self.exec
                    .products(Split::WeightRows, rows, &mut [(head, values)]);
            });
        }
        if self.config.logit_cap > 0.0 {
            self.exec.kernels.cap(&mut values, self.config.logit_cap);
        }
        let logits = Logits {
            vocab,
            rows,
            values,
        };
        logits.check_finite()?;
        Ok(logits)
    }

    /// Activations in the form that this model's matrices take.
    pub(crate) fn rows<'a>(
        &self,
        values: &'a [f32],
        cols: usize,
        int8: &'a mut kernels::Int8Rows,
    ) -> Rows<'a> {
        match self.numeric {
            crate::Numeric::Exact => Rows::F32 { values, cols },
            crate::Numeric::Fast => {
                self.exec.kernels.quantize(values, cols, int8);
                Rows::Int8(int8)
            }
        }
    }
}
