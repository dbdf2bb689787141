//! Clients from PyPI and npm, in environments that these tests make.

use crate::{serve, small};
use serde_json::json;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The versions that were tested; kept so that a new one is a decision.
const PYTHON: &str = "openai==3.57.0 langchain-openai==1.8.1 litellm==1.110.2 llm==0.36 \
    openai-agents==0.24.0 pydantic-ai-slim[openai]==2.68.0";
const NODE: &str = "openai@6.49.0 zod@4.6.7 ai@6.0.326 @ai-sdk/openai-compatible@2.0.92 \
    @langchain/openai@1.5.8 @langchain/core@1.4.0";

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

/// Every client's own way to ask for a form and for a tool, with a model that says nothing sensible: what
/// comes back is of the form asked for all the same.
#[test]
fn clients_have_forms_and_tools() {
    let (_running, api) = serve(&small::model(4096), &["--served-model-name=small"]);
    let words = [format!("http://{}/v1", api.addr), "small".to_owned()];
    python("newcomer/tools.py", &words);
    node("tools.mjs", &words);
}

/// Each client chats and streams through the door, and is told what the engine alone would say.
#[test]
fn clients_are_served_through_the_door() {
    let weights = small::model(4096);
    let door = crate::door::start(scripted::Engine::sglang_pair().into(), &weights, &[]);
    let models = door.api.get("/v1/models").good();
    let messages = json!([{"role": "user", "content": "What is the capital of Japan?"}]);
    let asked = json!({"messages": messages});
    let prompt = door.api.post("/tokenize", &asked).good();
    let prompt: Vec<u32> = serde_json::from_value(prompt["tokens"].clone()).expect("ids");
    let right = json!({"tokens": scripted::expected(&prompt, 12)});
    let right = door.api.post("/detokenize", &right).good();
    let words = [
        format!("http://{}/v1", door.api.addr),
        models["data"][0]["id"].as_str().expect("a name").to_owned(),
        "no key".to_owned(),
        right["prompt"].as_str().expect("a text").to_owned(),
    ];
    python("newcomer/sdk.py", &words);
    node("sdk.mjs", &words);
}

fn runs(script: &str, addr: &str, words: &[&str]) {
    let url = format!("http://{addr}/v1");
    let words = [url.as_str()].into_iter().chain(words.iter().copied());
    let words: Vec<String> = words.map(str::to_owned).collect();
    let said = python(&format!("serve_whole/{script}"), &words);
    assert!(said.ends_with("all good\n"), "{said}");
}

fn tests() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests")
}

/// Runs a script with every Python client at hand.
fn python(script: &str, words: &[String]) -> String {
    let python = testkit::python(Path::new(env!("CARGO_TARGET_TMPDIR")), PYTHON);
    let mut command = Command::new(python);
    said(command.arg(tests().join(script)).args(words))
}

/// Runs a script of the newcomer's with every JavaScript client at hand. Where there is no npm it says so.
fn node(script: &str, words: &[String]) {
    if Command::new("npm").arg("--version").output().is_err() {
        return println!("no npm: {script} was not run");
    }
    let place = testkit::node(Path::new(env!("CARGO_TARGET_TMPDIR")), NODE);
    // Packages are looked for beside the script.
    let here = tempfile::tempdir_in(&place).unwrap();
    let beside = here.path().join(script);
    std::fs::copy(tests().join("newcomer").join(script), &beside).unwrap();
    said(Command::new("node").arg(beside).args(words));
}

fn said(command: &mut Command) -> String {
    let output = command.output().unwrap();
    let (said, erred) = (
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr),
    );
    assert!(output.status.success(), "{said}\n{erred}");
    print!("{said}");
    said.into_owned()
}
