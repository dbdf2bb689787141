//! The shipped processes under attack: real prefill, decode and gateway processes on the small
//! model, faults injected by a seed, content compared with what each request gets alone.

mod deadlines;
mod integrity;
mod kills;
mod leaves;
mod no_arena;
mod one_of_two;
mod stopped;

use faults::{Dice, Plan, Question, Site};
use std::path::PathBuf;
use std::sync::Mutex;
use testkit::crowd::Choice;
use testkit::process::Running;
use testkit::{SmallSpec, small_gguf};

/// The program.
const ATTACK: &str = env!("CARGO_BIN_EXE_cofferdam-faults");
/// Context of the model, in tokens.
const CONTEXT: usize = 1024;

fn model() -> PathBuf {
    static WRITING: Mutex<()> = Mutex::new(());
    let _alone = WRITING
        .lock()
        .unwrap_or_else(std::sync::PoisonError::into_inner);
    let dir = PathBuf::from(env!("CARGO_TARGET_TMPDIR"));
    let spec = SmallSpec {
        context: CONTEXT,
        ..SmallSpec::default()
    };
    small_gguf(&dir, spec)
}

/// A server with these faults.
fn attacked(faults: &str, words: &[&str]) -> Site {
    Site::start(&Plan {
        program: ATTACK.into(),
        model: model(),
        words: words.iter().map(|word| (*word).to_owned()).collect(),
        faults: faults.parse().unwrap(),
        seed: 7,
    })
}

/// Questions, with what each gets alone: the same engine in one process.
fn questions(n: usize, stream: bool) -> Vec<(Question, Vec<Choice>)> {
    let model = format!("--model={}", model().display());
    let words = [
        "serve",
        "--",
        "--in-process",
        "--port=0",
        "--threads=1",
        model.as_str(),
    ];
    let running = Running::start(ATTACK, &words);
    let api = running.api();
    let mut dice = Dice::new(3);
    let of = |owner| {
        let mut question = Question::of(&mut dice, owner, 5, CONTEXT);
        let prompt = testkit::crowd::prompt(owner, 600, 16, 5);
        question.body["prompt"] = prompt.into();
        question.body["max_tokens"] = (16 + u64::from(stream)).into();
        question.stream = stream;
        let alone = question.alone(&api);
        (question, alone)
    };
    (0..n).map(of).collect()
}
