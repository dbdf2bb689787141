use super::*;
use crate::args::{Cli, Command};
use clap::{CommandFactory, Parser};
use std::io::Write;

fn serve(arguments: &[&str]) -> Result<Serve, Failure> {
    let words = ["cofferdam", "serve"].iter().chain(arguments);
    let cli = Cli::try_parse_from(words).map_err(|e| Failure::usage(anyhow!("{e}")))?;
    let Command::Serve(given) = cli.command else {
        panic!("not serve")
    };
    Serve::resolve(given)
}

fn file(text: &str) -> tempfile::NamedTempFile {
    let mut file = tempfile::NamedTempFile::new().unwrap();
    file.write_all(text.as_bytes()).unwrap();
    file
}

fn with_file(text: &str, arguments: &[&str]) -> Result<Serve, Failure> {
    let file = file(text);
    let config = ["--config", file.path().to_str().unwrap()];
    serve(&[&config, arguments].concat())
}

#[test]
fn defaults_are_those_that_help_names() {
    let settings = serve(&[]).unwrap();
    assert_eq!(settings.host.to_string(), "127.0.0.1");
    assert_eq!(
        (settings.port, settings.prefill, settings.decode),
        (8080, 1, 1)
    );
    assert_eq!(
        (settings.engine.page_size, settings.engine.max_context),
        (16, None)
    );
    assert_eq!(settings.engine.numeric, Numeric::Fast);
    assert_eq!(settings.keys, Keys::Open);
    assert_eq!(settings.drain, Duration::from_secs(20));
    assert!(!settings.in_process && !settings.engine.scrub);
}

#[test]
fn the_file_is_over_the_default_and_a_flag_is_over_the_file() {
    let text = "port = 9000\nmax-context = 512\nnumeric = \"exact\"\nscrub = true\n\
                host = \"localhost\"\nmodel = \"a.gguf\"\n";
    let settings = with_file(text, &[]).unwrap();
    assert_eq!(
        (settings.port, settings.engine.max_context),
        (9000, Some(512))
    );
    assert_eq!(
        (settings.engine.numeric, settings.engine.scrub),
        (Numeric::Exact, true)
    );
    assert_eq!(settings.model, Some("a.gguf".into()));

    let flags = ["--port", "9001", "--max-model-len", "256", "--scrub=false"];
    let settings = with_file(text, &flags).unwrap();
    assert_eq!(
        (settings.port, settings.engine.max_context),
        (9001, Some(256))
    );
    assert!(
        !settings.engine.scrub,
        "a flag can switch off what the file switches on"
    );
    assert_eq!(
        settings.engine.numeric,
        Numeric::Exact,
        "what no flag names stays"
    );
}

#[test]
fn names_of_other_engines_are_aliases_on_the_line_and_in_the_file() {
    for name in ["--max-context", "--max-model-len", "--context-length"] {
        assert_eq!(
            serve(&[name, "77"]).unwrap().engine.max_context,
            Some(77),
            "{name}"
        );
        let text = format!("{} = 78", name.trim_start_matches('-'));
        assert_eq!(
            with_file(&text, &[]).unwrap().engine.max_context,
            Some(78),
            "{name}"
        );
    }
    for name in ["--pool-tokens", "--max-total-tokens"] {
        assert_eq!(
            serve(&[name, "99"]).unwrap().engine.pool_tokens,
            Some(99),
            "{name}"
        );
    }
    assert_eq!(
        serve(&["--api-key", "k1,k2"]).unwrap().keys,
        Keys::Given(vec!["k1".into(), "k2".into()])
    );
}

#[test]
fn what_makes_no_sense_is_a_usage_failure_that_names_it() {
    let refused = |text: &str, arguments: &[&str], part: &str| {
        let failure = with_file(text, arguments).unwrap_err();
        assert_eq!(failure.exit, crate::exit::Exit::Usage);
        assert!(failure.to_string().contains(part), "{failure}");
    };
    refused("max-contxt = 5", &[], "max-contxt");
    refused("max-contxt = 5", &[], "unknown field");
    refused("port = \"x\"", &[], "port");
    refused("numeric = \"rough\"", &[], "rough");
    refused("host = \"example.org\"", &[], "is no IP address");
    refused(
        "",
        &["--prefill", "0"],
        "--prefill is 0; it must be from 1 to 64",
    );
    refused("", &["--page-size", "0"], "--page-size is 0");
    refused("", &["--threads", "1000"], "--threads is 1000");
    refused("api-keys = \"f\"", &["--api-key", "k"], "keep one");
    refused(
        "api-key = [\"a b\"]",
        &[],
        "an --api-key is empty or has spaces",
    );
    let failure = serve(&["--config", "no/such/file"]).unwrap_err();
    assert!(
        failure.to_string().contains("no/such/file: cannot be read"),
        "{failure}"
    );
}

#[test]
fn hand_made_parts_say_what_they_miss() {
    let resolve = |words: &[&str]| {
        let cli = Cli::try_parse_from(words).unwrap();
        match cli.command {
            Command::Decode(given) => Worker::resolve(given).map(|_| ()),
            Command::Gateway(given) => Gateway::resolve(given).map(|_| ()),
            _ => panic!("neither"),
        }
    };
    let failure = resolve(&["cofferdam", "decode", "--certs", "d"]).unwrap_err();
    assert!(
        failure.to_string().contains("--listen is missing"),
        "{failure}"
    );
    assert!(resolve(&["cofferdam", "decode", "--certs", "d", "--listen", "unix:/a"]).is_ok());
    let failure = resolve(&["cofferdam", "gateway", "--prefill-at", "a:1"]).unwrap_err();
    assert!(
        failure.to_string().contains("--decode-at is missing"),
        "{failure}"
    );
}

#[test]
fn every_flag_is_also_a_variable_and_a_key_of_the_file() {
    Cli::command().debug_assert();
    let everything = ServeFlags {
        model: Some("m".into()),
        host: Some("::1".parse().unwrap()),
        port: Some(1),
        prefill: Some(1),
        decode: Some(1),
        pool_tokens: Some(1),
        page_size: Some(1),
        max_context: Some(1),
        served_model_name: Some("s".into()),
        threads: Some(1),
        api_keys: Some("k".into()),
        api_key: Some(vec!["k".into()]),
        log_format: Some(LogFormat::Json),
        numeric: Some(Numeric::Exact),
        scrub: Some(true),
        in_process: Some(true),
        drain_seconds: Some(1),
    };
    let table = toml::Table::try_from(&everything).unwrap();
    let command = Cli::command();
    let serve = command.find_subcommand("serve").unwrap();
    for argument in serve.get_arguments().filter(|a| a.get_id() != "help") {
        let name = argument.get_long().unwrap();
        let variable = format!("COFFERDAM_{}", name.to_uppercase().replace('-', "_"));
        assert_eq!(argument.get_env().unwrap(), variable.as_str());
        assert!(
            name == "config" || table.contains_key(name),
            "{name} is no key of the file"
        );
    }
    assert_eq!(everything, table.try_into().unwrap());
}

#[test]
fn misspelt_variables_are_noticed() {
    let names = ["COFFERDAM_PORT", "COFFERDAM_PROT", "HOME"].map(String::from);
    assert_eq!(
        unknown_variables(&Cli::command(), names),
        ["COFFERDAM_PROT"]
    );
}
