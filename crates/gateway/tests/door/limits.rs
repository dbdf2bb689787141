//! The edge: what is too long for all is an error before traffic, and what is not known takes nothing.

use super::support::{Front, WORDS, prompt};
use gateway::engine::{Code, Engine as _, Readiness};
use scripted::{Engine, Role};

#[tokio::test]
async fn a_prompt_goes_to_a_pair_that_holds_it() {
    let [prefill, decode] = Engine::sglang_pair();
    let small = prefill.clone().named("small").sized(4096, 100);
    let front = Front::new([small, prefill.named("large").sized(4096, 400), decode]).await;
    for tokens in [50, 200, 380] {
        let prompt = prompt(tokens, tokens);
        front.ask(&prompt).await.is_right(&prompt);
    }
    front.comes_to_rest().await;
    let long = front.fleet.arrivals("small");
    assert!(long.iter().all(|arrival| arrival.prompt_tokens < 100));
    let before = front.fleet.all().arrived;
    for tokens in [394, 500] {
        let heard = front.ask(&prompt(1, tokens)).await;
        heard.failed_clean(Code::ContextLengthExceeded);
        let message = heard.end.unwrap_err().message;
        assert!(message.contains("at most 393"), "{message}");
    }
    assert_eq!(front.fleet.all().arrived, before, "no engine was asked");
    let facts = front.doors.facts();
    assert_eq!(
        facts.limit().map(|limit| limit.max_prompt_tokens),
        Some(393)
    );
}

#[tokio::test]
async fn prompt_and_answer_together_fit_or_are_refused() {
    let front = Front::new(Engine::sglang_pair().map(|engine| engine.sized(40, 4096))).await;
    let heard = front.ask(&prompt(1, 33)).await;
    heard.is_right(&prompt(1, 33));
    let over = 40 - WORDS + 1;
    // The longest prompt is 33 here, so an answer that is too long is asked for by hand.
    let mut job = super::support::job(&prompt(1, 33), super::support::LONG);
    job.max_new = over;
    let answer = front.doors.submit(job).expect("judged later");
    let heard = super::support::hear(answer).await;
    heard.failed_clean(Code::MaxTokensOverContext);
}

#[tokio::test]
async fn nothing_goes_to_an_engine_whose_limits_are_not_known() {
    let front = Front::new(Engine::sglang_pair()).await;
    let prompt = prompt(1, 20);
    front.ask(&prompt).await.is_right(&prompt);
    let mut unknown = front.found(1);
    unknown.lengths = None;
    unknown.derivation = vec!["two sources contradict each other".into()];
    front.doors.measured("decode", Ok(unknown));
    front.ask(&prompt).await.failed_clean(Code::Unavailable);
    let Readiness::NotReady(why) = front.doors.facts().readiness.clone() else {
        panic!("ready without limits");
    };
    assert!(why.contains("contradict"), "{why}");
    front.measure_all();
    front.ask(&prompt).await.is_right(&prompt);
    front
        .doors
        .measured("prefill", Err("connection refused".into()));
    front.ask(&prompt).await.failed_clean(Code::Unavailable);
    assert_eq!(
        front.fleet.all().arrived,
        4,
        "two legs for each of two answers"
    );
}

#[tokio::test]
async fn a_pair_of_different_kinds_is_none() {
    let [prefill, _] = Engine::sglang_pair();
    let decode = Engine::new(scripted::Dialect::Vllm, Role::Decode);
    let front = Front::new([prefill, decode]).await;
    front
        .ask(&prompt(1, 20))
        .await
        .failed_clean(Code::Unavailable);
}

#[tokio::test]
async fn draining_takes_nothing_new() {
    let front = Front::new([Engine::sglang()]).await;
    front.doors.drain();
    front.ask(&prompt(1, 20)).await.failed_clean(Code::Draining);
    assert_eq!(front.fleet.all().arrived, 0);
}

#[tokio::test]
async fn what_these_engines_cannot_do_is_said_by_name() {
    let front = Front::new([Engine::llama()]).await;
    let mut asked = super::support::job(&prompt(1, 20), super::support::LONG);
    asked.sampling.logprobs = Some(0);
    let Err(fault) = front.doors.submit(asked) else {
        panic!("taken");
    };
    assert_eq!(fault.code, Code::UnsupportedParameter);
    assert_eq!(fault.param.as_deref(), Some("logprobs"));
}
