//! The worlds in front of and behind the door.

use super::engines::Kind::{self, *};
use handoff::door::{Ask, Engine, EngineId, Handing, Prompt, Serves};
use handoff::{Lengths, RequestId};
use serde::Serialize;

/// What may go wrong, and how often.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Faults {
    /// A client leaves.
    pub leaves: u8,
    /// A timer fires early.
    pub early: u8,
    /// A leg goes wrong, in one of the world's ways.
    pub wrong: u8,
    /// An end is said again.
    pub again: u8,
    /// An engine restarts.
    pub restarts: u8,
    /// The lengths that an engine takes are not known any more.
    pub measured: u8,
}

/// A world's bounds.
#[derive(Clone, Debug)]
pub struct Setup {
    /// The engines; one is called by its place.
    pub engines: Vec<Engine>,
    /// What the clients ask, in order.
    pub asks: Vec<Ask>,
    /// How often each is tried again.
    pub retries: u32,
    /// Whether every part of an answer says what was counted, or only its end.
    pub counts_in_parts: bool,
    /// The ways in which legs go wrong.
    pub wrong: &'static [Kind],
    /// Whether a stage has a time of its own.
    pub stages: bool,
    /// How often anything does.
    pub faults: Faults,
}

impl Setup {
    pub(super) fn ask_of(&self, request: RequestId) -> &Ask {
        // Requests are numbered from one, and clients ask in order.
        &self.asks[(request.n - 1) as usize]
    }

    pub(super) fn tokens_of(&self, request: RequestId) -> Option<u32> {
        match self.ask_of(request).prompt {
            Prompt::Counted(tokens) => Some(tokens),
            Prompt::AtMost(most) => Some(most - 1),
        }
    }
}

/// A world by name.
pub struct Scenario {
    /// `door-…`
    pub name: &'static str,
    /// What is in it.
    pub about: &'static str,
    /// It; smaller if it is for the smallest bound.
    pub setup: fn(small: bool) -> Setup,
    /// What it must show.
    pub sees: &'static [&'static str],
}

const LONG: Lengths = Lengths {
    max_prompt: 30,
    max_model_len: 40,
};
const SHORT: Lengths = Lengths {
    max_prompt: 10,
    max_model_len: 40,
};

fn engine(serves: Serves, lengths: Lengths) -> Engine {
    Engine {
        serves,
        lengths: Some(lengths),
        most: 4,
        weight: 1,
        aborts_prefill: false,
        private: false,
    }
}

fn prefill(handing: Handing) -> Engine {
    engine(Serves::Prefill(0, handing), LONG)
}

fn decode(handing: Handing) -> Engine {
    engine(Serves::Decode(0, handing), LONG)
}

fn ask(tokens: u32) -> Ask {
    Ask {
        prompt: Prompt::Counted(tokens),
        max_new: Some(4),
        near: Vec::new(),
        operator: false,
        only: Vec::new(),
    }
}

fn pair(handing: Handing, wrong: &'static [Kind], faults: Faults) -> Setup {
    Setup {
        engines: vec![prefill(handing), decode(handing)],
        asks: vec![ask(20)],
        retries: 1,
        counts_in_parts: true,
        wrong,
        stages: false,
        faults,
    }
}

/// Every way in which a leg goes wrong.
const ANY: &[Kind] = &[
    Placeholder,
    Refuses,
    IsBusy,
    Fails,
    Breaks,
    Hangs,
    Foreign,
    Uncounted,
    Miscounts,
    NoReference,
    Unreached,
];

const TWO: Faults = Faults {
    leaves: 1,
    early: 1,
    wrong: 2,
    again: 1,
    restarts: 0,
    measured: 0,
};
const ONE: Faults = Faults { wrong: 1, ..TWO };

fn faults(small: bool) -> Faults {
    match small {
        true => ONE,
        false => TWO,
    }
}

use Handing::{Pull, Together};

