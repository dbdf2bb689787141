use super::*;
use crate::args::{Command as Typed, LogFormat, Numeric, Serve};
use crate::exit::Exit;
use std::io::Write;

fn serve(words: &[&str]) -> Result<Serve, Wrong> {
    let words = ["cofferdam", "serve"].iter().chain(words);
    let Typed::Serve(serve) = parse(words.map(OsString::from))?.command else {
        panic!("not serve")
    };
    Ok(*serve)
}

fn with_file(text: &str, words: &[&str]) -> Result<Serve, Wrong> {
    let mut file = tempfile::NamedTempFile::new().unwrap();
    file.write_all(text.as_bytes()).unwrap();
    let config = ["--config", file.path().to_str().unwrap()];
    serve(&[&config, words].concat())
}

#[test]
fn defaults_are_those_that_help_names() {
    let it = serve(&[]).unwrap();
    assert_eq!(it.api.host.0.to_string(), "127.0.0.1");
    assert_eq!((it.api.port, it.prefill, it.decode), (8080, 1, 1));
    assert_eq!((it.engine.page_size, it.engine.max_context), (16, None));
    assert_eq!(it.engine.numeric, Numeric::Fast);
    assert_eq!((it.api.api_keys, it.api_key.len()), (None, 0));
    assert_eq!(
        (it.common.drain_seconds, it.common.log_format),
        (20, LogFormat::Text)
    );
    assert!(!it.in_process && !it.engine.scrub);
}

#[test]
fn the_file_is_over_the_default_and_a_flag_is_over_the_file() {
    let text = "port = 9000\nmax-context = 512\nnumeric = \"exact\"\nscrub = true\n\
                host = \"localhost\"\nmodel = \"a.gguf\"\napi-key = [\"k1\", \"k2\"]\n";
    let it = with_file(text, &[]).unwrap();
    assert_eq!((it.api.port, it.engine.max_context), (9000, Some(512)));
    assert_eq!((it.engine.numeric, it.engine.scrub), (Numeric::Exact, true));
    assert_eq!(it.common.model, Some("a.gguf".into()));
    assert_eq!(it.api_key, ["k1", "k2"]);

    let words = [
        "--port",
        "9001",
        "--max-model-len",
        "256",
        "--scrub=false",
        "--api-key",
        "k3",
    ];
    let it = with_file(text, &words).unwrap();
    assert_eq!((it.api.port, it.engine.max_context), (9001, Some(256)));
    assert!(
        !it.engine.scrub,
        "a flag can switch off what the file switches on"
    );
    assert_eq!(
        it.api_key,
        ["k3"],
        "a flag replaces a list, it does not add to it"
    );
    assert_eq!(
        it.engine.numeric,
        Numeric::Exact,
        "what no flag names stays"
    );
}

#[test]
fn names_of_other_engines_are_aliases_on_the_line_and_in_the_file() {
    for name in ["max-context", "max-model-len", "context-length"] {
        let flag = format!("--{name}");
        assert_eq!(
            serve(&[&flag, "77"]).unwrap().engine.max_context,
            Some(77),
            "{name}"
        );
        let it = with_file(&format!("{name} = 78"), &[]).unwrap();
        assert_eq!(it.engine.max_context, Some(78), "{name}");
    }
    for name in ["pool-tokens", "max-total-tokens"] {
        let flag = format!("--{name}");
        assert_eq!(
            serve(&[&flag, "99"]).unwrap().engine.pool_tokens,
            Some(99),
            "{name}"
        );
    }
    assert_eq!(
        serve(&["--api-key", "k1,k2"]).unwrap().api_key,
        ["k1", "k2"]
    );
}

#[test]
fn what_is_wrong_in_the_file_is_a_usage_failure_that_names_it() {
    let cases = [
        (
            "max-contxt = 5",
            "line 1: serve has no flag --max-contxt; did you mean max-context?",
        ),
        (
            "port = 0\n\nmaxcontxt = 5\n",
            "line 3: serve has no flag --maxcontxt; did you mean max-context?",
        ),
        (
            "# a file\nmax_context = 5",
            "line 2: serve has no flag --max_context; did you mean max-context?",
        ),
        ("zzz = 1", "line 1: serve has no flag --zzz"),
        ("config = \"other\"", "serve has no flag --config"),
        ("port = \"x\"", "invalid value 'x' for '--port <PORT>'"),
        ("port = 1.5", "invalid value '1.5' for '--port <PORT>'"),
        (
            "port = [[1]]",
            "line 1: port has a array in it, which no flag takes",
        ),
        (
            "port = 2026-12-04",
            "line 1: port has a datetime in it, which no flag takes",
        ),
        ("tls-cert = \"a\"", "--tls-key <FILE>"),
        ("tls-client-ca = \"a\"", "--tls-cert <FILE>"),
        ("canaries = true", "--incidents <FILE>"),
        ("canaries = \"On\"", "--incidents <FILE>"),
        (
            "admin = \"127.0.0.1:1\"\nincidents = \"a\"",
            "--admin-keys <FILE>",
        ),
        ("numeric = \"rough\"", "[possible values: fast, exact]"),
        ("host = \"example.org\"", "no IP address"),
        ("prefill = 0", "0 is not in 1..=64"),
        ("page-size = 2000", "2000 is not in 1..=1024"),
        ("threads = 0", "0 is not in 1..=256"),
        (
            "api-key = [\"a b\"]",
            "a key is visible ASCII without spaces",
        ),
        (
            "max-context = 5\nmax-model-len = 6",
            "another name of this flag is set too",
        ),
        ("port = 1\nport = 2", "duplicate key"),
        ("port", "configuration file"),
    ];
    for (text, says) in cases {
        let Wrong::File(failure) = with_file(text, &[]).unwrap_err() else {
            panic!("{text}")
        };
        assert_eq!(failure.exit, Exit::Usage);
        assert!(failure.to_string().contains(says), "{text}: {failure}");
        assert!(
            failure.to_string().contains("configuration file /"),
            "{failure}"
        );
    }
    let Wrong::File(failure) = serve(&["--config", "no/such/file"]).unwrap_err() else {
        panic!("not the file")
    };
    assert!(
        failure.to_string().contains("no/such/file: cannot be read"),
        "{failure}"
    );
}

