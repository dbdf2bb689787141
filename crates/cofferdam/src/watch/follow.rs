//! A log that grows: events as they happen, counters for Prometheus, memory kept.

use super::args::Watch as Args;
use super::lines::Read;
use super::memory::{self, Position};
use super::scrape::Scraper;
use super::tail::{Tailed, tail};
use super::{Plan, files};
use crate::exit::{Exit, Failure};
use crate::gauges::{self, Gauges};
use crate::runtime;
use crate::stop::Stop;
use ::watch::fields::Line;
use ::watch::forensics::Findings;
use ::watch::metrics::ExportedMetrics;
use ::watch::{Anomaly, Detector, Key, Notice, Observation, Request, sight};
use anyhow::{Context, anyhow};
use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::io;
use std::time::Duration;
use tokio::sync::mpsc::{Receiver, channel};
use tokio::time::{MissedTickBehavior, interval};

/// Lines read and not judged yet.
const WAITING: usize = 1024;
/// Lines after which it is no accident that `only` has kept none.
const PASSED_OVER_MIN: u64 = 64;
/// Series whose alarms are remembered apart.
const SERIES_MAX: usize = 4096;
/// How often what was learned is kept.
const KEEP: Duration = Duration::from_secs(30);
/// How often engines' counters are read.
const SCRAPE: Duration = Duration::from_secs(15);
/// How often the page of counters is made.
const PAGE: Duration = Duration::from_secs(1);

pub(super) fn run(args: &Args, plan: Plan) -> Result<Exit, Failure> {
    if args.log.len() > 1 {
        let wrong = anyhow!("--follow reads one log; give each log a watch of its own");
        return Err(Failure::usage(wrong));
    }
    let runtime = runtime::on_threads(1)?;
    let done = runtime.block_on(follow(args, plan));
    // A thread may be waiting for standard input, which nobody can end.
    runtime.shutdown_background();
    done
}

async fn follow(args: &Args, plan: Plan) -> Result<Exit, Failure> {
    let mut stop = Stop::new()?;
    let (position, watch) = memory::load(&plan, args.state.as_deref())?;
    let gauges = Gauges::serve(args.listen, gauges::OPEN_METRICS).await?;
    let mut scraper = Scraper::new(&args.scrape)?;
    let mut lines = lines(args, position);
    let mut it = Following {
        plan,
        watch,
        metrics: ExportedMetrics::default(),
        read: Read::default(),
        position,
        found: false,
        by_time: BTreeSet::new(),
        findings: Findings::default(),
    };
    let [mut keep, mut scrape, mut page] = [KEEP, SCRAPE, PAGE].map(|every| {
        let mut ticks = interval(every);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        ticks
    });
    loop {
        tokio::select! {
            () = stop.next() => break,
            line = next(&mut lines) => match line {
                Some(line) => it.line(line.context("--log").map_err(Failure::usage)?)?,
                None => break, // standard input has ended
            },
            _ = keep.tick() => it.keep(args)?,
            _ = scrape.tick(), if !args.scrape.is_empty() => it.scrape(&mut scraper).await?,
            _ = page.tick() => gauges.show(it.metrics.page(&mut it.watch)),
        }
    }
    it.keep(args)?;
    it.exit()
}

/// Lines of the log, if there is one: only engines may be watched.
fn lines(args: &Args, from: Position) -> Option<Receiver<io::Result<Tailed>>> {
    let path = args.log.first()?.clone();
    let (send, receive) = channel(WAITING);
    std::thread::spawn(move || tail(&path, from, &send));
    Some(receive)
}

async fn next(lines: &mut Option<Receiver<io::Result<Tailed>>>) -> Option<io::Result<Tailed>> {
    match lines {
        Some(lines) => lines.recv().await,
        None => std::future::pending().await,
    }
}

struct Following {
    plan: Plan,
    watch: Detector,
    metrics: ExportedMetrics,
    read: Read,
    position: Position,
    /// Whether anything was ever found, but for what stands in `by_time`.
    found: bool,
    /// Series in which something was too fast, and nothing since has said that they are mixed.
    by_time: BTreeSet<Key>,
    /// What could be compared, without the requests themselves.
    findings: Findings,
}

impl Following {
    fn line(&mut self, tailed: Tailed) -> Result<(), Failure> {
        self.position = tailed.position;
        for line in self.read.line(&self.plan.format, "log", &tailed.line) {
            self.one(line)?;
        }
        Ok(())
    }

