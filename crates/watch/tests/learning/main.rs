//! What is learned from traces, and what is convicted in them.

mod synthetic;

use synthetic::{Made, Trace};
use watch::forensics::Findings;
use watch::{Anomaly, Detector, Notice, Request, Settings, Standing};

fn fast(signals: &[Anomaly]) -> bool {
    signals
        .iter()
        .any(|it| matches!(it, Anomaly::TooFast { .. }))
}

/// Feeds a watch, and returns which requests it found too fast and what it noticed.
fn feed(watch: &mut Detector, made: &[Made]) -> (Vec<bool>, Vec<Notice>) {
    let mut notices = Vec::new();
    let see = |it: &Made| {
        let seen = watch.see(&it.request);
        notices.extend(seen.notices);
        fast(&seen.judged.signals)
    };
    let found = made.iter().map(see).collect();
    (found, notices)
}

/// (false alarms, skipped prefills found, skipped prefills at all, of those at least so long).
fn count(made: &[Made], found: &[bool], at_least: u64) -> (usize, usize, usize) {
    let all = || made.iter().zip(found);
    let long = |it: &Made| it.skipped && it.request.uncached() >= at_least;
    let alarms = all().filter(|(it, found)| **found && !it.skipped).count();
    let right = all().filter(|(it, found)| **found && long(it)).count();
    (alarms, right, made.iter().filter(|it| long(it)).count())
}

#[test]
fn a_healthy_engine_raises_no_alarm() {
    let made = Trace::new(1).take(50_000);
    let mut watch = Detector::new(Settings::default());
    let (found, notices) = feed(&mut watch, &made);
    assert_eq!(count(&made, &found, 0), (0, 0, 0));
    assert_eq!(notices, []);
    // It does judge: its silence is not that of somebody who has learned nothing.
    let judged = watch.judge(&made.last().unwrap().request);
    assert!(!matches!(judged.standing, Standing::Learning), "{judged:?}");
}

#[test]
fn cold_it_says_learning() {
    let mut watch = Detector::new(Settings::default());
    let mut trace = Trace::new(2);
    for it in trace.take(19) {
        assert_eq!(watch.see(&it.request).judged.standing, Standing::Learning);
    }
}

#[test]
fn a_busy_engine_raises_no_alarm() {
    for (seed, queue) in [(3, 0.5), (4, 5.0)] {
        let mut trace = Trace::new(seed);
        trace.queue = queue;
        let made = trace.take(30_000);
        let (found, _) = feed(&mut Detector::new(Settings::default()), &made);
        assert_eq!(count(&made, &found, 0).0, 0, "queue {queue}");
    }
}

#[test]
fn eight_cache_hits_in_ten_raise_no_alarm() {
    for reported in [true, false] {
        let mut trace = Trace::new(5);
        trace.hits = 0.8;
        trace.hits_reported = reported;
        let made = trace.take(50_000);
        let (found, _) = feed(&mut Detector::new(Settings::default()), &made);
        assert_eq!(count(&made, &found, 0).0, 0, "hits reported: {reported}");
    }
}

#[test]
fn with_hits_reported_skipped_prefills_are_found_among_them() {
    let mut trace = Trace::new(6);
    trace.hits = 0.8;
    let mut watch = Detector::new(Settings::default());
    feed(&mut watch, &trace.take(20_000));
    trace.skipped = 0.01;
    let made = trace.take(20_000);
    let (found, _) = feed(&mut watch, &made);
    let (alarms, right, all) = count(&made, &found, 400);
    assert_eq!((alarms, right), (0, all));
    assert!(all > 40, "{all}");
}

#[test]
fn skipped_prefills_are_found_in_a_log_that_has_had_them_from_the_start() {
    for (seed, rate) in [(7, 0.1), (8, 0.01), (9, 0.001)] {
        let mut trace = Trace::new(seed);
        trace.skipped = rate;
        let made = trace.take(60_000);
        let mut watch = Detector::new(Settings::default());
        feed(&mut watch, &made);
        let found: Vec<_> = made
            .iter()
            .map(|it| fast(&watch.judge(&it.request).signals))
            .collect();
        let (alarms, right, all) = count(&made, &found, 400);
        assert_eq!((alarms, right), (0, all), "one in {}", 1.0 / rate);
        assert!(all as f64 > 60_000.0 * rate * 0.3, "{all}");
    }
}

