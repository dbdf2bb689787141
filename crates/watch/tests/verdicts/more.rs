//! Further logs, and lines as other software writes them.

use super::*;
use watch::fields::{Fields, Line};

/// Sets the time anew from what had to be computed, as if `times` as fast.
pub(super) fn computed(it: &mut Made, times: f64, wait: f64) {
    let tokens = it.request.uncached() as f64;
    it.request.seconds = Some((0.02 + 0.001 * tokens / times) * 1.03 + wait);
}

#[test]
fn machines_and_loads_that_change_are_no_skipped_prefill() {
    let fast_before = |until: usize, times: f64| {
        move |n: usize, it: &mut Made| {
            if n < until {
                computed(it, times, 0.0);
            }
        }
    };
    let each = |every: usize, times: f64| {
        move |n: usize, it: &mut Made| {
            if n > 4_000 && n.is_multiple_of(every) {
                computed(it, times, 0.001 * share(n));
            }
        }
    };
    let hits = |every: usize| {
        move |n: usize, it: &mut Made| {
            if n > 4_000 && n.is_multiple_of(every) {
                let left = (it.request.prompt_tokens as f64 * share(n)).max(1.0);
                it.request.seconds = Some((0.02 + 0.001 * left) * 1.05);
            }
        }
    };
    compare(vec![
        (
            "a busy day, then a quiet night",
            log(
                30,
                20_000,
                |_| (),
                |n, it| {
                    if n < 10_000 {
                        it.request.seconds = it.request.seconds.map(|it| it + 3.0 + 4.0 * share(n));
                    }
                },
            ),
            &[Nothing, CouldNotTell],
        ),
        (
            "three times as fast from the middle on",
            log(
                31,
                20_000,
                |_| (),
                |n, it| {
                    if n > 10_000 {
                        computed(it, 3.0, 0.0);
                    }
                },
            ),
            &[Nothing],
        ),
        (
            "three times as slow from the middle on",
            log(32, 20_000, |_| (), fast_before(10_000, 3.0)),
            &[Nothing],
        ),
        (
            "the first three in a hundred on a machine three times as fast",
            log(33, 20_000, |_| (), fast_before(600, 3.0)),
            &[Nothing, CouldNotTell],
        ),
        (
            "the first one in a hundred on a machine four times as fast",
            log(34, 40_000, |_| (), fast_before(400, 4.0)),
            &[Nothing, CouldNotTell],
        ),
        (
            "one in a hundred is of a model ten times as fast",
            log(35, 20_000, |_| (), each(100, 10.0)),
            &[Nothing],
        ),
        (
            "one in seven hundred is",
            log(36, 20_000, |_| (), each(700, 10.0)),
            &[Nothing, CouldNotTell],
        ),
        (
            "half are 1.8 times as fast",
            log(37, 20_000, |_| (), each(2, 1.8)),
            &[Nothing],
        ),
        (
            "two in a hundred are hits of some length, not reported",
            log(38, 20_000, |it| it.hits_reported = false, hits(50)),
            &[CouldNotTell, Nothing],
        ),
        (
            "one in a thousand is",
            log(39, 20_000, |it| it.hits_reported = false, hits(1_000)),
            &[CouldNotTell, Nothing],
        ),
        (
            "two hundred requests",
            log(40, 200, |_| (), none),
            &[CouldNotTell],
        ),
        (
            "nineteen in twenty have no time",
            log(
                41,
                20_000,
                |_| (),
                |n, it| {
                    if n % 20 != 0 {
                        it.request.seconds = None;
                    }
                },
            ),
            &[CouldNotTell],
        ),
        (
            "whole seconds",
            log(
                42,
                20_000,
                |_| (),
                |_, it| {
                    it.request.seconds = it.request.seconds.map(f64::floor);
                },
            ),
            &[CouldNotTell, Nothing],
        ),
        (
            "hundredths of a second",
            log(
                43,
                20_000,
                |_| (),
                |_, it| {
                    it.request.seconds = it.request.seconds.map(|it| (it * 100.0).round() / 100.0);
                },
            ),
            &[Nothing],
        ),
        (
            "all but the first hundred are errors",
            log(
                44,
                20_000,
                |_| (),
                |n, it| {
                    if n > 100 {
                        it.request.status = 503;
                        it.request.seconds = Some(0.001);
                    }
                },
            ),
            &[CouldNotTell],
        ),
        (
            "fast errors among healthy answers",
            log(
                45,
                20_000,
                |_| (),
                |n, it| {
                    if n % 10 == 0 {
                        it.request.status = 429;
                        it.request.seconds = Some(0.0005);
                    }
                },
            ),
            &[Nothing],
        ),
        (
            "a model without speculation says that 0 were accepted",
            log(
                46,
                20_000,
                |_| (),
                |_, it| {
                    it.request.completion_tokens = Some(400);
                    it.request.accept_length = Some(0.0);
                    it.request.accept_rate = Some(0.0);
                },
            ),
            &[Nothing],
        ),
        (
            "drafts are accepted as well as they are",
            log(
                47,
                20_000,
                |_| (),
                |n, it| {
                    it.request.completion_tokens = Some(400);
                    it.request.accept_length = Some(2.0 + share(n));
                    it.request.accept_rate = Some(0.6);
                },
            ),
            &[Nothing],
        ),
        (
            "one in a thousand is skipped",
            log(48, 30_000, |it| it.skipped = 0.001, none),
            &[Found],
        ),
        (
            "one in a thousand is skipped, most are hits",
            log(49, 30_000, |it| (it.skipped, it.hits) = (0.001, 0.7), none),
            &[Found],
        ),
        (
            "the incident on the faster of two machines",
            log(
                50,
                30_000,
                |it| it.pool = 6_000.0,
                |n, it| {
                    if n.is_multiple_of(2) && !it.skipped {
                        computed(it, 3.0, 0.0);
                    }
                },
            ),
            &[Found],
        ),
        (
            "prefill says 1 where decode says all",
            log(
                51,
                2_000,
                |_| (),
                |n, it| {
                    let all = it.request.prompt_tokens;
                    it.skipped = n % 100 == 0;
                    it.request.decode_tokens = Some(all);
                    it.request.prefill_tokens = Some(if n % 100 == 0 { 1 } else { all });
                },
            ),
            &[Found],
        ),
    ]);
}

