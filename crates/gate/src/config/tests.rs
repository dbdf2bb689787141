use super::*;

const WHOLE: &str = r#"
context = 1048576
headroom = 1.5
strict = true
timeout-ms = 2000
total-timeout-ms = 8000

[allow]
length-compared = "until #38704 is released"
"known-advisories@vllm-52234" = "the router never retries"

[defaults]
key = { env = "GATE_KEY" }

[endpoints]
prefill = "role=prefill"
port = "http"

[[node]]
name = "p0"
url = "https://10.0.0.1:30000"
role = "prefill"
key = { file = "/run/secrets/p0" }
ca = "ca.pem"

[[node]]
name = "d0"
log = "d0.log"
role = "decode"

[[group]]
name = "a"
prefill = ["p0"]
decode = ["d0"]

[[pool]]
name = "session slots"
unit = "slots"
size = { url = "http://a/stats", json = "slots.total" }
largest = { constant = 4, owner = "sessions team", date = "2026-11-01" }
attested.reject-ends-first = { owner = "sessions team", date = "2026-11-01" }
"#;

#[test]
fn a_whole_file_is_read() {
    let file = FleetFile::parse(WHOLE).unwrap();
    assert_eq!(file.headroom, Some(Factor(1500)));
    assert_eq!(file.allowed().unwrap().len(), 2);
    let access = file.node[0].access.or(&file.defaults);
    assert_eq!(access.key, Some(Secret::File("/run/secrets/p0".into())));
    let access = file.node[1].access.or(&file.defaults);
    assert_eq!(access.key, Some(Secret::Env("GATE_KEY".into())));
    assert!(matches!(file.pool[0].size, AmountEntry::Json { .. }));
    assert!(file.pool[0].attested.receiver_compares.is_none());
}

/// What is said about the file with one thing changed.
fn said(from: &str, to: &str) -> String {
    assert!(WHOLE.contains(from), "{from}");
    FleetFile::parse(&WHOLE.replace(from, to))
        .unwrap_err()
        .to_string()
}

#[test]
fn errors_name_line_and_key() {
    assert_eq!(
        said("strict = true", "strickt = true"),
        "line 4, column 1, `strickt`: unknown field `strickt`, expected one of `context`, \
         `headroom`, `strict`, `timeout-ms`, `total-timeout-ms`, `advisories`, `since`, `allow`, \
         `defaults`, `endpoints`, `node`, `group`, `pool`"
    );
    for (from, to, says) in [
        (
            "context = 1048576",
            "context = 'long'",
            "line 2, column 11, `context`",
        ),
        (
            "headroom = 1.5",
            "headroom = 0.5",
            "0.5 is not from 1 to 100",
        ),
        (
            "role = \"decode\"",
            "role = \"both\"",
            "unknown variant `both`",
        ),
        ("log = \"d0.log\"", "", "node d0: give `url` or `log`"),
        (
            "name = \"d0\"",
            "name = \"p0\"",
            "two nodes are called \"p0\"",
        ),
        (
            "decode = [\"d0\"]",
            "decode = [\"p0\"]",
            "no decode node is called \"p0\"",
        ),
        (
            "length-compared =",
            "length-compard =",
            "no check is called \"length-compard\"",
        ),
        ("\"until #38704 is released\"", "\" \"", "without a reason"),
        (", json = \"slots.total\"", "", "is one of: url and json"),
        ("4, owner = \"sessions team\"", "4", "is one of"),
        ("2026-11-01", "2026-11-31", "is no date"),
        ("ca = \"ca.pem\"", "cacert = \"ca.pem\"", "cacert"),
    ] {
        let said = said(from, to);
        assert!(said.contains(says), "{to}: {said}");
    }
}

#[test]
fn a_key_that_was_written_into_the_file_is_not_printed() {
    for wrong in [
        "key = \"sk-very-secret\"",
        "key = [\"sk-very-secret\"]",
        "key = { value = \"sk-very-secret\" }",
        "key = { env = \"A\", file = \"sk-very-secret\" }",
        "api-key = \"sk-very-secret\"",
        "key = \"sk-very-secret",
        "key = sk-very-secret",
    ] {
        let said = said("key = { file = \"/run/secrets/p0\" }", wrong);
        assert!(!said.contains("sk-very-secret"), "{said}");
        assert!(said.contains("line "), "{said}");
    }
}