#[test]
fn a_file_can_hold_what_a_part_needs() {
    let mut file = tempfile::NamedTempFile::new().unwrap();
    file.write_all(b"decode-at = [\"unix:/a\", \"tcp:127.0.0.1:9\"]\ncerts = \"c\"\n")
        .unwrap();
    let words = [
        "cofferdam",
        "prefill",
        "--config",
        file.path().to_str().unwrap(),
    ];
    let Typed::Prefill(it) = parse(words.map(OsString::from)).unwrap().command else {
        panic!()
    };
    let addresses: Vec<_> = it.decode_at.iter().map(ToString::to_string).collect();
    assert_eq!(addresses, ["unix:/a", "tcp:127.0.0.1:9"]);
    assert_eq!(it.part.certs, Some("c".into()));
}

/// What a flag needs beside it may stand on the other side.
#[test]
fn a_flag_may_need_what_the_file_has() {
    for (text, words) in [
        ("tls-cert = \"c\"\ntls-key = \"k\"\n", &[][..]),
        ("tls-cert = \"c\"\n", &["--tls-key", "k"]),
        ("tls-key = \"k\"\n", &["--tls-cert", "c"]),
        (
            "tls-cert = \"other\"\ntls-key = \"k\"\n",
            &["--tls-cert", "c"],
        ),
    ] {
        let it = with_file(text, words).unwrap();
        assert_eq!(it.api.tls_cert, Some("c".into()), "{text} {words:?}");
        assert_eq!(it.api.tls_key, Some("k".into()), "{text} {words:?}");
    }
    // What only the words can be blamed for is said of them.
    let Wrong::Words(error) = with_file("port = 1\n", &["--tls-cert", "c"]).unwrap_err() else {
        panic!("not the words")
    };
    assert!(error.to_string().contains("--tls-key <FILE>"), "{error}");
}

#[test]
fn what_goes_with_nothing_else_does_not_in_a_file_either() {
    let mut file = tempfile::NamedTempFile::new().unwrap();
    let text = "engine = [\"http://127.0.0.1:1\"]\nprefill-at = [\"tcp:127.0.0.1:2\"]\n";
    file.write_all(text.as_bytes()).unwrap();
    let words = ["cofferdam", "gateway", "--config"].map(OsString::from);
    let Wrong::File(failure) = parse(words.into_iter().chain([file.path().into()])).unwrap_err()
    else {
        panic!("not the file")
    };
    let says = "'--engine <ENGINE>' cannot be used with '--prefill-at <ADDRESS>'";
    assert!(failure.to_string().contains(says), "{failure}");
}

/// Every flag can be a key of the file: with its default there nothing is different.
#[test]
fn all_defaults_can_stand_in_a_file() {
    let program = Cli::command();
    let flags = program.find_subcommand("serve").unwrap().get_arguments();
    let quoted = |value: &std::ffi::OsStr| format!("{:?}", value.to_str().unwrap());
    let mut text = String::new();
    for flag in flags {
        let values = flag.get_default_values().iter();
        let values: Vec<_> = values.map(|value| quoted(value)).collect();
        if !values.is_empty() {
            text += &format!("{} = [{}]\n", flag.get_long().unwrap(), values.join(", "));
        }
    }
    assert!(text.lines().count() > 15, "{text}");
    let mut it = with_file(&text, &[]).unwrap();
    it.common.config = None;
    assert_eq!(it, serve(&[]).unwrap());
}

#[test]
fn a_number_with_a_fraction_can_stand_in_a_file() {
    let text = "canary-percent = 0.5\nincidents = \"j\"\n";
    let it = with_file(text, &[]).unwrap();
    assert_eq!(it.api.on_call.canary_percent, Some(0.5));
}

#[test]
fn every_flag_has_the_variable_of_its_name() {
    Cli::command().debug_assert();
    for name in ["serve", "prefill", "decode", "gateway"] {
        let program = Cli::command();
        let command = program.find_subcommand(name).unwrap();
        for flag in command
            .get_arguments()
            .filter(|flag| flag.get_id() != "help")
        {
            let long = flag.get_long().unwrap();
            let variable = format!("COFFERDAM_{}", long.to_uppercase().replace('-', "_"));
            assert_eq!(
                flag.get_env().unwrap(),
                variable.as_str(),
                "{name} --{long}"
            );
        }
    }
}

#[test]
fn misspelt_variables_are_noticed() {
    let names = ["COFFERDAM_PORT", "COFFERDAM_PROT", "HOME"].map(String::from);
    assert_eq!(unknown_variables(names), ["COFFERDAM_PROT"]);
}
