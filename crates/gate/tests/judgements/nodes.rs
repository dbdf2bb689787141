//! Nodes as they would be read, made by hand.

use gate::advisories::Table;
use gate::assemble::{Reading, assemble};
use gate::config::GroupEntry;
use gate::facts::{
    Engine, Figure, FigureSource, Measured, Node, Parallelism, Rank, Role, Unknown, Version,
};
use gate::finding::{Answer, Finding};
use gate::judge::{Headroom, Rules, Stated, Subjects};
use gate::{Allow, Report};

/// 2026-11-29, in seconds.
pub const NOW: u64 = 1_795_977_000;

pub fn at(field: &str) -> FigureSource {
    FigureSource::Field {
        url: "http://n/server_info".into(),
        field: field.into(),
    }
}

pub fn fig<T>(value: T) -> Result<Figure<T>, Unknown> {
    Ok(Figure::new(value, at("field")))
}

pub fn measured(value: u64) -> Result<Measured<u64>, Unknown> {
    Ok(Measured::new(value, at("measured")))
}

pub fn not_reported() -> Unknown {
    let looked = vec!["everywhere".into()];
    Unknown::NotReported { looked }
}

/// SGLang as it is when everything is right: pool and context as given, limits by its formula.
pub fn sglang(name: &str, version: &str, role: Role, pool: u64, context: u64) -> Node {
    let mut node = Node::unknown(name, not_reported());
    node.engine = fig(Engine::Sglang);
    node.version = fig(Version::parse(version).unwrap());
    node.role = fig(role);
    node.ranks = Ok(vec![rank("dp 0", pool)]);
    node.page_size = fig(64);
    node.context = measured(context);
    node.advertised = measured(context);
    node.max_prompt = measured(pool.min(context).saturating_sub(7).max(1));
    node.truncates = fig(false);
    node.backend = fig("mooncake".into());
    node.checksum = fig(true);
    node.deferred_release = fig(true);
    node.batch_bound = fig(1024);
    node.transfer_timeout_ms = fig(10_000);
    node.release_timeout_ms = fig(30_000);
    node.kv_dtype = fig("fp8_e4m3".into());
    node.layout = fig("layer_first".into());
    node.parallelism = Parallelism {
        tensor: fig(8),
        pipeline: fig(1),
        data: fig(1),
        context: fig(1),
    };
    node.model = fig("zai-org/GLM-5.3".into());
    node.tokenizer = fig("zai-org/GLM-5.3".into());
    node.weights = fig("default".into());
    node.model_dtype = fig("bfloat16".into());
    node.template = fig("default".into());
    node.tokenizing = fig("default".into());
    node.asides = Ok(vec![]);
    node.open_introspection = fig(false);
    node
}

pub fn rank(name: &str, pool: u64) -> Rank {
    Rank {
        name: name.into(),
        pool: measured(pool),
    }
}

pub fn reading(stated: Stated, node: Node) -> Reading {
    Reading {
        name: node.name.clone(),
        stated: Some(stated),
        shared_address: false,
        nodes: vec![node],
    }
}

/// A pair.
pub fn pair(prefill: Node, decode: Node) -> Subjects {
    fleet(vec![
        reading(Stated::Prefill, prefill),
        reading(Stated::Decode, decode),
    ])
}

pub fn fleet(readings: Vec<Reading>) -> Subjects {
    assemble(readings, &[], Vec::new())
}

pub fn grouped(readings: Vec<Reading>, groups: &[GroupEntry]) -> Subjects {
    assemble(readings, groups, Vec::new())
}

/// A pair that is right but for what its version lacks.
pub fn good_pair() -> (Node, Node) {
    let node = |name, role| sglang(name, "0.5.23", role, 1_400_000, 1_048_576);
    (node("p0", Role::Prefill), node("d0", Role::Decode))
}

pub fn with_table(table: &Table, subjects: Subjects, allow: &[&str], strict: bool) -> Report {
    let rules = Rules {
        context: None,
        headroom: Headroom::default(),
        today: gate::date::Date::of_unix(NOW),
        table,
        baseline: None,
    };
    let allow: Vec<Allow> = allow.iter().map(|it| it.parse().unwrap()).collect();
    Report::new(subjects, &rules, &allow, strict, NOW)
}

pub fn report(subjects: Subjects) -> Report {
    with_table(&Table::embedded(), subjects, &[], false)
}

/// The findings of a check.
pub fn of<'a>(report: &'a Report, check: &str) -> Vec<&'a Finding> {
    assert!(gate::check::find(check).is_some(), "{check}");
    let findings = report.findings.iter();
    findings.filter(|it| it.check.id == check).collect()
}

/// The worst answer of a check that was asked.
pub fn answer(report: &Report, check: &str) -> Answer {
    let answers = of(report, check).into_iter().map(|it| it.answer);
    answers
        .max()
        .unwrap_or_else(|| panic!("{check} was not asked"))
}

/// Checks of which a finding shuts the gate.
pub fn failing(report: &Report) -> Vec<&'static str> {
    let failing = report.findings.iter().filter(|it| report.fails(it));
    let mut ids: Vec<_> = failing.map(|it| it.check.id).collect();
    ids.sort_unstable();
    ids.dedup();
    ids
}