/// What a line is read as.
enum Is {
    /// Seconds, status, tokens.
    Answer(f64, u16, u64),
    /// No time was taken.
    Untimed(u16, u64),
    Other,
    Bad,
}
use Is::{Answer, Bad, Other, Untimed};

#[test]
fn lines_of_other_software() {
    let nginx =
        "time = 'msec'\nseconds = ['header_time']\nprompt_tokens = 'tokens'\nstatus = 'status'\n";
    let spans = "time = 'startTimeUnixNano'\ntime_unit = 'ns'\nstatus = 'status.code'\n\
        prompt_tokens = 'attributes.gen_ai.usage.input_tokens'\n\
        seconds = [{ from = 'startTimeUnixNano', to = 'first' }]\n";
    let litellm = "time = 'startTime'\nprompt_tokens = 'prompt_tokens'\nstatus = 'status'\n\
        cached_tokens = 'cached'\nseconds = [{ from = 'startTime', to = 'completionStartTime' }]\n";
    let plain = "time = 'ts'\nseconds = ['ttft']\nprompt_tokens = 'n'\nstatus = 'status'\n\
        cached_tokens = 'cached'\ncompletion_tokens = 'out'\n";
    let only = "time = 'ts'\nseconds = ['ttft']\nprompt_tokens = 'n'\nstatus = 'status'\n\
        only = { path = ['/v1/chat/completions'] }\n";
    let cases: Vec<(&str, &str, &str, Is)> = vec![
        (
            "nginx, three upstreams",
            nginx,
            r#"{"msec":"1796000000.123","header_time":"0.1, 0.2 : -","tokens":"12","status":"200"}"#,
            Answer(0.2, 200, 12),
        ),
        (
            "nginx, nothing answered",
            nginx,
            r#"{"msec":"1796000000.123","header_time":"-","tokens":"-","status":"499"}"#,
            Other,
        ),
        (
            "nginx, not counted",
            nginx,
            r#"{"msec":"1796000000.123","header_time":"-","tokens":"12","status":"502"}"#,
            Untimed(502, 12),
        ),
        (
            "envoy, milliseconds as they are",
            nginx,
            r#"{"msec":1796000000,"header_time":"350ms","tokens":12,"status":200}"#,
            Answer(0.35, 200, 12),
        ),
        (
            "a load balancer's duration",
            nginx,
            r#"{"msec":1796000000,"header_time":"0.350s","tokens":12,"status":200}"#,
            Answer(0.35, 200, 12),
        ),
        (
            "Go's microseconds",
            nginx,
            r#"{"msec":1796000000,"header_time":"350.5µs","tokens":12,"status":200}"#,
            Answer(0.000_350_5, 200, 12),
        ),
        (
            "Go's minutes",
            nginx,
            r#"{"msec":1796000000,"header_time":"1m2s","tokens":12,"status":200}"#,
            Bad,
        ),
        (
            "a comma for the point",
            nginx,
            r#"{"msec":1796000000,"header_time":"0,350","tokens":12,"status":200}"#,
            Bad,
        ),
        (
            "OpenTelemetry, dots in names",
            spans,
            r#"{"startTimeUnixNano":"1796000000000000000","first":"1796000000250000000","status":{"code":"STATUS_CODE_OK"},"attributes":{"gen_ai.usage.input_tokens":12}}"#,
            Answer(0.25, 200, 12),
        ),
        (
            "OpenTelemetry, nested",
            spans,
            r#"{"startTimeUnixNano":1796000000000000000,"first":1796000000250000000,"status":{"code":"Error"},"attributes":{"gen_ai":{"usage":{"input_tokens":12}}}}"#,
            Answer(0.25, 500, 12),
        ),
        (
            "OpenTelemetry, all in one name",
            spans,
            r#"{"startTimeUnixNano":1796000000000000000,"first":null,"status":{"code":"OK"},"attributes.gen_ai.usage.input_tokens":12}"#,
            Untimed(200, 12),
        ),
        (
            "OpenTelemetry, half in one name",
            spans,
            r#"{"startTimeUnixNano":1796000000000000000,"first":null,"status.code":"OK","attributes":{"gen_ai.usage":{"input_tokens":12}}}"#,
            Untimed(200, 12),
        ),
        (
            "nanoseconds that are milliseconds",
            spans,
            r#"{"startTimeUnixNano":"1796000000000","first":null,"attributes":{"gen_ai.usage.input_tokens":12}}"#,
            Untimed(0, 12),
        ),
        (
            "milliseconds read as seconds",
            plain,
            r#"{"ts":1796000000123,"ttft":0.2,"n":12,"status":200}"#,
            Bad,
        ),
        (
            "microseconds read as seconds",
            plain,
            r#"{"ts":"1796000000123456","ttft":0.2,"n":12,"status":200}"#,
            Bad,
        ),
        (
            "LiteLLM, Python's times",
            litellm,
            r#"{"startTime":"2026-11-29 12:00:00.250000+00:00","completionStartTime":"2026-11-29 17:30:00.750000+05:30","prompt_tokens":12,"status":"success"}"#,
            Answer(0.5, 200, 12),
        ),
        (
            "LiteLLM, no offset",
            litellm,
            r#"{"startTime":"2026-11-29T12:00:00","completionStartTime":"2026-11-29T12:00:00,500","prompt_tokens":12,"status":"success"}"#,
            Answer(0.5, 200, 12),
        ),
        (
            "LiteLLM, first token before the start",
            litellm,
            r#"{"startTime":"2026-11-29T12:00:01","completionStartTime":"2026-11-29T12:00:00","prompt_tokens":12,"status":"success"}"#,
            Bad,
        ),
        (
            "LiteLLM, cached more than sent",
            litellm,
            r#"{"startTime":1,"prompt_tokens":12,"cached":13,"status":"success"}"#,
            Bad,
        ),
        (
            "a status that is true",
            plain,
            r#"{"ts":1796000000,"ttft":0.2,"n":12,"status":true}"#,
            Answer(0.2, 200, 12),
        ),
        (
            "a status that is false",
            plain,
            r#"{"ts":1796000000,"ttft":0.2,"n":12,"status":"false"}"#,
            Answer(0.2, 500, 12),
        ),
        (
            "a status of words",
            plain,
            r#"{"ts":1796000000,"ttft":0.2,"n":12,"status":"HTTP/1.1 200 OK"}"#,
            Answer(0.2, 200, 12),
        ),
        (
            "a status that nobody knows",
            plain,
            r#"{"ts":1796000000,"ttft":0.2,"n":12,"status":"pending"}"#,
            Bad,
        ),
        (
            "no status",
            plain,
            r#"{"ts":1796000000,"ttft":0.2,"n":12,"status":null}"#,
            Answer(0.2, 0, 12),
        ),
        (
            "a count with a separator",
            plain,
            r#"{"ts":1796000000,"ttft":0.2,"n":"2,657","status":200}"#,
            Bad,
        ),
        (
            "a count as a float",
            plain,
            r#"{"ts":1796000000,"ttft":0.2,"n":2657.0,"status":200}"#,
            Answer(0.2, 200, 2657),
        ),
        (
            "a count that is true",
            plain,
            r#"{"ts":1796000000,"ttft":0.2,"n":true,"status":200}"#,
            Bad,
        ),
        (
            "a negative number of cached tokens",
            plain,
            r#"{"ts":1796000000,"ttft":0.2,"n":12,"cached":-1,"status":200}"#,
            Bad,
        ),
        (
            "NaN",
            plain,
            r#"{"ts":1796000000,"ttft":"NaN","n":12,"status":200}"#,
            Bad,
        ),
        (
            "infinity",
            plain,
            r#"{"ts":1796000000,"ttft":"inf","n":12,"status":200}"#,
            Bad,
        ),
        (
            "streamed without usage: answered, of unknown length",
            plain,
            r#"{"ts":1796000000,"ttft":0.2,"n":null,"out":7,"status":200}"#,
            Answer(0.2, 200, 0),
        ),
        (
            "refused before it was counted",
            plain,
            r#"{"ts":1796000000,"ttft":null,"n":null,"status":400}"#,
            Other,
        ),
        (
            "a route of its own, without usage",
            only,
            r#"{"ts":1796000000,"ttft":0.2,"path":"/v1/chat/completions","status":200}"#,
            Answer(0.2, 200, 0),
        ),
        (
            "another route",
            plain,
            r#"{"ts":1796000000,"ttft":0.2,"path":"/health","status":200}"#,
            Other,
        ),
    ];
    let mut table = String::new();
    let mut wrong = 0;
    for (name, mapping, line, expected) in cases {
        let got = Fields::parse(mapping).unwrap().line(line);
        let good = match (&got, &expected) {
            (Line::Request(it), Answer(seconds, status, tokens)) => {
                let near = it.seconds.is_some_and(|it| (it - seconds).abs() < 1e-6);
                near && it.status == *status && it.prompt_tokens == *tokens
            }
            (Line::Request(it), Untimed(status, tokens)) => {
                it.seconds.is_none() && it.status == *status && it.prompt_tokens == *tokens
            }
            (Line::Other, Other) | (Line::Bad(_), Bad) => true,
            _ => false,
        };
        wrong += u32::from(!good);
        let mark = if good { "" } else { "  <<<" };
        let _ = writeln!(table, "{name} | {got:?}{mark}");
    }
    assert_eq!(wrong, 0, "\n{table}");
}