/// The incident: every prompt over the pool is answered like one of a single token, and no prompt
/// of that length was ever answered rightly.
#[test]
fn the_incident_is_seen_at_lengths_that_were_never_learned() {
    let mut trace = Trace::new(10);
    trace.pool = 6_000.0;
    let made = trace.take(20_000);
    let mut watch = Detector::new(Settings::default());
    let (found, notices) = feed(&mut watch, &made);
    // Once some shorter lengths are learned, every one at once.
    let (alarms, right, all) = count(&made[6000..], &found[6000..], 0);
    assert_eq!((alarms, right), (0, all));
    assert!(all > 1000, "{all}");
    assert_eq!(notices, [], "it is not taken for a faster machine");
    // Looking back, every one without exception.
    let requests = made.iter().map(|it| &it.request);
    let findings = Findings::of(&mut watch, requests);
    let over = made.iter().filter(|it| it.skipped).count();
    assert_eq!(findings.convicted() as usize, over);
    assert_eq!(findings.by_tenant.len(), 7);
    assert_eq!(findings.by_signal["too_fast"] as usize, over);
}

#[test]
fn a_faster_machine_is_learned_anew_and_skipped_prefills_are_found_on_it() {
    let mut trace = Trace::new(11);
    let mut watch = Detector::new(Settings::default());
    feed(&mut watch, &trace.take(20_000));
    trace.per_token /= 4.0;
    let made = trace.take(20_000);
    let (found, notices) = feed(&mut watch, &made);
    let alarms = found.iter().filter(|it| **it).count();
    assert!(alarms > 0 && alarms < 400, "{alarms}");
    let anew = |it: &&Notice| matches!(it, Notice::Relearning { .. });
    assert_eq!(notices.iter().filter(anew).count(), 1, "{notices:?}");
    assert!(found[5_000..].iter().all(|it| !it));
    trace.skipped = 0.01;
    let made = trace.take(10_000);
    let (found, _) = feed(&mut watch, &made);
    let (alarms, right, all) = count(&made, &found, 1_000);
    assert_eq!((alarms, right), (0, all));
    assert!(all > 20);
}

/// From one moment on every prefill is skipped. All long prompts are fast, as on a faster machine;
/// but longer ones take no longer, so nothing is learned from them and the alarm does not end.
#[test]
fn if_every_prefill_is_skipped_it_goes_on_alarming() {
    let mut trace = Trace::new(17);
    let mut watch = Detector::new(Settings::default());
    feed(&mut watch, &trace.take(20_000));
    trace.pool = 16.0;
    let made = trace.take(5_000);
    let (found, notices) = feed(&mut watch, &made);
    let (alarms, right, all) = count(&made, &found, 400);
    assert_eq!((alarms, right), (0, all));
    assert!(all > 2_000, "{all}");
    assert_eq!(notices, []);
}

#[test]
fn slow_drift_is_reported_whichever_way_it_goes() {
    for step in [1.06, 0.94] {
        let mut trace = Trace::new(12);
        trace.shortest = 1_000.0;
        trace.longest = 1_100.0;
        let mut watch = Detector::new(Settings::default());
        let mut notices = Vec::new();
        for _ in 0..12 {
            notices.extend(feed(&mut watch, &trace.take(5_000)).1);
            trace.per_token *= step;
        }
        let drift = |it: &Notice| match it {
            Notice::Drift { factor, .. } => (*factor > 1.2) == (step > 1.0),
            _ => false,
        };
        assert!(notices.iter().any(drift), "{step}: {notices:?}");
    }
}

