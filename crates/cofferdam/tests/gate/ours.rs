//! Our own server, with real processes, behind the gate.

use crate::{COFFERDAM, gate};
use std::path::Path;
use testkit::process::Running;
use testkit::{SmallSpec, small_gguf};

fn serve(words: &[&str]) -> (Running, String) {
    let model = small_gguf(Path::new(env!("CARGO_TARGET_TMPDIR")), SmallSpec::default());
    let mut all = vec!["serve", "--model", model.to_str().unwrap(), "--port", "0"];
    all.extend(["--threads", "1", "--max-context", "256"]);
    all.extend(words);
    let running = Running::start(COFFERDAM, &all);
    let url = format!("http://{}", running.api().addr);
    (running, url)
}

#[test]
fn our_own_server_holds() {
    let (running, url) = serve(&[]);
    let said = gate(&["--server", &url, "--format", "json"]);
    assert_eq!((said.code, said.failing()), (0, vec![]), "{}", said.out);
    let json = said.json();
    assert_eq!(
        json["nodes"].as_array().unwrap().len(),
        2,
        "one for each worker"
    );
    for node in json["nodes"].as_array().unwrap() {
        let pool = node["pools"][0]["value"].as_u64();
        let contexts = [Some(2 * 256), Some(8 * 256)];
        assert!(
            contexts.contains(&pool),
            "prefill's and decode's default: {pool:?}"
        );
        assert_eq!(node["max_prompt"]["value"], 255);
    }
    for check in [
        "pool-holds-context",
        "prompt-limits-equal",
        "same-model",
        "same-layout",
    ] {
        let answers = said.answers(check);
        assert!(
            !answers.is_empty() && answers.iter().all(|it| it == "holds"),
            "{check}"
        );
    }
    let more = gate(&["--server", &url, "--context", "100000"]);
    assert_eq!(more.code, 1, "{}", more.out);
    running.stop();
}