/// All of them.
pub const ALL: &[Scenario] = &[
    Scenario {
        name: "door-together",
        about: "a pair that is asked at once: anything goes wrong, the client leaves",
        setup: |small| pair(Together, ANY, faults(small)),
        sees: &[
            "answered",
            "released",
            "placeholder computed",
            "late write of a prefill",
            "client left",
            "aborted by the engine's own call",
            "leg given up",
            "failed at prefill",
            "failed at decode",
        ],
    },
    Scenario {
        name: "door-pull",
        about: "prefill first, its reference to decode: anything goes wrong, the client leaves",
        setup: |small| pair(Pull, ANY, faults(small)),
        sees: &[
            "answered",
            "released",
            "no reference",
            "client left",
            "failed at decode",
        ],
    },
    Scenario {
        name: "door-alone",
        about: "a server that answers by itself: anything goes wrong, the client leaves",
        setup: |small| Setup {
            engines: vec![engine(Serves::Alone, LONG)],
            ..pair(Together, ANY, faults(small))
        },
        sees: &[
            "answered",
            "counted otherwise",
            "another's answer",
            "client left",
        ],
    },
    Scenario {
        name: "door-router",
        about: "somebody else's router, and engines behind it that are not seen: anything goes wrong, the \
                client leaves",
        setup: |small| Setup {
            engines: vec![engine(Serves::Router, LONG)],
            ..pair(Together, ANY, faults(small))
        },
        sees: &[
            "answered",
            "client left",
            "aborted by the engine's own call",
            "leg given up",
        ],
    },
    Scenario {
        name: "door-two-prefills",
        about: "another prefill, the same decode: tried again when the old legs have ended",
        setup: |small| Setup {
            engines: vec![prefill(Together), decode(Together), prefill(Together)],
            ..pair(
                Together,
                &[Fails, Breaks, IsBusy, Hangs],
                Faults {
                    leaves: 0,
                    ..faults(small)
                },
            )
        },
        sees: &[
            "answered",
            "tried again",
            "engine hung",
            "late write of a prefill",
        ],
    },
    Scenario {
        name: "door-two-pairs",
        about: "two requests over two pairs that pull: tried again elsewhere",
        setup: |small| Setup {
            engines: vec![prefill(Pull), decode(Pull), prefill(Pull), decode(Pull)],
            asks: vec![ask(20); if small { 1 } else { 2 }],
            ..pair(
                Pull,
                &[Fails, NoReference, Breaks],
                Faults {
                    wrong: 1,
                    again: 0,
                    ..TWO
                },
            )
        },
        sees: &["answered", "tried again", "no reference"],
    },
    Scenario {
        name: "door-limits",
        about: "pairs that take different lengths, one that is not known, a prompt too long for all",
        setup: |small| Setup {
            engines: vec![
                engine(Serves::Prefill(0, Together), SHORT),
                decode(Together),
                engine(Serves::Prefill(0, Together), LONG),
                Engine {
                    lengths: None,
                    ..engine(Serves::Alone, LONG)
                },
            ],
            asks: match small {
                true => vec![ask(20), ask(35)],
                false => vec![ask(20), ask(35), ask(5)],
            },
            ..pair(
                Together,
                &[Fails],
                Faults {
                    wrong: 1,
                    measured: 1,
                    ..Faults::default()
                },
            )
        },
        sees: &["answered", "too long", "turned away"],
    },
    Scenario {
        name: "door-text",
        about: "a prompt whose length is known as a bound only: both must count the same",
        setup: |small| Setup {
            asks: vec![Ask {
                prompt: Prompt::AtMost(20),
                ..ask(20)
            }],
            counts_in_parts: false,
            ..pair(
                Together,
                &[Placeholder, Miscounts, Uncounted, Fails],
                faults(small),
            )
        },
        sees: &["answered", "placeholder computed", "counted otherwise"],
    },
    Scenario {
        name: "door-early",
        about: "a prefill that declares that it may be aborted at any time",
        setup: |small| {
            let mut setup = pair(Together, &[Fails, Breaks, Hangs, Refuses], faults(small));
            setup.engines[0].aborts_prefill = true;
            setup
        },
        sees: &[
            "answered",
            "client left",
            "aborted by the engine's own call",
        ],
    },
    Scenario {
        name: "door-restart",
        about: "an engine's process ends under two requests, and another takes its place",
        setup: |small| Setup {
            asks: vec![ask(20); if small { 1 } else { 2 }],
            ..pair(
                Together,
                &[Fails],
                Faults {
                    wrong: 1,
                    restarts: 1,
                    again: 1,
                    ..Faults::default()
                },
            )
        },
        sees: &["answered", "engine restarted", "said again"],
    },
    Scenario {
        name: "door-private",
        about: "a pair for operators only beside one for all: an operator asks, and somebody else",
        setup: |small| {
            let operator = Ask {
                operator: true,
                only: vec![EngineId(0), EngineId(1)],
                ..ask(20)
            };
            let mut setup = Setup {
                engines: vec![prefill(Pull), decode(Pull), prefill(Pull), decode(Pull)],
                asks: vec![ask(20), operator],
                retries: if small { 0 } else { 1 },
                ..pair(
                    Pull,
                    &[Fails],
                    Faults {
                        wrong: 1,
                        ..Faults::default()
                    },
                )
            };
            for private in &mut setup.engines[..2] {
                private.private = true;
            }
            setup
        },
        sees: &["answered", "an operator asked", "failed at decode"],
    },
    Scenario {
        name: "door-stages",
        about: "engines that hang, or cannot be reached, while a stage has a time of its own",
        setup: |small| Setup {
            engines: vec![
                prefill(Together),
                decode(Together),
                prefill(Together),
                decode(Together),
            ],
            stages: true,
            ..pair(Together, &[Hangs, Unreached, Breaks], faults(small))
        },
        sees: &[
            "answered",
            "tried again",
            "engine hung",
            "engine not reached",
            "leg given up",
        ],
    },
];