#[test]
fn tests_are_neither_learned_from_nor_listed() {
    let mut settings = Settings::default();
    settings.test_tenants.insert("probe".to_owned());
    settings.limits.insert("*".to_owned(), 100);
    let mut watch = Detector::new(settings);
    let mut made = Trace::new(13).take(50);
    made.iter_mut()
        .for_each(|it| it.request.tenant = "probe".to_owned());
    feed(&mut watch, &made);
    assert_eq!(watch.series().map(|(_, it)| it.n()).sum::<u64>(), 0);
    let findings = Findings::of(&mut watch, made.iter().map(|it| &it.request));
    assert_eq!(findings.convicted(), 0);
    assert!(findings.tests > 0);
}

#[test]
fn goes_on_after_a_restart_as_if_there_had_been_none() {
    let mut trace = Trace::new(14);
    trace.skipped = 0.01;
    let before = trace.take(10_000);
    let after = trace.take(5_000);
    let mut watch = Detector::new(Settings::default());
    feed(&mut watch, &before);
    watch.series().for_each(|(_, it)| it.refresh());
    let mut restored = Detector::restore(Settings::default(), &watch.save()).unwrap();
    assert_eq!(feed(&mut watch, &after), feed(&mut restored, &after));
    let damaged = watch.save().replace("\"version\":1", "\"version\":9");
    let error = Detector::restore(Settings::default(), &damaged)
        .map(|_| ())
        .unwrap_err();
    assert!(error.to_string().contains("format 9"), "{error}");
    assert!(Detector::restore(Settings::default(), "{").is_err());
}

#[test]
fn memory_is_bounded_whatever_the_log_says() {
    let settings = Settings {
        series_max: 3,
        ..Settings::default()
    };
    let mut watch = Detector::new(settings);
    let mut trace = Trace::new(15);
    let mut too_many = 0;
    for n in 0..100 {
        let mut it = trace.next().request;
        it.model = format!("model-{n}");
        let notices = watch.see(&it).notices;
        too_many += usize::from(!notices.is_empty());
    }
    assert_eq!((watch.series().count(), too_many), (3, 97));
}

fn request() -> Request {
    Trace::new(16).next().request
}

#[test]
fn the_other_signals() {
    let mut settings = Settings::default();
    settings.limits.insert("m".to_owned(), 1_993);
    let mut watch = Detector::new(settings);
    let mut kinds = |change: &dyn Fn(&mut Request)| {
        let mut it = Request {
            prompt_tokens: 1_000,
            ..request()
        };
        change(&mut it);
        let signals = watch.judge(&it).signals;
        signals.iter().map(Anomaly::kind).collect::<Vec<_>>()
    };
    assert_eq!(kinds(&|_| ()), [""; 0]);
    assert_eq!(kinds(&|it| it.prompt_tokens = 1_993), [""; 0]);
    assert_eq!(kinds(&|it| it.prompt_tokens = 1_994), ["over_limit"]);
    let refused = |it: &mut Request| (it.prompt_tokens, it.status) = (1_994, 400);
    assert_eq!(kinds(&refused), [""; 0]);
    // The incident, as its own counters showed it: prefill counted 1, decode 2,500.
    let differ = |it: &mut Request| {
        (it.prefill_tokens, it.decode_tokens, it.prompt_tokens) = (Some(1), Some(2_500), 2_500);
    };
    assert_eq!(kinds(&differ), ["over_limit", "tokens_differ"]);
    assert_eq!(kinds(&|it| it.sent_tokens = Some(999)), ["tokens_differ"]);
    // One that was refused may have been counted by some only.
    let refused = |it: &mut Request| (it.sent_tokens, it.status) = (Some(999), 503);
    assert_eq!(kinds(&refused), [""; 0]);
    let good = |it: &mut Request| (it.accept_rate, it.completion_tokens) = (Some(0.97), Some(128));
    assert_eq!(kinds(&good), ["acceptance"]);
    let bad = |it: &mut Request| (it.accept_length, it.completion_tokens) = (Some(1.3), Some(128));
    assert_eq!(kinds(&bad), ["acceptance"]);
    let early = |it: &mut Request| (it.accept_length, it.completion_tokens) = (Some(1.3), Some(99));
    assert_eq!(kinds(&early), [""; 0]);
}
