//! Each threshold of a verdict, at it and one beside it.

use super::*;
use probe::run::Spent;
use probe::suites::Stopped;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

async fn asked(url: &str, budget: Budget, times: u64) -> (ProbeRun, Option<Spent>) {
    let run = ProbeRun::new(two(url), SEED, budget);
    for n in 0..times {
        if let Err(spent) = run
            .ask("load", Question::new(Tenant((n % 2) as u8), 4))
            .await
        {
            return (run, Some(spent));
        }
    }
    (run, None)
}

fn reported(run: &ProbeRun) -> ProbeReport {
    ProbeReport::new("x".to_owned(), SEED, run, vec![(Suite::Load, None)])
}

#[tokio::test]
async fn a_budget_ends_at_its_tokens_at_its_time_and_at_what_was_looked_for() {
    let url = serve(Form::Plain, |_| 88, honest).await; // 12 more for each answer
    let of = |tokens| Budget { tokens, ..budget() };
    assert_eq!(asked(&url, of(300), 4).await.1, Some(Spent::Tokens));
    assert_eq!(asked(&url, of(301), 4).await.1, None);
    let none = Budget {
        time: Duration::ZERO,
        ..budget()
    };
    assert_eq!(asked(&url, none, 1).await.1, Some(Spent::Time));
    let url = serve(
        Form::Plain,
        |it| it,
        |_| Reply::Raw(b"HTTP/1.1 200 x\r\n\r\n<".into()),
    )
    .await;
    for (until, ends) in [(Kind::WrongErrorClass, true), (Kind::Hang, false)] {
        let until = Budget {
            until: Some(until),
            ..budget()
        };
        let (_, spent) = asked(&url, until, 2).await;
        assert_eq!(spent, ends.then_some(Spent::Found));
    }
}

#[tokio::test]
async fn five_findings_of_a_kind_are_kept_and_all_are_counted() {
    let garbage = |_: &Asked| Reply::Raw(b"HTTP/1.1 200 x\r\n\r\n<".into());
    let url = serve(Form::Plain, |it| it, garbage).await;
    let (run, _) = asked(&url, budget(), 9).await;
    assert_eq!(run.findings().len(), 5);
    assert_eq!(run.counts().findings[&(Kind::WrongErrorClass, "load")], 9);
}

/// Five consecutive words of its own are a positive control, four are none.
#[tokio::test]
async fn a_positive_control_is_five_words_and_one_for_each_tenant_is_enough() {
    for (words, told) in [(5, true), (4, false)] {
        let script = move |asked: &Asked| {
            let copied = asked.copied();
            let few: Vec<_> = copied.split(' ').take(words).collect();
            Reply::Text(few.join(" "))
        };
        let url = serve(Form::Plain, |it| it, script).await;
        let (run, _) = asked(&url, budget(), 2).await;
        let report = reported(&run);
        assert_eq!(
            report.verdict() == ProbeVerdict::Clean,
            told,
            "{}",
            report::table(&report)
        );
    }
    // One answer of many, for each.
    let n = AtomicU64::new(0);
    let once = move |asked: &Asked| match n.fetch_add(1, Relaxed) {
        0 | 1 => Reply::Text(asked.copied()),
        _ => Reply::Text("no".to_owned()),
    };
    let url = serve(Form::Plain, |it| it, once).await;
    let (run, _) = asked(&url, budget(), 8).await;
    assert_eq!(reported(&run).verdict(), ProbeVerdict::Clean);
}

/// Sixteen tokens are enough to show a canary: `coherence` asks for no more.
#[tokio::test]
async fn answers_of_sixteen_tokens_count_and_of_fifteen_do_not() {
    let url = serve(Form::Plain, |it| it, honest).await;
    for (tokens, counted) in [(16, 1), (15, 0)] {
        let run = ProbeRun::new(two(&url), SEED, budget());
        let mut ask = Question::new(Tenant(0), 4);
        ask.max_tokens = tokens;
        run.ask("load", ask).await.unwrap();
        assert_eq!(run.counts().telling().answers, counted);
    }
}

