//! How every driver runs its machine: what it is told is written down, what it wants done is carried
//! out in order, and what came of that it is told next.

use crate::trace::{TraceError, Writer};
use handoff::Machine;
use serde::Serialize;
use std::collections::VecDeque;
use std::ops::{Deref, DerefMut};

/// A machine, and the trace of what it is told if one is kept. It can be asked anything; told
/// something it is by [`Driver::tell`].
#[derive(Debug)]
pub struct Recorded<M> {
    machine: M,
    trace: Option<Writer>,
}

impl<M> Recorded<M> {
    /// A fresh machine, and the trace that begins with what it was made from.
    pub fn new(machine: M, trace: Option<Writer>) -> Self {
        Self { machine, trace }
    }

    /// Hands what is written to the system. After a write that failed there is no trace any more: one
    /// with a hole proves nothing.
    ///
    /// # Errors
    /// Why it ends.
    pub fn flush(&mut self) -> Result<(), TraceError> {
        self.write(Writer::flush)
    }

    fn write(
        &mut self,
        what: impl FnOnce(&mut Writer) -> Result<(), TraceError>,
    ) -> Result<(), TraceError> {
        let written = self.trace.as_mut().map_or(Ok(()), what);
        if written.is_err() {
            self.trace = None;
        }
        written
    }
}

impl<M: Machine<Input: Serialize, Effect: Serialize>> Recorded<M> {
    /// The effects count even if they could not be written down.
    fn apply(&mut self, input: M::Input) -> (Vec<M::Effect>, Result<(), TraceError>) {
        if let Some(trace) = &mut self.trace {
            trace.input(&input);
        }
        let effects = self.machine.apply(input);
        let written = self.write(|trace| trace.effects(&effects));
        (effects, written)
    }
}

impl<M> Deref for Recorded<M> {
    type Target = M;

    fn deref(&self) -> &M {
        &self.machine
    }
}

impl<M> DerefMut for Recorded<M> {
    fn deref_mut(&mut self) -> &mut M {
        &mut self.machine
    }
}

/// Who runs a machine: a worker's engine thread, a gateway's task.
pub trait Driver {
    /// What it runs.
    type Machine: Machine<Input: Serialize, Effect: Serialize>;
    /// What ends it.
    type Error;

    /// Its machine.
    fn machine(&mut self) -> &mut Recorded<Self::Machine>;

    /// What the machine is about to be told.
    fn hears(&mut self, _input: &InputOf<Self>) {}

    /// Does what the machine wants done; what that led to at once goes behind what is waiting.
    ///
    /// # Errors
    /// What ends the driver; the effects behind it are not carried out.
    fn carry_out(
        &mut self,
        effect: EffectOf<Self>,
        led_to: &mut VecDeque<InputOf<Self>>,
    ) -> Result<(), Self::Error>;

    /// The trace could not be written and has ended: whether the driver goes on without one.
    ///
    /// # Errors
    /// It does not.
    fn trace_ended(&mut self, error: TraceError) -> Result<(), Self::Error>;

    /// Everything that the last input led to has been told.
    fn settled(&mut self) {}

    /// Tells the machine, carries out its effects in order, and then tells it what came of them.
    ///
    /// # Errors
    /// What ends the driver.
    fn tell(&mut self, input: impl Into<InputOf<Self>>) -> Result<(), Self::Error> {
        let mut waiting = VecDeque::from([input.into()]);
        while let Some(input) = waiting.pop_front() {
            self.hears(&input);
            let (effects, written) = self.machine().apply(input);
            if let Err(error) = written {
                self.trace_ended(error)?;
            }
            for effect in effects {
                self.carry_out(effect, &mut waiting)?;
            }
        }
        self.settled();
        Ok(())
    }

    /// Hands the trace to the system: before a wait, and at the end.
    ///
    /// # Errors
    /// As [`Driver::trace_ended`].
    fn flush_trace(&mut self) -> Result<(), Self::Error> {
        match self.machine().flush() {
            Ok(()) => Ok(()),
            Err(error) => self.trace_ended(error),
        }
    }
}

/// What a driver's machine is told.
pub type InputOf<D> = <<D as Driver>::Machine as Machine>::Input;
/// What it wants done.
pub type EffectOf<D> = <<D as Driver>::Machine as Machine>::Effect;