    fn one(&mut self, line: Line) -> Result<(), Failure> {
        match line {
            Line::Request(request) => {
                let seen = self.watch.see(&request);
                self.metrics.saw(request.time, &seen);
                let told = self.tell(&request, &seen);
                let test = self.watch.settings().test_tenants.contains(&request.tenant);
                self.findings.count(&request, &seen.judged, test);
                told
            }
            Line::Other => Ok(()),
            Line::PassedOver { .. } | Line::Unmarked => self.passed_over(),
            Line::Bad(why) => {
                self.metrics.bad_line();
                // Once, and whenever their number has doubled.
                match self.read.bad.is_power_of_two() {
                    true => event(json!({"event": "bad_line", "n": self.read.bad, "says": why})),
                    false => Ok(()),
                }
            }
        }
    }

    /// Says so if nothing else has come, whenever the number of such lines has doubled.
    fn passed_over(&self) -> Result<(), Failure> {
        match self.read.lines >= PASSED_OVER_MIN && self.read.lines.is_power_of_two() {
            true => self.nothing_kept(),
            false => Ok(()),
        }
    }

    fn nothing_kept(&self) -> Result<(), Failure> {
        match self.read.nothing_kept(&self.plan.format) {
            Some(why) => event(json!({"event": "only_keeps_nothing", "says": why})),
            None => Ok(()),
        }
    }

    fn tell(&mut self, request: &Request, seen: &Observation) -> Result<(), Failure> {
        for notice in &seen.notices {
            // What was too fast so far was computed, by another machine.
            if matches!(
                notice,
                Notice::Mixture { .. } | Notice::Relearning { .. } | Notice::Growing
            ) {
                self.by_time.remove(&Key::of(request));
            }
            event(json!({
                "event": notice.kind(), "time_unix_s": request.time, "model": request.model,
                "worker": request.worker, "says": notice.to_string(),
            }))?;
        }
        if seen.judged.signals.is_empty() {
            return Ok(());
        }
        let test = self.watch.settings().test_tenants.contains(&request.tenant);
        let by_time = matches!(seen.judged.signals[..], [Anomaly::TooFast { .. }]);
        match (test, by_time) {
            (true, _) => {}
            (false, true) if seen.suspected => {}
            (false, true) if self.by_time.len() < SERIES_MAX => {
                self.by_time.insert(Key::of(request));
            }
            (false, _) => self.found = true,
        }
        let what = match seen.suspected {
            true => "suspected",
            false => "cannot_be_right",
        };
        let signals: Vec<_> = seen.judged.signals.iter().map(Anomaly::json).collect();
        event(json!({
            "event": what, "time_unix_s": request.time, "request": request.id,
            "tenant": request.tenant, "of_test": test, "model": request.model,
            "worker": request.worker, "prompt_tokens": request.prompt_tokens,
            "signals": signals,
        }))
    }

    async fn scrape(&mut self, scraper: &mut Scraper) -> Result<(), Failure> {
        let (rises, troubles) = scraper.read().await;
        for it in rises {
            self.found = true;
            event(json!({
                "event": "counter_rose", "node": it.node, "counter": it.counter, "by": it.by,
                "says": it.means, "coarse": true,
            }))?;
        }
        for (node, trouble) in troubles {
            event(json!({"event": "not_read", "node": node, "says": trouble.to_string()}))?;
        }
        Ok(())
    }

    fn keep(&self, args: &Args) -> Result<(), Failure> {
        match &args.state {
            Some(path) => memory::keep(path, self.position, &self.watch),
            None => Ok(()),
        }
    }

    /// As of a log that has ended; only that what is too fast, and may be a cache hit, was found.
    fn exit(&mut self) -> Result<Exit, Failure> {
        if self.found || !self.by_time.is_empty() {
            return Ok(Exit::Found);
        }
        let kept_nothing = self.read.nothing_kept(&self.plan.format);
        let mut blind = match self.findings.requests {
            0 => Vec::from_iter(kept_nothing), // or counters alone were watched, or nothing has come
            _ => sight::blind(&mut self.watch, &self.findings),
        };
        if !blind.is_empty() && self.findings.compared == 0 {
            blind.extend(self.plan.format.lacks());
        }
        if !blind.is_empty() {
            event(json!({"event": "could_not_tell", "says": blind.join("; ")}))?;
        }
        match self.read.is_doubtful() || !blind.is_empty() {
            true => Ok(Exit::Unreachable),
            false => Ok(Exit::Good),
        }
    }
}

fn event(value: Value) -> Result<(), Failure> {
    files::say(&format!("{value}\n")).map(|_| ())
}
