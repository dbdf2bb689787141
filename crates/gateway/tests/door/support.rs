//! A door and the engines behind it.

use std::time::{Duration, Instant};

use gateway::door::dialect::{Protocol, Role};
use gateway::door::{Config, Doors, Found, Upstream};
use gateway::engine::{Answer, Code, Engine as _, Event, Fault, Job, TenantId};
use handoff::{Finish, Lengths};
use scripted::{Engine, Fleet};
use wire::Sampling;

/// Longer than anything here takes; nobody waits for it but a test that fails.
pub const LONG: Duration = Duration::from_secs(30);
pub const WORDS: u32 = 6;

pub struct Front {
    pub fleet: Fleet,
    pub doors: Doors,
    pub names: Vec<String>,
}

/// An answer as a reader heard it.
#[derive(Debug, PartialEq)]
pub struct Heard {
    pub tokens: Vec<u32>,
    /// What an engine that writes its answer itself has said as a tool's arguments, and its count.
    pub said: String,
    pub sampled: Option<u32>,
    /// Whether anything was released before the end.
    pub begun: bool,
    /// Tokens of the prompt that were cached, as the engine says.
    pub cached: u32,
    pub end: Result<Finish, Fault>,
}

impl Heard {
    #[track_caller]
    pub fn code(&self) -> Code {
        self.end.as_ref().expect_err("it was answered").code
    }

    #[track_caller]
    pub fn is_right(&self, prompt: &[u32]) {
        let right = scripted::expected(prompt, WORDS as usize);
        assert_eq!(self.tokens, right, "{:?}", self.end);
        assert_eq!(self.end, Ok(Finish::Length));
    }

    /// Nothing of any engine's words has come through.
    #[track_caller]
    pub fn failed_clean(&self, code: Code) {
        assert_eq!(self.code(), code, "{:?}", self.end);
        assert_eq!((self.begun, self.tokens.len()), (false, 0), "{self:?}");
    }
}

impl Front {
    pub async fn new(engines: impl IntoIterator<Item = Engine>) -> Self {
        Self::with(engines, |_| {}).await
    }

    pub async fn with(
        engines: impl IntoIterator<Item = Engine>,
        change: impl FnOnce(&mut Config),
    ) -> Self {
        let engines: Vec<Engine> = engines.into_iter().collect();
        let names: Vec<String> = engines.iter().map(|engine| engine.name.clone()).collect();
        let fleet = Fleet::start(engines).await.expect("free ports");
        let upstream = |name: &String| Upstream {
            name: name.clone(),
            authority: fleet.address(name).to_string(),
            tls: false,
            key: None,
        };
        let upstreams = names.iter().map(upstream).collect();
        let mut config = Config::new(upstreams, vec!["scripted".into()]);
        // Short where only the end of a wait is looked at.
        config.machine.settle_ms = 100;
        config.machine.abort_ms = 300;
        change(&mut config);
        let doors = Doors::start(config).expect("it starts");
        let front = Self {
            fleet,
            doors,
            names,
        };
        front.measure_all();
        front
    }

    pub fn measure_all(&self) {
        for at in 0..self.names.len() {
            self.doors.measured(&self.names[at], Ok(self.found(at)));
        }
    }

    /// What `gate` would have measured of this engine.
    pub fn found(&self, at: usize) -> Found {
        let engine = self.fleet.engine(&self.names[at]);
        let role = match engine.role {
            scripted::Role::Prefill => Role::Prefill,
            scripted::Role::Decode => Role::Decode,
            scripted::Role::Single => Role::Alone,
        };
        let dialect = match engine.dialect {
            scripted::Dialect::Sglang => Protocol::Sglang {
                role,
                bootstrap: Some(engine.bootstrap_port),
            },
            scripted::Dialect::Vllm => Protocol::Vllm { role },
            scripted::Dialect::Llama => Protocol::Llama,
        };
        Found {
            dialect,
            life: "1".into(),
            lengths: Some(Lengths {
                max_prompt: engine.longest_prompt() as u32,
                max_model_len: engine.context as u32,
            }),
            derivation: vec!["as scripted".into()],
            pool_tokens: engine.pool,
            ranks: Vec::new(),
            group: 0,
            weight: 1,
            aborts_prefill: false,
            private: None,
            software: "scripted".into(),
        }
    }

