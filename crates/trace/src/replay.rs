//! The replay: machines alone, no sockets, no threads, no clock, no model.

use crate::read::Records;
use crate::{DecodeInput, Header, TraceError};
use handoff::decode::Decode;
use handoff::gateway::{self, Gateway};
use handoff::prefill::{self, Prefill};
use pages::Pool;
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::fmt::Debug;
use std::path::Path;

/// A trace that gave the same effects again.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Replayed {
    /// What it was a trace of.
    pub header: Header,
    /// Inputs replayed.
    pub inputs: u64,
    /// Bytes of effects compared.
    pub effect_bytes: u64,
    /// The last record was cut: its writer was killed.
    pub torn: bool,
    /// Whether the machine was at rest at the end, with every page free or cached (workers).
    pub at_rest: bool,
}

/// Feeds the inputs of the trace to a fresh machine and compares its effects byte for byte.
///
/// # Errors
/// [`TraceError::Differs`] at the first difference, with the input and both sides' effects.
pub fn replay(path: &Path) -> Result<Replayed, TraceError> {
    let (mut records, header) = Records::open(path)?;
    let (effect_bytes, at_rest) = match header.clone() {
        Header::Prefill {
            config,
            hello,
            pool,
        } => {
            let (pool, _mint) = Pool::new(pool.into());
            let mut machine = Prefill::new(config, hello, pool);
            let feed = |event: prefill::Event| machine.handle(event);
            (run(&mut records, feed)?, machine.at_rest())
        }
        Header::Decode {
            config,
            hello,
            pool,
        } => {
            let (pool, mint) = Pool::new(pool.into());
            let fabric = mint.lend();
            let mut machine = Decode::new(config, hello, pool, mint);
            let feed = |input: DecodeInput| match input {
                DecodeInput::Event(event) => machine.handle(event),
                DecodeInput::Fenced(arena, writer) => {
                    machine.handle_fenced(arena, fabric.fenced(writer))
                }
            };
            (run(&mut records, feed)?, machine.at_rest())
        }
        Header::Gateway { config, hello } => {
            let mut machine = Gateway::new(config, hello);
            let feed = |event: gateway::Event| machine.handle(event);
            (run(&mut records, feed)?, true)
        }
    };
    let (inputs, torn) = (records.index - 1, records.torn);
    Ok(Replayed {
        header,
        inputs,
        effect_bytes,
        torn,
        at_rest,
    })
}

fn run<Input, Effect>(
    records: &mut Records,
    mut feed: impl FnMut(Input) -> Vec<Effect>,
) -> Result<u64, TraceError>
where
    Input: DeserializeOwned + Clone + Debug,
    Effect: Serialize + Debug,
{
    let mut compared = 0;
    loop {
        let index = records.index;
        let Some((input, recorded)) = records.next::<Input>()? else {
            return Ok(compared);
        };
        let effects = feed(input.clone());
        let replayed = postcard::to_allocvec(&effects).map_err(|error| TraceError::Damaged {
            index,
            problem: error.to_string(),
        })?;
        if replayed != recorded {
            let (input, replayed) = (format!("{input:?}"), format!("{effects:?}"));
            return Err(TraceError::Differs {
                index,
                input,
                replayed,
            });
        }
        compared += replayed.len() as u64;
    }
}
