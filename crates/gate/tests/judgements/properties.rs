//! A figure that is missing or absurd is never silently "holds".

use crate::nodes::*;
use gate::facts::{Fact, Figure, Node, Role, TOKENS_MAX, Unknown};
use gate::finding::Answer;
use proptest::prelude::*;

/// What happens to one figure of a node.
#[derive(Clone, Debug)]
enum Harm {
    Missing,
    Zero,
    Absurd(u64),
    Is(u64),
}

/// Harms the figure with this number; counts, words and switches in turn.
fn harm(node: &mut Node, place: usize, harm: &Harm) {
    let count = |value: u64| match harm {
        Harm::Missing => Err(not_reported()),
        Harm::Zero => measured(0),
        Harm::Absurd(huge) => measured(*huge),
        Harm::Is(value_is) => measured((*value_is).max(value % 2)),
    };
    let number = || match harm {
        Harm::Missing => Err(not_reported()),
        Harm::Zero => fig(0),
        Harm::Absurd(value) | Harm::Is(value) => fig(*value),
    };
    fn word(fact: &mut Fact<Figure<String>>, harm: &Harm) {
        match harm {
            Harm::Missing => *fact = Err(not_reported()),
            harm => *fact = fig(format!("{harm:?}")),
        }
    }
    fn switch(fact: &mut Fact<Figure<bool>>, harm: &Harm) {
        match harm {
            Harm::Missing => *fact = Err(not_reported()),
            harm => *fact = fig(matches!(harm, Harm::Zero)),
        }
    }
    match place {
        0 => node.context = count(1),
        1 => node.advertised = count(1),
        2 => node.max_prompt = count(1),
        3 => node.ranks = Err(not_reported()),
        4 => {
            node.ranks = Ok(vec![
                rank("dp 0", 1_400_000),
                gate::facts::Rank {
                    name: "dp 1".into(),
                    pool: count(1),
                },
            ])
        }
        5 => node.page_size = number(),
        6 => node.batch_bound = number(),
        7 => node.parallelism.tensor = number(),
        8 => node.release_timeout_ms = number(),
        9 => word(&mut node.kv_dtype, harm),
        10 => word(&mut node.layout, harm),
        11 => word(&mut node.model, harm),
        12 => word(&mut node.tokenizer, harm),
        13 => switch(&mut node.truncates, harm),
        14 => switch(&mut node.checksum, harm),
        15 => switch(&mut node.deferred_release, harm),
        16 => switch(&mut node.open_introspection, harm),
        17 => node.version = Err(not_reported()),
        18 => node.engine = Err(not_reported()),
        19 => node.role = Err(not_reported()),
        _ => *node = Node::unknown(node.name.clone(), not_reported()),
    }
}

