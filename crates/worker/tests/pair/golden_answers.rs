//! The real model: greedy answers over shared memory are those of the engine in one process.

use crate::edge::Pair;
use crate::{reference_of, spec};
use handoff::gateway::Outcome;
use testkit::{golden, weights};
use wire::Ask;
use worker::EngineConfig;

#[test]
fn the_24_prompts_have_the_same_greedy_answers_with_and_without_a_handoff() {
    let specs: Vec<_> = golden()
        .cases
        .iter()
        .enumerate()
        .map(|(i, case)| spec(i as u64 % 4, case.prompt_ids.clone(), 24, 1, &Ask::greedy()))
        .collect();
    assert_eq!(specs.len(), 24);
    let model = weights::path();
    let expected = reference_of(&model, 512, &specs);
    let dir = tempfile::tempdir().unwrap();
    let pair = Pair::start_with(dir, model, |shape| {
        for engine in [&mut shape.prefill, &mut shape.decode] {
            let max_context = Some(512);
            *engine = EngineConfig {
                max_context,
                pool_tokens: Some(2048),
                ..engine.clone()
            };
        }
    });
    let mut edge = pair.edge(1);
    edge.ready(&crate::probe());
    let requests: Vec<_> = specs.iter().map(|spec| edge.submit(spec.clone())).collect();
    let answers = edge.answers(&requests);
    let mut ended_by_model = 0;
    for ((answer, expected), case) in answers.iter().zip(&expected).zip(&golden().cases) {
        assert_eq!(answer.outcome, Some(Outcome::Answered));
        assert_eq!(answer.tokens, *expected, "{}", case.prompt);
        assert!(answer.finishes[0].is_some());
        ended_by_model += usize::from(answer.finishes[0] == Some(handoff::Finish::Stop));
    }
    assert!(ended_by_model > 0, "some answers end with an end token");
}
