//! The real weights: answers over shared memory and over TCP are those of the engine in one
//! process.

use crate::{counter, rest, serve, worker};
use serde_json::{Value, json};
use testkit::{Api, Case, Kind, golden, weights};

const CHATS: &str = "/v1/chat/completions";
const COMPLETIONS: &str = "/v1/completions";

/// Text and log-probabilities of every token: what must be equal.
#[derive(Clone, Debug, PartialEq)]
struct Said {
    text: String,
    logprobs: Value,
    finish: Value,
    prompt_tokens: Value,
    completion_tokens: Value,
}

fn ask(api: &Api, case: &Case) -> Said {
    let mut body = json!({"max_tokens": 32, "temperature": 0});
    let path = match case.kind {
        Kind::Completion => {
            body["prompt"] = json!(case.prompt);
            body["logprobs"] = json!(2);
            COMPLETIONS
        }
        Kind::Chat => {
            body["messages"] = json!([{"role": "user", "content": case.prompt}]);
            body["logprobs"] = json!(true);
            body["top_logprobs"] = json!(2);
            CHATS
        }
    };
    let answer = api.post(path, &body).good();
    let choice = &answer["choices"][0];
    let text = match case.kind {
        Kind::Completion => &choice["text"],
        Kind::Chat => &choice["message"]["content"],
    };
    Said {
        text: text.as_str().expect("text").to_owned(),
        logprobs: choice["logprobs"].clone(),
        finish: choice["finish_reason"].clone(),
        prompt_tokens: answer["usage"]["prompt_tokens"].clone(),
        completion_tokens: answer["usage"]["completion_tokens"].clone(),
    }
}

/// All of them at once, so that they share steps.
fn ask_all(api: &Api, cases: &[Case]) -> Vec<Said> {
    std::thread::scope(|scope| {
        let asked: Vec<_> = cases
            .iter()
            .map(|case| scope.spawn(move || ask(api, case)))
            .collect();
        asked
            .into_iter()
            .map(|it| it.join().expect("it was answered"))
            .collect()
    })
}

#[test]
fn the_24_answers_are_the_same_with_and_without_a_handoff() {
    let weights = weights::path();
    let cases = &golden().cases;
    let words = ["--max-context=512", "--pool-tokens=2048", "--threads=2"];
    let unified = {
        let words = [&words[..], &["--in-process"]].concat();
        let (_running, api) = serve(&weights, &words);
        ask_all(&api, cases)
    };
    let over_tcp = {
        let words = [&words[..], &["--fabric=tcp"]].concat();
        let (running, api) = serve(&weights, &words);
        let over_tcp = ask_all(&api, cases);
        let info = rest(&api);
        let (prefill, decode) = (worker(&info, "prefill"), worker(&info, "decode"));
        assert!(counter(prefill, "batches") >= cases.len() as u64, "{info}");
        assert_eq!(counter(decode, "integrity_faults"), 0, "{info}");
        let ended = running.stop();
        let at = "landing arenas are reached over TCP";
        assert!(
            ended.lines.iter().any(|line| line.contains(at)),
            "{ended:?}"
        );
        assert!(ended.status.success() && ended.left.is_empty(), "{ended:?}");
        over_tcp
    };
    let (running, api) = serve(&weights, &words);
    let apart = ask_all(&api, cases);
    for (case, (apart, over_tcp)) in cases.iter().zip(apart.iter().zip(&over_tcp)) {
        assert_eq!(over_tcp, apart, "{}", case.prompt);
    }
    for ((case, unified), apart) in cases.iter().zip(&unified).zip(&apart) {
        assert_eq!(apart, unified, "{}", case.prompt);
        assert_eq!(
            apart.prompt_tokens,
            case.prompt_ids.len(),
            "{}",
            case.prompt
        );
        let logs = match case.kind {
            Kind::Completion => &apart.logprobs["token_logprobs"],
            Kind::Chat => &apart.logprobs["content"],
        };
        // A token that ends an answer is sampled and counted, and not shown.
        let ends = usize::from(apart.finish == "stop");
        let shown = logs.as_array().expect("one for each token").len();
        assert_eq!(apart.completion_tokens, shown + ends, "{apart:?}");
        assert!(ends == 1 || shown == 32, "{apart:?}");
    }
    rest(&api);
    let ended = running.stop();
    assert!(ended.status.success() && ended.left.is_empty(), "{ended:?}");
    // How far two numeric paths agree is measured on forced tokens, elsewhere; this is to be seen.
    let alike = |(case, said): &(&Case, &Said)| {
        case.greedy_text.trim_end_matches("<|im_end|>") == said.text
    };
    let alike = cases.iter().zip(&apart).filter(alike).count();
    println!(
        "{alike} of {} answers are the float32 reference's, word for word",
        cases.len()
    );
}
