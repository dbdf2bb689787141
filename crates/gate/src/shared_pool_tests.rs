use super::*;

fn day(text: &str) -> Date {
    text.parse().unwrap()
}

fn attest(answer: bool, date: &str) -> Attestation {
    Attestation {
        answer,
        owner: "sessions team".into(),
        date: day(date),
        expires: None,
    }
}

fn read(value: u64) -> Amount {
    let (url, field) = ("http://a/stats".into(), "slots".into());
    Amount::Read(Ok(Figure::new(value, FigureSource::Field { url, field })))
}

fn pool(size: Amount, largest: Amount) -> PoolReading {
    PoolReading {
        name: "session slots".into(),
        unit: "slots".into(),
        headroom_thousandths: 1250,
        size,
        largest,
        reject_ends_first: Some(attest(true, "2026-11-01")),
        receiver_compares: Some(attest(true, "2026-11-01")),
    }
}

fn answers(pool: &PoolReading) -> Vec<(Answer, String)> {
    let mut findings = Vec::new();
    judge(pool, day("2026-11-29"), &mut findings);
    findings
        .into_iter()
        .map(|it| (it.answer, it.says))
        .collect()
}

#[test]
fn the_size_must_cover_the_largest_request_with_headroom() {
    for (size, answer) in [(1249, Answer::Violated), (1250, Answer::Holds)] {
        let found = answers(&pool(read(size), read(1000)));
        assert_eq!(found[0].0, answer, "{found:?}");
    }
    let found = answers(&pool(read(800), read(1000)));
    assert_eq!(
        found[0].1,
        "800 slots < largest request 1,000 with headroom 1,250: 80 %"
    );
}

#[test]
fn a_missing_or_absurd_figure_proves_nothing() {
    let none = || Amount::Read(Err("http://a/stats: answered 503".into()));
    for (size, largest) in [
        (none(), read(1)),
        (read(1), none()),
        (read(0), read(1)),
        (read(1 << 61), read(1)),
        (read(u64::MAX), read(0)),
    ] {
        assert_eq!(answers(&pool(size, largest))[0].0, Answer::Unknown);
    }
}

#[test]
fn a_declared_figure_says_so_and_expires() {
    let declared = |date| Amount::Declared {
        value: 5000,
        by: attest(true, date),
    };
    let (answer, says) = answers(&pool(declared("2026-11-01"), read(1000))).remove(0);
    assert_eq!(answer, Answer::Holds);
    assert!(
        says.contains("declared by sessions team on 2026-11-01, not measured"),
        "{says}"
    );
    let (answer, says) = answers(&pool(declared("2026-01-01"), read(1000))).remove(0);
    assert_eq!(
        (answer, says.contains("expired on 2026-06-30")),
        (Answer::Unknown, true),
        "{says}"
    );
}

#[test]
fn attested_answers_expire_and_a_no_never_passes() {
    let mut pool = pool(read(5000), read(1000));
    assert!(answers(&pool).iter().all(|it| it.0 == Answer::Holds));
    for (attestation, answer) in [
        (None, Answer::Unknown),
        (Some(attest(true, "2026-06-01")), Answer::Unknown), // 181 days
        (Some(attest(true, "2026-06-02")), Answer::Holds),   // 180 days
        (Some(attest(true, "2027-01-01")), Answer::Unknown), // not yet
        (Some(attest(false, "2026-11-01")), Answer::Violated),
        (Some(attest(false, "2020-11-01")), Answer::Violated),
    ] {
        pool.reject_ends_first = attestation.clone();
        assert_eq!(answers(&pool)[1].0, answer, "{attestation:?}");
    }
    let mut nobody = attest(true, "2026-11-01");
    nobody.owner = " ".into();
    pool.reject_ends_first = Some(nobody);
    assert_eq!(answers(&pool)[1].0, Answer::Unknown);
}

#[test]
fn the_last_number_of_a_log_counts() {
    let log = "pool: 1,200 slots.\nother\npool: 9,600 slots, more\npool: many slots\n";
    let found = from_log("a.log", log, "pool: {} slots").unwrap();
    assert_eq!(found.value, 9600);
    assert_eq!(found.source.to_string(), "a.log:3 pool: {} slots");
    assert_eq!(from_log("a", "n=12.", "n={}").unwrap().value, 12);
    for (text, pattern) in [
        ("n=-4", "n={}"),
        ("n=1.5", "n={}"),
        ("n=", "n={}"),
        ("n=1", "n"),
    ] {
        assert!(from_log("a", text, pattern).is_err(), "{text}");
    }
}
