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
    let python = testkit::python(Path::new(env!("CARGO_TARGET_TMPDIR")), OPENAI);
    let output = Command::new(python)
        .arg(Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/serve_whole/openai_client.py"))
        .arg(format!("http://{}/v1", api.addr))
        .arg("k-red")
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
