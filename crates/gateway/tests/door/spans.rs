//! Spans of legs at engines that are not ours: what they are told, and what a collector hears.

use super::support::{Front, LONG, hear, job, prompt};
use gateway::engine::Engine as _;
use gateway::spans::Collector as Exporter;
use scripted::{Act, Engine, Rule};
use testkit::collector::{Collector, attribute};

const CLIENT: &str = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
const TRACE: &str = "0af7651916cd43dd8448eb211c80319c";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_leg_is_a_span_and_the_engine_is_told_which() {
    for (engines, before) in [
        (Vec::from(Engine::sglang_pair()), "handoff"),
        (Vec::from(Engine::vllm_pair()), "handoff"),
        (vec![Engine::vllm()], "prefill"),
    ] {
        let collector = Collector::start();
        let (spans, exporter) = Exporter::start(&collector.url).unwrap();
        let front = Front::new(engines).await;
        let mut asked = job(&prompt(1, 20), LONG);
        asked.trace = spans.request(Some(CLIENT));
        let request = asked.trace.as_ref().unwrap().traceparent();
        let request = request.split('-').nth(2).unwrap().to_owned();
        let heard = hear(front.doors.submit(asked).unwrap()).await;
        heard.is_right(&prompt(1, 20));
        front.comes_to_rest().await;
        let names = front.names.iter();
        let legs = names.flat_map(|name| {
            front
                .fleet
                .arrivals(name)
                .into_iter()
                .map(move |leg| (name, leg))
        });
        let legs: Vec<_> = legs.collect();
        let found = collector.trace(TRACE, &["decode", before]);
        for (name, leg) in &legs {
            let told = leg
                .headers
                .iter()
                .find(|(header, _)| header == "traceparent");
            let told = told
                .unwrap_or_else(|| panic!("{leg:?}"))
                .1
                .split('-')
                .nth(2)
                .unwrap()
                .to_owned();
            let own = found.values().find(|it| it["spanId"] == *told);
            let own = own.unwrap_or_else(|| panic!("{told}: {found:?}"));
            assert_eq!(own["parentSpanId"], *request);
            assert_eq!(attribute(own, "cofferdam.engine"), Some(name.as_str()));
            assert_eq!(own["kind"], 3);
            assert_eq!(own["status"], serde_json::json!({}));
        }
        assert_eq!(found[before]["parentSpanId"], *request);
        assert_eq!(found.len(), legs.len() + 1, "{found:?}");
        drop((front, spans));
        exporter.end().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_leg_that_fails_says_so() {
    let collector = Collector::start();
    let (spans, _exporter) = Exporter::start(&collector.url).unwrap();
    let front = Front::new(Engine::vllm_pair()).await;
    front.fleet.rule(
        Rule::new(Act::Fail {
            status: 500,
            message: None,
        })
        .on("prefill"),
    );
    let mut asked = job(&prompt(1, 20), LONG);
    asked.trace = spans.request(Some(CLIENT));
    let heard = hear(front.doors.submit(asked).unwrap()).await;
    assert!(heard.end.is_err());
    let found = tokio::task::spawn_blocking(move || collector.trace(TRACE, &["prefill"]))
        .await
        .unwrap();
    assert_eq!(found["prefill"]["status"], serde_json::json!({"code": 2}));
}