fn harms() -> impl Strategy<Value = Vec<(bool, usize, Harm)>> {
    let absurd = prop_oneof![TOKENS_MAX + 1..=u64::MAX, Just(1 << 63), Just(u64::MAX)];
    let one = prop_oneof![
        Just(Harm::Missing),
        Just(Harm::Zero),
        absurd.prop_map(Harm::Absurd),
        (1..=TOKENS_MAX).prop_map(Harm::Is),
    ];
    prop::collection::vec((any::<bool>(), 0..21_usize, one), 0..5)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 500, ..ProptestConfig::default() })]

    /// Whatever is missing or absurd: what holds rests on figures that are there, and are possible.
    #[test]
    fn what_holds_rests_on_figures_that_are_there(harms in harms()) {
        let (mut prefill, mut decode) = good_pair();
        for (of_prefill, place, how) in &harms {
            harm(if *of_prefill { &mut prefill } else { &mut decode }, *place, how);
        }
        let report = report(pair(prefill, decode));
        for finding in report.findings.iter().filter(|it| it.answer == Answer::Holds) {
            for evidence in &finding.evidence {
                prop_assert!(evidence.value.is_ok(), "{finding:?}");
                let tokens = ["pool", "context", "largest prompt", "advertised"];
                let is_count = tokens.iter().any(|it| evidence.what.starts_with(it));
                let value = evidence.value.as_ref().unwrap();
                if is_count {
                    let value = value.as_u64().unwrap();
                    prop_assert!((1..=TOKENS_MAX).contains(&value), "{finding:?}");
                }
            }
        }
        // The report can be shown, whatever is in it.
        gate::output::table(&report, gate::output::Style::default());
        gate::output::json(&report);
        gate::output::junit(&report);
        gate::output::sarif(&report, None);
        gate::output::prometheus(&report);
    }

    /// The comparison itself, against arithmetic done otherwise.
    #[test]
    fn a_pool_holds_its_context_exactly_when_it_does(
        pool in 1..=TOKENS_MAX, context in 1..=TOKENS_MAX, near in any::<bool>(), off in -3..=3_i64,
    ) {
        let wanted = (context as u128 * 5).div_ceil(4) as u64;
        let pool = if near { wanted.saturating_add_signed(off).clamp(1, TOKENS_MAX) } else { pool };
        let node = sglang("p0", "0.5.23", Role::Prefill, pool, context);
        let report = report(fleet(vec![reading(gate::judge::Stated::Prefill, node)]));
        let expected = if pool >= wanted { Answer::Holds } else { Answer::Violated };
        prop_assert_eq!(answer(&report, "pool-holds-context"), expected);
    }
}

/// Texts that are near enough to a fleet file to get somewhere.
fn toml_like() -> impl Strategy<Value = String> {
    let line = prop::sample::select(vec![
        "[[node]]",
        "[[pool]]",
        "[[group]]",
        "[allow]",
        "[defaults]",
        "name = 'é'",
        "url = 'http://a'",
        "role = 'prefill'",
        "key = 'sk'",
        "key = { env = 'A' }",
        "size = { log = 'a', pattern = '{}' }",
        "headroom = nan",
        "headroom = 1e300",
        "context = -1",
        "context = 99999999999999999999",
        "x = \"\u{1F600}",
        "[endpoints]",
        "prefill = ['a']",
        "= =",
        "'''",
        "date = 2026-01-01",
    ]);
    let line = prop_oneof![4 => line.prop_map(str::to_owned), 1 => ".*"];
    prop::collection::vec(line, 0..12).prop_map(|lines| lines.join("\n"))
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 1000, ..ProptestConfig::default() })]

    /// No input makes a reader of files panic.
    #[test]
    fn whatever_is_in_a_file_is_an_error_or_read(
        text in toml_like(), bytes in prop::collection::vec(any::<u8>(), 0..200),
        pattern in ".{0,12}",
    ) {
        use gate::{advisories, baseline, config, endpoints, shared_pool};
        let _ = config::FleetFile::parse(&text);
        let _ = advisories::Table::parse(&text);
        let lossy = String::from_utf8_lossy(&bytes);
        let _ = config::FleetFile::parse(&lossy);
        let _ = baseline::Baseline::parse(&lossy);
        let _ = lossy.parse::<gate::Allow>();
        let _ = lossy.parse::<gate::date::Date>();
        let _ = shared_pool::from_log("a", &text, &pattern);
        let _ = shared_pool::from_log("a", &lossy, &format!("{pattern}{{}}"));
        let rules = config::EndpointRules { prefill: Some("a".into()), ..Default::default() };
        let _ = endpoints::read(&bytes, &rules);
    }
}

#[test]
fn a_reason_never_turns_into_a_number() {
    let why = Unknown::NotReported { looked: vec![] };
    let report = report(pair(
        Node::unknown("p0", why.clone()),
        Node::unknown("d0", why),
    ));
    assert_eq!(report.verdict(), gate::Verdict::Unknown);
    let holds = report
        .findings
        .iter()
        .filter(|it| it.answer == Answer::Holds);
    let holds: Vec<_> = holds.map(|it| it.check.id).collect();
    assert_eq!(holds, [""; 0], "nothing was read");
}