#[test]
fn times_as_other_software_writes_them() {
    let noon = 1_795_953_600.0; // 2026-11-29T12:00:00Z
    let mut wrong = String::new();
    for (text, expected) in [
        ("2026-11-29T17:30:00+0530", Some(0.0)),
        ("2026-11-29T17:30:00+05:30[Asia/Kolkata]", Some(0.0)),
        ("2026-11-29 17:30:00 +0530", Some(0.0)),
        ("2026-11-29 17:30:00 +05:30", Some(0.0)),
        ("2026-11-29 12:00:00.25 +0000 UTC", Some(0.25)),
        ("2026-11-29 12:00:00 UTC", Some(0.0)),
        ("2026-11-29 12:00:00 GMT", Some(0.0)),
        ("2026-11-29T12:00:00,250Z", Some(0.25)),
        ("2026-11-29T12:00:00,250+00:00", Some(0.25)),
        ("2026-11-29T12:00:00.123456789Z", Some(0.123_456_789)),
        ("2026-11-29T12:00Z", Some(0.0)),
        ("20261129T120000Z", Some(0.0)),
        ("2026-11-29 07:00:00.5-0500", Some(0.5)),
        ("Sun, 29 Nov 2026 12:00:00 GMT", Some(0.0)),
        ("Sun, 29 Nov 2026 13:00:00 +0100", Some(0.0)),
        ("29/Nov/2026:17:30:00 +0530", Some(0.0)),
        ("29/Nov/2026:17:30:00.250 +0530", Some(0.25)),
        ("2026-11-29 13:00:00.25 +0100 CET", Some(0.25)),
        ("2026-11-29 13:00:00.25 +0100 CET m=+0.000012", Some(0.25)),
        ("2026-11-29 13:00:00 +0100 +01", None),
        ("2026-11-29 13:00:00 CET", None),
        ("29/Nov/2026:12:00:00", None),
        ("11/29/2026 12:00:00", None),
        ("2026-11-29T12:00:00+5", None),
        ("2026-11-29T12:00:00.5+27:00", None),
        ("2026-11-29 12:00:00+99:00", None),
        ("2026-11-29T12:00:00[Europe/Berlin]", None),
        ("2026-11-29 12:00:00+02:00 UTC", None),
        ("2026-11-29T12:00:00\u{2212}05:00", None),
        ("2026-11-29T12:60:00Z", None),
    ] {
        let got = watch::moment::seconds(text).ok().map(|it| it - noon);
        let good = match (got, expected) {
            (Some(got), Some(expected)) => (got - expected).abs() < 1e-6,
            (got, expected) => got.is_none() && expected.is_none(),
        };
        if !good {
            let _ = writeln!(wrong, "{text}: {got:?}, not {expected:?}");
        }
    }
    assert_eq!(wrong, "");
}
