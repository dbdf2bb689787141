//! What ran is what is checked: the machine alone, told the same again, says the same.

use super::support::{Front, LONG, prompt};
use scripted::{Act, Engine, Rule};

#[tokio::test(flavor = "multi_thread")]
async fn a_disturbed_run_replays_byte_for_byte() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("door.trace");
    let pairs = ["", "-b"].map(|n| {
        Engine::sglang_pair().map(|engine| {
            let name = format!("{}{n}", engine.name);
            engine.named(&name).paced(2, 1, 1)
        })
    });
    let traced = path.clone();
    let front = Front::with(pairs.into_iter().flatten(), |config| {
        config.trace = Some(traced);
    })
    .await;
    let refuse = Act::Refuse {
        status: 500,
        message: None,
    };
    front.fleet.rule(Rule::new(refuse).on("prefill").times(2));
    front
        .fleet
        .rule(Rule::new(Act::Incident).on("prefill-b").nth(3));
    for seed in 0..12 {
        let prompt = prompt(seed, 20);
        match seed % 4 {
            0 => drop(front.submit(&prompt, LONG)),
            _ => {
                front.ask(&prompt).await;
            }
        }
    }
    front.comes_to_rest().await;
    front
        .doors
        .end()
        .await
        .expect("no rule of its own is broken");
    let replayed = wire::trace::replay(&path).expect("the same effects");
    assert!(replayed.inputs > 60, "{} inputs", replayed.inputs);
    assert!(!replayed.torn);
}
