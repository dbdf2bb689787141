//! The replay: machines alone, no sockets, no threads, no clock, no model.

use crate::trace::read::Records;
use crate::trace::{DecodeInput, Header, TraceError};
use handoff::decode::{self, Decode};
use handoff::door::{self, Door};
use handoff::gateway::{self, Gateway};
use handoff::prefill::{self, Prefill};
use handoff::{Decisions, Machine};
use pages::{Pool, Sound};
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
    struct Nobody;
    impl ReplayObserver<Sound> for Nobody {}
    replay_watched(path, Sound, &mut Nobody)
}

/// Somebody who looks on while a trace is replayed: at every input, its effects, and the machine
/// after them, which can be asked who holds what.
pub trait ReplayObserver<J: Decisions> {
    /// A step of a prefill worker's machine.
    fn prefill(
        &mut self,
        _input: &prefill::Event,
        _effects: &[prefill::Effect],
        _after: &mut Prefill<J>,
    ) {
    }

    /// A step of a decode worker's machine.
    fn decode(
        &mut self,
        _input: &DecodeInput,
        _effects: &[decode::Effect],
        _after: &mut Decode<J>,
    ) {
    }

    /// A step of a gateway's machine.
    fn gateway(
        &mut self,
        _input: &gateway::Event,
        _effects: &[gateway::Effect],
        _after: &mut Gateway<J>,
    ) {
    }
}

/// [`replay`] under the decisions that the trace was taken under, with somebody who looks on.
///
/// # Errors
/// As [`replay`].
pub fn replay_watched<J: Decisions>(
    path: &Path,
    decisions: J,
    watch: &mut impl ReplayObserver<J>,
) -> Result<Replayed, TraceError> {
    let (mut records, header) = Records::open(path)?;
    let (effect_bytes, at_rest) = match header.clone() {
        Header::Prefill {
            config,
            hello,
            pool,
        } => {
            let (pool, _mint) = Pool::with_decisions(pool.into(), decisions);
            let machine = Prefill::with_decisions(config, hello, pool, decisions);
            let after = |event: &prefill::Event, effects: &[_], machine: &mut _| {
                watch.prefill(event, effects, machine);
            };
            run(&mut records, machine, |event| event, after)?
        }
        Header::Decode {
            config,
            hello,
            pool,
        } => {
            let (pool, mint) = Pool::with_decisions(pool.into(), decisions);
            let fabric = mint.lend();
            let machine = Decode::with_decisions(config, hello, pool, mint, decisions);
            let input = |read: DecodeInput| match read {
                DecodeInput::Event(event) => decode::Input::Event(event),
                DecodeInput::Fenced(arena, writer) => {
                    decode::Input::Fenced(arena, fabric.fenced(writer))
                }
            };
            let after = |input: &DecodeInput, effects: &[_], machine: &mut _| {
                watch.decode(input, effects, machine);
            };
            run(&mut records, machine, input, after)?
        }
        Header::Gateway { config, hello } => {
            let machine = Gateway::with_decisions(config, hello, decisions);
            let after = |event: &gateway::Event, effects: &[_], machine: &mut _| {
                watch.gateway(event, effects, machine);
            };
            run(&mut records, machine, |event| event, after)?
        }
        Header::Door { config, epoch } => {
            let machine = Door::new(config, epoch);
            run(
                &mut records,
                machine,
                |event: door::Event| event,
                |_, _, _| (),
            )?
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

/// Bytes of effects compared, and whether the machine is at rest at the end.
fn run<Read, M>(
    records: &mut Records,
    mut machine: M,
    mut input: impl FnMut(Read) -> M::Input,
    mut after: impl FnMut(&Read, &[M::Effect], &mut M),
) -> Result<(u64, bool), TraceError>
where
    Read: DeserializeOwned + Clone + Debug,
    M: Machine<Effect: Serialize + Debug>,
{
    let mut compared = 0;
    loop {
        let index = records.index;
        let Some((read, recorded)) = records.next::<Read>()? else {
            return Ok((compared, machine.at_rest()));
        };
        let effects = machine.apply(input(read.clone()));
        after(&read, &effects, &mut machine);
        let replayed = postcard::to_allocvec(&effects).map_err(|error| TraceError::Damaged {
            index,
            problem: error.to_string(),
        })?;
        if replayed != recorded {
            let (input, replayed) = (format!("{read:?}"), format!("{effects:?}"));
            return Err(TraceError::Differs {
                index,
                input,
                replayed,
            });
        }
        compared += replayed.len() as u64;
    }
}
