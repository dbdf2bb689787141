//! What `packaging/` hands out is true: flags that units and manifests use exist, every metric that rules
//! and dashboards name is on a page of a running server, versions agree. Tools that check more
//! (systemd-analyze, promtool, kubectl) are asked where they are installed.

mod live;

use clap::Parser;
use cofferdam::args::Cli;
use gate::config::FleetFile;
use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

fn root() -> PathBuf {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    here.ancestors().nth(2).unwrap().to_owned()
}

fn read(path: &str) -> String {
    let path = root().join(path);
    fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// Files below a directory whose names end so, from the root.
fn files(directory: &str, ending: &str) -> Vec<String> {
    let mut found = Vec::new();
    for entry in fs::read_dir(root().join(directory)).unwrap() {
        let entry = entry.unwrap();
        let path = format!("{directory}/{}", entry.file_name().to_string_lossy());
        if entry.file_type().unwrap().is_dir() {
            found.extend(files(&path, ending));
        } else if path.ends_with(ending) {
            found.push(path);
        }
    }
    found.sort();
    found
}

/// What a tool says, if it is installed.
fn tool(name: &str, words: &[&str]) -> Option<Output> {
    match Command::new(name).args(words).current_dir(root()).output() {
        Ok(output) => Some(output),
        Err(_) => {
            eprintln!("skipped, for there is no {name} here: {}", words.join(" "));
            None
        }
    }
}

fn good(what: &str, output: Option<Output>) {
    let Some(output) = output else { return };
    let said = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let (out, err) = (said(&output.stdout), said(&output.stderr));
    assert!(
        output.status.success(),
        "{what}: {}\n{out}{err}",
        output.status
    );
}

/// Whether the command takes these words. Names of services are known in a cluster only.
fn accepted(place: &str, words: &[String]) {
    let here = |word: &String| match word.split_once("=tcp:") {
        Some((flag, at)) if !at.starts_with(|c: char| c.is_ascii_digit()) => {
            format!("{flag}=tcp:127.0.0.1:{}", at.rsplit(':').next().unwrap())
        }
        _ => word.clone(),
    };
    let words = std::iter::once("cofferdam".to_owned()).chain(words.iter().map(here));
    Cli::try_parse_from(words).unwrap_or_else(|error| panic!("{place}: {error}"));
}

#[test]
fn units_start_what_there_is() {
    let units = files("packaging/systemd", ".service");
    assert_eq!(units.len(), 4);
    for unit in units {
        let text = read(&unit);
        let start = text
            .lines()
            .find_map(|it| it.strip_prefix("ExecStart=/usr/bin/cofferdam "));
        let words = start.unwrap().split(' ').map(str::to_owned);
        accepted(&unit, &words.collect::<Vec<_>>());
    }
}

#[test]
fn units_are_what_systemd_takes_and_are_hardened() {
    let Some(said) = tool("systemd-analyze", &["--version"]) else {
        return;
    };
    let said = String::from_utf8_lossy(&said.stdout).into_owned();
    let version = said.split(' ').nth(1).and_then(|it| it.parse::<u32>().ok());
    if version < Some(250) {
        eprintln!("skipped: systemd-analyze before 250 looks at no unit offline");
        return;
    }
    let place = tempfile::tempdir().unwrap();
    for unit in files("packaging/systemd", ".service") {
        let name = unit.rsplit('/').next().unwrap();
        let copy = place.path().join(name);
        let text = read(&unit).replace("/usr/bin/cofferdam", env!("CARGO_BIN_EXE_cofferdam"));
        fs::write(&copy, text).unwrap();
        let copy = copy.to_str().unwrap();
        let verify = ["verify", "--man=no", "--recursive-errors=no", copy];
        good(&unit, tool("systemd-analyze", &verify));
        let security = ["security", "--offline=true", "--threshold=15", copy];
        good(&unit, tool("systemd-analyze", &security));
    }
}

/// The lists behind `args:` and `command:`, one word a line or in brackets.
fn lists(text: &str) -> Vec<Vec<String>> {
    let mut found = Vec::new();
    let mut lines = text.lines().peekable();
    while let Some(line) = lines.next() {
        let line = line.trim().trim_start_matches("- ");
        if let Some(list) = line.strip_prefix("command: [/usr/bin/cofferdam, ") {
            let list = list.trim_end_matches(']').split(", ");
            found.push(list.map(str::to_owned).collect());
        }
        if line != "args:" {
            continue;
        }
        let mut words = Vec::new();
        while let Some(word) = lines.peek().and_then(|it| it.trim().strip_prefix("- ")) {
            words.push(word.trim_matches('"').to_owned());
            lines.next();
        }
        found.push(words);
    }
    found
}

#[test]
fn manifests_start_what_there_is() {
    let mut commands = BTreeSet::new();
    for file in files("packaging/kubernetes", ".yaml") {
        for words in lists(&read(&file)) {
            accepted(&file, &words);
            commands.insert(words[0].clone());
        }
    }
    let wanted = [
        "decode",
        "gate",
        "gateway",
        "healthcheck",
        "prefill",
        "probe",
        "serve",
    ];
    assert!(commands.iter().eq(wanted), "{commands:?}");
    for file in files("packaging/kubernetes", "fleet.toml") {
        FleetFile::parse(&read(&file)).unwrap_or_else(|error| panic!("{file}: {error}"));
    }
}

#[test]
fn manifests_are_what_kubernetes_takes() {
    let places = [
        "kubernetes/base",
        "kubernetes/sglang",
        "kubernetes/oncall",
        "kubernetes/engines",
        "monitoring",
    ];
    let place = tempfile::tempdir().unwrap();
    for name in places {
        let made = tool("kubectl", &["kustomize", &format!("packaging/{name}")]);
        let Some(made) = made else { continue };
        good(name, Some(made.clone()));
        if name == "monitoring" {
            continue; // of kinds that Kubernetes itself has not
        }
        let file = place.path().join("all.yaml");
        fs::write(&file, made.stdout).unwrap();
        let words = ["--strict", file.to_str().unwrap()];
        good(name, tool("kubernetes-validate", &words));
    }
    let pod = ["--strict", "packaging/kubernetes/pod.yaml"];
    good("pod.yaml", tool("kubernetes-validate", &pod));
}

/// Whom `gate` asks in what the chart gave.
fn asked_by_gate(manifests: &str) -> Vec<String> {
    let (_, rest) = manifests.split_once("  fleet.toml: |\n").unwrap();
    let lines = rest.lines().map_while(|line| line.strip_prefix("    "));
    let fleet = lines.collect::<Vec<_>>().join("\n");
    FleetFile::parse(&fleet).unwrap_or_else(|error| panic!("{error}\n{fleet}"));
    let named = fleet.lines().filter(|line| {
        let name = line.split(' ').next().unwrap();
        ["url", "role"].contains(&name)
    });
    named.map(str::to_owned).collect()
}

/// The chart, as it is and as it can be: of our own engine and of others'.
#[test]
fn the_chart_gives_what_kubernetes_takes() {
    let chart = "packaging/helm/cofferdam";
    let place = tempfile::tempdir().unwrap();
    let engines = "engines={prefill=http://p:30000#bootstrap=8998,decode=http://d:30000}";
    for (set, kinds) in [
        ("gate.interval=1m", 16),
        ("prefill.replicas=2,decode.replicas=3", 19),
        (engines, 10),
        (&format!("{engines},onCall.enabled=true"), 10),
        ("engines={https://e:8000}", 10),
    ] {
        good("lint", tool("helm", &["lint", chart, "--set", set]));
        let Some(made) = tool("helm", &["template", "x", chart, "--set", set]) else {
            continue;
        };
        good(set, Some(made.clone()));
        let text = String::from_utf8(made.stdout).unwrap();
        assert_eq!(text.matches("\nkind: ").count(), kinds, "{set}");
        for words in lists(&text.replace("$(NAME)", "decode-0")) {
            accepted(set, &words);
        }
        // Never the gateway, where that waits for gate.
        let asked: &[&str] = match set {
            _ if set.contains("https") => &[r#"url = "https://e:8000""#, r#"role = "server""#],
            _ if set.contains("engines") => &[
                r#"url = "http://p:30000""#,
                r#"role = "prefill""#,
                r#"url = "http://d:30000""#,
                r#"role = "decode""#,
            ],
            _ => &[r#"url = "http://gateway:8080""#, r#"role = "server""#],
        };
        assert_eq!(asked_by_gate(&text), asked, "{set}");
        let file = place.path().join("all.yaml");
        fs::write(&file, text).unwrap();
        good(
            set,
            tool("kubernetes-validate", &["--strict", file.to_str().unwrap()]),
        );
    }
}

const RULES: &str = "packaging/monitoring/rules.yaml";

/// The operator wants the rules inside an object of its own: the file is made of the two that are tested.
#[test]
fn the_rules_of_the_cluster_are_the_rules() {
    let path = "packaging/monitoring/prometheusrule.yaml";
    let mut text = "# Made of rules.yaml and of `cofferdam watch --rules`: TIDY_UPDATE=1 cargo test -p cofferdam --test packaging\n\
         apiVersion: monitoring.coreos.com/v1\nkind: PrometheusRule\nmetadata:\n  name: cofferdam\n  \
         labels: { app: cofferdam }\nspec:\n  groups:\n"
        .to_owned();
    for rules in [&read(RULES), watch::rules::PROMETHEUS] {
        let groups = rules.split_once("groups:\n").unwrap().1;
        groups
            .lines()
            .for_each(|line| text += &format!("  {line}\n"));
    }
    if std::env::var_os("TIDY_UPDATE").is_some() {
        fs::write(root().join(path), &text).unwrap();
        return;
    }
    assert!(read(path) == text, "{path} is old: TIDY_UPDATE=1");
}

#[test]
fn every_alert_is_raised_and_cleared_in_a_test() {
    let tests = read("packaging/monitoring/rules_test.yaml");
    let rules = read(RULES);
    let alerts = rules
        .lines()
        .filter_map(|it| it.trim().strip_prefix("- alert: "));
    for alert in alerts {
        assert!(
            tests.contains(&format!("alertname: {alert}\n")),
            "{alert} is not tested"
        );
    }
    let test = ["test", "rules", "packaging/monitoring/rules_test.yaml"];
    good("rules", tool("promtool", &test));
}

/// What `packaging/prefixes` says with crates unpacked into these registries.
fn prefixes(registries: &[&str]) -> Output {
    let home = tempfile::tempdir().unwrap();
    for registry in registries {
        fs::create_dir_all(home.path().join("registry/src").join(registry)).unwrap();
    }
    let mut said = Command::new(root().join("packaging/prefixes"))
        .arg("/somewhere/a target")
        .env("CARGO_HOME", home.path())
        .output()
        .unwrap();
    let place = home.path().to_str().unwrap();
    said.stdout = String::from_utf8(said.stdout)
        .unwrap()
        .replace(place, "HOME")
        .into();
    said
}

/// A cargo that is some years old has more than one, and each may be the one that is built from.
#[test]
fn no_registry_is_left_with_a_path_of_the_builder() {
    let said = prefixes(&[
        "github.com-1ecc6299db9ec823",
        "index.crates.io-1949cf8c6b5b557f",
    ]);
    assert!(said.status.success(), "{said:?}");
    let said = String::from_utf8(said.stdout).unwrap();
    for pair in [
        "HOME/registry/src/github.com-1ecc6299db9ec823=/crates",
        "HOME/registry/src/index.crates.io-1949cf8c6b5b557f=/crates",
        &format!("{}=/cofferdam", root().canonicalize().unwrap().display()),
        "/somewhere/a target=/target",
    ] {
        assert!(
            said.lines().any(|line| line == pair),
            "no {pair} in\n{said}"
        );
    }
}

/// Before the first fetch nobody knows where crates will be: what is built then has paths in it.
#[test]
fn prefixes_are_asked_for_after_the_crates_are_there() {
    let said = prefixes(&[]);
    assert_eq!(said.status.code(), Some(1), "{said:?}");
    let error = String::from_utf8(said.stderr).unwrap();
    assert!(error.contains("cargo fetch --locked"), "{error}");
    let build = read("packaging/build");
    let at = |words: &str| build.find(words).unwrap_or_else(|| panic!("no {words}"));
    assert!(at("cargo fetch") < at("$(packaging/prefixes"));
}

#[test]
fn all_that_is_handed_out_has_one_version() {
    let version = env!("CARGO_PKG_VERSION");
    for (file, says) in [
        (
            "packaging/pyproject.toml",
            format!("\nversion = \"{version}\"\n"),
        ),
        (
            "packaging/pyproject.toml",
            format!("\"cofferdam-guard=={version}\""),
        ),
        (
            "guards/python/pyproject.toml",
            format!("\nversion = \"{version}\"\n"),
        ),
        (
            "guards/python/Cargo.toml",
            format!("\nversion = \"{version}\"\n"),
        ),
        (
            "packaging/kubernetes/base/kustomization.yaml",
            format!("newTag: {version}\n"),
        ),
        (
            "packaging/helm/cofferdam/Chart.yaml",
            format!("\nversion: {version}\nappVersion: {version}\n"),
        ),
        (
            "packaging/helm/cofferdam/values.yaml",
            format!("cofferdam:{version}\n"),
        ),
        (
            "packaging/kubernetes/pod.yaml",
            format!("cofferdam:{version}\n"),
        ),
    ] {
        assert!(read(file).contains(&says), "{file} does not say {says:?}");
    }
}
