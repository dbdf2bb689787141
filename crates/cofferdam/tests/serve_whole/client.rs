//! The `openai` client from PyPI, in an environment that this test makes.

use crate::{serve, small};
use std::path::Path;
use std::process::Command;

/// The version that was tested; kept so that a new one is a decision.
const OPENAI: &str = "openai==3.57.0";

#[test]
fn the_openai_client_is_served() {
    let model = small::model(512);
    let dir = tempfile::tempdir().unwrap();
    let keys = dir.path().join("keys");
    std::fs::write(&keys, "red k-red\n").unwrap();
    let keys = format!("--api-keys={}", keys.display());
    let (_running, api) = serve(
        &model,
        &["--max-context=256", "--served-model-name=small", &keys],
    );
    runs("openai_client.py", &api.addr, &["k-red"]);
}

/// Schemas, tools and responses of our own engine.
#[test]
fn the_openai_client_has_forms_tools_and_responses() {
    let (_running, api) = serve(&small::model(4096), &["--served-model-name=small"]);
    runs("openai_forms.py", &api.addr, &[]);
}

/// Tools, forms and several answers from engines that are not ours.
#[test]
fn the_openai_client_is_served_through_the_door() {
    let weights = small::model(4096);
    let door = crate::door::start(scripted::Engine::sglang_pair().into(), &weights, &[]);
    runs("openai_door.py", &door.api.addr, &[]);
}

fn runs(script: &str, addr: &str, words: &[&str]) {
    let python = testkit::python(Path::new(env!("CARGO_TARGET_TMPDIR")), OPENAI);
    let scripts = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/serve_whole");
    let output = Command::new(python)
        .arg(scripts.join(script))
        .arg(format!("http://{addr}/v1"))
        .args(words)
        .output()
        .unwrap();
    let (said, erred) = (
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr),
    );
    assert!(output.status.success(), "{said}\n{erred}");
    print!("{said}");
    assert!(said.ends_with("all good\n"), "{said}");
}
