//! 200 requests of four tenants at once: every answer is the one that the same request gets alone.

use crate::{COFFERDAM, counter, rest, serve, serve_words, small, worker};
use serde_json::json;
use std::path::Path;
use std::sync::Barrier;
use std::time::Instant;
use testkit::crowd::{self, COMPLETIONS, Heard, Markers, Question, Shape};
use testkit::process::Running;
use testkit::{Api, weights};
use wire::trace::Header;

const CONTEXT: usize = 256;
const PAGE: usize = 16;
const SIZE: usize = 200;
/// Clients that leave, beside the crowd.
const LEAVING: usize = 24;
const TENANTS: [&str; 4] = ["red", "green", "blue", "grey"];

/// H-1, H-10, H-13 as a client can see them; and the traces of that very run, replayed.
#[test]
fn every_answer_of_a_crowd_is_the_one_it_gets_alone() {
    let model = small::model(CONTEXT);
    let dir = tempfile::tempdir().unwrap();
    let shape = Shape {
        size: SIZE + LEAVING,
        tenants: TENANTS.len(),
        max_prompt: CONTEXT - 1,
        context: CONTEXT,
        max_new: 24,
        page_size: PAGE,
        seed: soak("SEED").unwrap_or(1),
    };
    let mut questions = crowd::crowd(shape);
    let leaving = questions.split_off(SIZE);
    let begun = Instant::now();
    let alone = alone(&model, &questions, &[]);
    let alone_s = begun.elapsed().as_secs_f32();

    let (running, api) = start(&model, dir.path(), 1024);
    let begun = Instant::now();
    let heard = at_once(&api, &questions, &leaving);
    let crowd_s = begun.elapsed().as_secs_f32();
    equal_and_nothing_foreign(&model, &questions, &alone, &heard);
    let info = rest(&api.with_key(key(0)));
    let (prefill, decode) = (worker(&info, "prefill"), worker(&info, "decode"));
    assert!(
        counter(decode, "attempts_finished") >= SIZE as u64,
        "{decode}"
    );
    for worker in [prefill, decode] {
        for name in ["integrity_faults", "dropped_grants", "malformed_messages"] {
            assert_eq!(counter(worker, name), 0, "{name}: {worker}");
        }
    }
    // Alone on this very pair, now that its cache is warm.
    for (question, alone) in questions.iter().zip(&alone).step_by(10) {
        let api = api.with_key(key(question.tenant));
        assert_eq!(
            question.ask(&api).0,
            *alone,
            "with a warm cache: {question:?}"
        );
    }
    rest(&api.with_key(key(0)));
    let ended = running.stop();
    assert!(ended.status.success() && ended.left.is_empty(), "{ended:?}");
    let cancelled = counter(decode, "attempts_cancelled");
    println!(
        "seed {}: {SIZE} requests, alone {alone_s:.1} s, at once {crowd_s:.1} s; {cancelled} of \
         {LEAVING} cancelled at decode",
        shape.seed
    );
    replayed(dir.path());
}

/// Long answers over a pool that holds less than a quarter of what they want: some are put back, and say the
/// same as if nothing had happened (H-20), sampled ones and those with log-probabilities too.
#[test]
fn a_crowd_that_outgrows_the_pool_says_what_each_says_alone() {
    let model = small::model(CONTEXT);
    let dir = tempfile::tempdir().unwrap();
    let shape = Shape {
        size: 24,
        tenants: TENANTS.len(),
        max_prompt: 20,
        context: CONTEXT,
        max_new: CONTEXT - 20,
        page_size: PAGE,
        seed: soak("SEED").unwrap_or(3),
    };
    let questions = crowd::crowd(shape);
    let pages = |question: &Question| {
        let choices = question.body["n"].as_u64().unwrap_or(1) as usize;
        let answer = question.body["max_tokens"].as_u64().unwrap() as usize;
        choices * (question.prompt.len() + answer).div_ceil(PAGE)
    };
    let wanted: usize = questions.iter().map(pages).sum();
    // One whole and half of another; four begin beside each other and outgrow it together.
    let pool = 24 * PAGE;
    assert!(pool / PAGE < wanted / 4, "{wanted} pages wanted");
    let alone = alone(&model, &questions, &[]);
    let (running, api) = start(&model, dir.path(), pool);
    let heard = at_once(&api, &questions, &[]);
    equal_and_nothing_foreign(&model, &questions, &alone, &heard);
    let info = rest(&api.with_key(key(0)));
    let put_backs = counter(&info, "put_backs");
    println!(
        "{} requests want {wanted} pages, {} are there: {put_backs} put back",
        shape.size,
        pool / PAGE
    );
    assert!(put_backs > 0, "{info}");
    let ended = running.stop();
    assert!(ended.status.success() && ended.left.is_empty(), "{ended:?}");
    replayed(dir.path());
}

/// The same with the real weights: 8 requests, one of them as long as the context.
#[test]
fn a_small_crowd_with_the_real_weights() {
    let weights = weights::path();
    let context = soak("CONTEXT").unwrap_or(512) as usize;
    let shape = Shape {
        size: 8,
        tenants: 1,
        max_prompt: context - 1,
        context,
        max_new: 16,
        page_size: PAGE,
        seed: 2,
    };
    let questions = crowd::crowd(shape);
    assert!(
        questions
            .iter()
            .any(|question| question.prompt.len() == context - 1)
    );
    let words = [format!("--max-context={context}"), "--threads=2".to_owned()];
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    let begun = Instant::now();
    let alone = alone(&weights, &questions, &words);
    let alone_s = begun.elapsed().as_secs_f32();
    let (running, api) = serve(&weights, &words);
    let begun = Instant::now();
    let heard = at_once(&api, &questions, &[]);
    let crowd_s = begun.elapsed().as_secs_f32();
    equal_and_nothing_foreign(&weights, &questions, &alone, &heard);
    rest(&api);
    let ended = running.stop();
    assert!(ended.status.success() && ended.left.is_empty(), "{ended:?}");
    let tokens: usize = questions.iter().map(|question| question.prompt.len()).sum();
    println!(
        "context {context}: 8 requests, {tokens} prompt tokens, alone {alone_s:.1} s, at once \
         {crowd_s:.1} s"
    );
}

