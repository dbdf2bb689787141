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

    /// The trace could not be written and has ended: whether the driver goes on without one. It does,
    /// and says so, unless it says otherwise here.
    ///
    /// # Errors
    /// It does not.
    fn trace_ended(&mut self, error: TraceError) -> Result<(), Self::Error> {
        tracing::error!(%error, "the trace ends here: it cannot be written");
        Ok(())
    }

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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::trace::write::Writer;
    use pages::Epoch;

    /// Wants twice as many things done as the number that it is told says, and notes what it is told.
    #[derive(Default)]
    struct Counting(Vec<u32>);

    impl Machine for Counting {
        type Input = u32;
        type Effect = u32;

        fn apply(&mut self, input: u32) -> Vec<u32> {
            self.0.push(input);
            (0..2 * (input % 10)).map(|n| 10 * input + n).collect()
        }

        fn epoch(&self) -> Epoch {
            Epoch::new(1)
        }

        fn at_rest(&mut self) -> bool {
            true
        }
    }

    /// Notes all that it does; some effects lead to an input, one ends it.
    struct Noting {
        machine: Recorded<Counting>,
        done: Vec<String>,
        goes_on: bool,
    }

    impl Noting {
        fn new(trace: Option<Writer>, goes_on: bool) -> Self {
            Self {
                machine: Recorded::new(Counting::default(), trace),
                done: Vec::new(),
                goes_on,
            }
        }
    }

    impl Driver for Noting {
        type Machine = Counting;
        type Error = String;

        fn machine(&mut self) -> &mut Recorded<Counting> {
            &mut self.machine
        }

        fn hears(&mut self, input: &u32) {
            self.done.push(format!("hears {input}"));
        }

        fn carry_out(&mut self, effect: u32, led_to: &mut VecDeque<u32>) -> Result<(), String> {
            self.done.push(format!("does {effect}"));
            match effect {
                20 | 22 => led_to.push_back(effect),
                31 => return Err("no more".to_owned()),
                210 => led_to.push_back(0),
                _ => {}
            }
            if effect == 20 {
                led_to.push_back(21);
            }
            Ok(())
        }

        fn trace_ended(&mut self, error: TraceError) -> Result<(), String> {
            self.done.push("trace ended".to_owned());
            match self.goes_on {
                true => Ok(()),
                false => Err(error.to_string()),
            }
        }

        fn settled(&mut self) {
            self.done.push("settled".to_owned());
        }
    }

    #[test]
    fn effects_are_done_in_order_and_then_the_machine_is_told_what_came_of_them_in_order() {
        let mut driver = Noting::new(None, true);
        driver.tell(2_u32).unwrap();
        // What input 21 led to comes behind 22, which was waiting before it.
        let expected = "hears 2, does 20, does 21, does 22, does 23, hears 20, hears 21, does 210, \
                        does 211, hears 22, does 220, does 221, does 222, does 223, hears 0, settled";
        assert_eq!(driver.done.join(", "), expected);
        assert_eq!(driver.machine.0, [2, 20, 21, 22, 0]);
        driver.flush_trace().unwrap();
    }

    #[test]
    fn after_an_effect_that_ends_the_driver_nothing_is_done_or_told() {
        let mut driver = Noting::new(None, true);
        assert_eq!(driver.tell(3_u32), Err("no more".to_owned()));
        assert_eq!(driver.done.join(", "), "hears 3, does 30, does 31");
    }

    #[test]
    fn a_trace_that_cannot_be_written_is_said_once_and_effects_count_all_the_same() {
        let mut driver = Noting::new(Some(Writer::that_fails(0)), true);
        driver.tell(1_u32).unwrap();
        driver.tell(1_u32).unwrap();
        driver.flush_trace().unwrap();
        let expected = "hears 1, trace ended, does 10, does 11, settled, \
                        hears 1, does 10, does 11, settled";
        assert_eq!(driver.done.join(", "), expected);
    }

    #[test]
    fn a_driver_that_does_not_go_on_without_its_trace_ends_before_the_effects() {
        let mut driver = Noting::new(Some(Writer::that_fails(0)), false);
        let said = driver.tell(1_u32).unwrap_err();
        assert!(said.contains("/dev/full"), "{said}");
        assert_eq!(driver.done.join(", "), "hears 1, trace ended");
        assert_eq!(driver.machine.0, [1]);
    }

    #[test]
    fn what_is_buffered_is_written_at_a_flush_or_the_trace_ends_there() {
        let mut driver = Noting::new(Some(Writer::that_fails(1 << 16)), false);
        driver.tell(1_u32).unwrap();
        let said = driver.flush_trace().unwrap_err();
        assert!(said.contains("/dev/full"), "{said}");
        driver.flush_trace().unwrap(); // there is none any more
        let expected = "hears 1, does 10, does 11, settled, trace ended";
        assert_eq!(driver.done.join(", "), expected);
    }
}