#[tokio::test]
async fn one_error_or_broken_connection_is_a_gap_and_a_busy_server_is_none() {
    for (reply, told) in [
        (Reply::Error(500, "oops") as Reply, false),
        (Reply::Error(502, "oops"), false),
        (Reply::Error(503, "busy"), true),
        (Reply::Error(429, "busy"), true),
        (Reply::Raw(Vec::new()), false),
    ] {
        let once = std::sync::Mutex::new(Some(reply));
        let script = move |asked: &Asked| {
            let fault = once.lock().unwrap().take();
            fault.unwrap_or_else(|| Reply::Text(asked.copied()))
        };
        let url = serve(Form::Plain, |it| it, script).await;
        let (run, _) = asked(&url, budget(), 5).await;
        let report = reported(&run);
        assert_eq!(
            report.verdict() == ProbeVerdict::Clean,
            told,
            "{}",
            report::table(&report)
        );
    }
}

#[tokio::test]
async fn a_leak_that_may_be_chance_proves_nothing_and_neither_does_a_suite_that_stopped() {
    let url = serve(Form::Plain, |it| it, honest).await;
    let (run, _) = asked(&url, budget(), 4).await;
    let mut report = reported(&run);
    assert_eq!(report.verdict(), ProbeVerdict::Clean);
    report.chance = probe::report::CHANCE_MAX / 2.0;
    assert_eq!(report.verdict(), ProbeVerdict::Clean);
    report.chance = probe::report::CHANCE_MAX;
    assert_eq!(report.verdict(), ProbeVerdict::CouldNotTell);
    let stopped = Stopped::Needs("more".to_owned());
    let report = ProbeReport::new("x".into(), SEED, &run, vec![(Suite::Load, Some(stopped))]);
    assert_eq!(report.verdict(), ProbeVerdict::CouldNotTell);
}

/// What every error over the limit is worth: of these three only does a client make the right thing.
#[tokio::test]
async fn over_the_limit_400_413_and_422_are_right_and_nothing_else_is() {
    for (status, right) in [
        (400, true),
        (413, true),
        (422, true),
        (429, false),
        (500, false),
    ] {
        let script = move |asked: &Asked| match asked.tokens > LIMIT {
            true => Reply::Error(status, "no"),
            false => Reply::Text(asked.copied()),
        };
        let report = report(Form::Plain, &[Suite::Boundary], &known(), script).await;
        let found = kinds(&report).contains(&Kind::WrongErrorClass);
        assert_eq!(found, !right, "{status}: {}", report::table(&report));
    }
}

/// A page that is lost when it is exactly full; a model that forgets from some length on is none.
#[tokio::test]
async fn a_page_lost_at_its_end_is_a_wrong_answer_and_forgetting_is_not() {
    for (lost, found) in [(256..257, true), (255..256, true), (255..300, false)] {
        let from = lost.start;
        let script = move |asked: &Asked| match lost.contains(&asked.tokens) {
            true => Reply::Text("nothing that stood there".to_owned()),
            false => honest(asked),
        };
        let report_ = report(Form::Plain, &[Suite::Boundary], &known(), script).await;
        let wrong: Vec<_> = report_.findings.iter().map(|it| it.says.clone()).collect();
        assert_eq!(wrong.len(), usize::from(found), "{wrong:?}");
        if let Some(says) = wrong.first() {
            assert!(says.contains(&format!("{from} tokens")), "{says}");
        }
    }
}

/// A text whose words have more tokens than those that were measured is too long for the place that
/// it was made for: a shorter one is taken, and the suite ends.
#[tokio::test]
async fn a_text_that_came_out_too_long_is_made_shorter() {
    let refused = std::sync::atomic::AtomicBool::new(false);
    let script = move |asked: &Asked| match asked.tokens > 500 && !refused.swap(true, Relaxed) {
        true => Reply::Error(400, "too long"),
        false => honest(asked),
    };
    let report_ = report(Form::Plain, &[Suite::Boundary], &known(), script).await;
    let table = report::table(&report_);
    assert_eq!(report_.verdict(), ProbeVerdict::Clean, "{table}");
}