/// What `./soak` asks for beyond the usual.
fn soak(name: &str) -> Option<u64> {
    let value = std::env::var(format!("COFFERDAM_SOAK_{name}")).ok()?;
    Some(value.parse().expect("a number"))
}

fn equal_and_nothing_foreign(
    model: &Path,
    questions: &[Question],
    alone: &[Heard],
    heard: &[(Heard, u64)],
) {
    for ((question, alone), (heard, cached)) in questions.iter().zip(alone).zip(heard) {
        question.check(heard);
        assert_eq!(heard, alone, "not what it gets alone: {question:?}");
        let twin =
            |other: &&Question| other.owner == question.owner && other.tenant == question.tenant;
        let twins = questions.iter().filter(twin).count();
        assert!(
            *cached == 0 || twins > 1,
            "{cached} tokens of nobody's prompt: {question:?}"
        );
    }
    let tokenizer = tokenizer::Tokenizer::from_gguf(&gguf::Metadata::open(model).unwrap()).unwrap();
    let text_of =
        |id| String::from_utf8_lossy(tokenizer.token_bytes(id).unwrap_or_default()).into_owned();
    let markers = Markers::of(questions, PAGE, text_of);
    assert!(markers.count() >= questions.len());
    for (question, (heard, _)) in questions.iter().zip(heard) {
        assert_eq!(
            markers.foreign(question.owner, heard),
            [0; 0],
            "{question:?}"
        );
    }
}

fn key(tenant: usize) -> &'static str {
    ["k-red", "k-green", "k-blue", "k-grey"][tenant]
}

fn start(model: &Path, dir: &Path, pool_tokens: usize) -> (Running, Api) {
    let keys = dir.join("keys");
    let lines = (0..TENANTS.len()).map(|i| format!("{} {}\n", TENANTS[i], key(i)));
    std::fs::write(&keys, lines.collect::<String>()).unwrap();
    let (keys, traces) = (keys.display(), dir.join("traces"));
    let words = [
        format!("--pool-tokens={pool_tokens}"),
        format!("--api-keys={keys}"),
        format!("--trace={}", traces.display()),
        format!("--access-log={}", dir.join("access.log").display()),
    ];
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    serve(model, &words)
}

/// Each request on an engine that never sees two at once, without a handoff, unstreamed.
fn alone(model: &Path, questions: &[Question], words: &[&str]) -> Vec<Heard> {
    let words = [words, &["--in-process"]].concat();
    let running = Running::start(COFFERDAM, &serve_words(model, &words));
    let api = running.api();
    questions
        .iter()
        .map(|question| question.ask_as(&api, false).0)
        .collect()
}

/// All of them, released at one moment, and the leaving ones among them.
fn at_once(api: &Api, questions: &[Question], leaving: &[Question]) -> Vec<(Heard, u64)> {
    let together = Barrier::new(questions.len() + leaving.len());
    std::thread::scope(|scope| {
        let ask = |question: &Question| {
            together.wait();
            question.ask(&api.with_key(key(question.tenant)))
        };
        let asked: Vec<_> = questions
            .iter()
            .map(|question| scope.spawn(move || ask(question)))
            .collect();
        for (i, question) in leaving.iter().enumerate() {
            let together = &together;
            scope.spawn(move || {
                together.wait();
                leave(&api.with_key(key(question.tenant)), question, i);
            });
        }
        asked
            .into_iter()
            .map(|it| it.join().expect("it was answered"))
            .collect()
    })
}

/// A client that leaves: at once, after the first event, or in the middle.
fn leave(api: &Api, question: &Question, i: usize) {
    let mut body = question.streamed();
    body["max_tokens"] = json!(CONTEXT - question.prompt.len());
    body["ignore_eos"] = json!(true);
    let pending = api.begin(COMPLETIONS, &body).unwrap();
    if i.is_multiple_of(3) {
        return; // before the first token
    }
    let mut events = pending.events().unwrap();
    for _ in 0..(i % 3) * 2 {
        if events.next_event().unwrap().is_none() {
            return; // it had a short answer
        }
    }
}

/// *One running trace, one truth*: the machines alone give the same effects, byte for byte.
fn replayed(dir: &Path) {
    let traces = std::fs::read_dir(dir.join("traces")).unwrap();
    let mut seen = Vec::new();
    for path in traces.map(|entry| entry.unwrap().path()) {
        let judged = lab::traces::of_trace(&path)
            .unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        assert_eq!(judged.violation, None, "{}", path.display());
        assert!(judged.judged.len() >= 3, "{:?}", judged.judged);
        let replayed = judged.replayed;
        assert!(replayed.at_rest && !replayed.torn, "{}", path.display());
        assert!(
            replayed.inputs > SIZE as u64 && replayed.effect_bytes > 0,
            "{}",
            path.display()
        );
        let role = match replayed.header {
            Header::Prefill { .. } => "prefill",
            Header::Decode { .. } => "decode",
            Header::Gateway { .. } | Header::Door { .. } => "gateway",
        };
        println!(
            "{role}: {} inputs, {} bytes of effects",
            replayed.inputs, replayed.effect_bytes
        );
        seen.push(role);
    }
    seen.sort_unstable();
    assert_eq!(seen, ["decode", "gateway", "prefill"]);
}