    pub fn submit(&self, prompt: &[u32], time: Duration) -> Result<Answer, Fault> {
        self.doors.submit(job(prompt, time))
    }

    pub async fn ask(&self, prompt: &[u32]) -> Heard {
        self.ask_within(prompt, LONG).await
    }

    pub async fn ask_within(&self, prompt: &[u32], time: Duration) -> Heard {
        match self.submit(prompt, time) {
            Ok(answer) => hear(answer).await,
            Err(fault) => Heard {
                tokens: Vec::new(),
                begun: false,
                cached: 0,
                said: String::new(),
                sampled: None,
                end: Err(fault),
            },
        }
    }

    /// Nothing is under way at an engine, and the door waits for nothing.
    pub async fn comes_to_rest(&self) {
        assert!(self.fleet.quiet(LONG).await, "{:?}", self.fleet.all());
    }

    /// Waits until the door has counted so many; what it says of itself may lag behind what it does.
    #[track_caller]
    pub fn until(&self, name: &'static str, so: impl Fn(u64) -> bool) -> impl Future<Output = ()> {
        let counted = async move {
            while !so(self.count(name)) {
                tokio::task::yield_now().await;
            }
        };
        async move {
            let counted = tokio::time::timeout(LONG, counted).await;
            counted.unwrap_or_else(|_| panic!("{name}: {}", self.count(name)));
        }
    }

    pub fn count(&self, name: &str) -> u64 {
        let facts = self.doors.facts();
        let count = facts.counters.iter().find(|it| it.name == name);
        count.expect("a counter of that name").value
    }
}

pub fn job(prompt: &[u32], time: Duration) -> Job {
    Job {
        label: "test".into(),
        tenant: TenantId::anonymous(),
        cache_salt: None,
        session: None,
        model: "scripted".into(),
        prompt: prompt.to_vec(),
        max_new: WORDS,
        choices: 1,
        sampling: Sampling {
            temperature: 0.0,
            ..Sampling::default()
        },
        ignore_eos: true,
        stop_tokens: Vec::new(),
        form: None,
        min_new: 0,
        deadline: Instant::now() + time,
        operator: false,
        only: Vec::new(),
        carried: None,
        trace: None,
    }
}

/// Reads an answer to its end, in the only order that there is.
pub async fn hear(mut answer: Answer) -> Heard {
    let mut heard = Heard {
        tokens: Vec::new(),
        begun: false,
        cached: 0,
        said: String::new(),
        sampled: None,
        end: Ok(Finish::Stop),
    };
    let mut reason = None;
    let read = async {
        while let Some(event) = answer.events.recv().await {
            match event {
                Event::Committed(by) => {
                    assert!(!heard.begun, "an answer begins once");
                    heard.cached = by.cached_tokens;
                    heard.begun = true;
                }
                Event::Tokens { tokens, .. } => {
                    assert!(heard.begun, "tokens before the beginning");
                    heard.tokens.extend(tokens.iter().map(|token| token.id));
                }
                Event::Said { said, sampled, .. } => {
                    assert!(heard.begun, "words before the beginning");
                    for choice in said {
                        let call = &choice["delta"]["tool_calls"][0]["function"]["arguments"];
                        heard.said += call.as_str().unwrap_or_default();
                    }
                    heard.sampled = sampled.or(heard.sampled);
                }
                Event::Finished { reason: why, .. } => reason = Some(why),
                Event::Done => {
                    heard.end = Ok(reason.expect("a reason before the end"));
                    return;
                }
                Event::Failed(fault) => {
                    heard.end = Err(fault);
                    return;
                }
            }
        }
        panic!("no last word");
    };
    tokio::time::timeout(LONG, read).await.expect("an end");
    heard
}

/// A prompt of so many tokens, no two of which are equal for different seeds.
pub fn prompt(seed: u32, tokens: u32) -> Vec<u32> {
    (0..tokens)
        .map(|at| 257 + (seed * 31 + at * 7) % 1024)
        .collect()
}
