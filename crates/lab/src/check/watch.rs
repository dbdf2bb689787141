//! How it goes, on standard error: a line for each search that is written over on a terminal, now and
//! then a line of its own elsewhere.

use crate::search::Progress;
use indicatif::{MultiProgress, ProgressBar, ProgressStyle};
use std::io::IsTerminal;
use std::time::Duration;

/// Time between two plain lines.
const PAUSE: Duration = Duration::from_secs(10);

/// Shows the progress of searches.
pub(super) struct Watches {
    quiet: bool,
    bars: MultiProgress,
}

/// Shows that of one.
pub(super) struct Watch {
    name: String,
    bar: Option<ProgressBar>,
    said: Duration,
}

impl Watches {
    pub(super) fn new(quiet: bool) -> Self {
        let bars = MultiProgress::new();
        Self { quiet, bars }
    }

    pub(super) fn of(&self, name: String) -> Watch {
        let bar = (!self.quiet && std::io::stderr().is_terminal()).then(|| {
            let style = ProgressStyle::with_template("{spinner} {msg}").expect("a valid template");
            self.bars.add(ProgressBar::new_spinner().with_style(style))
        });
        let said = if self.quiet {
            Duration::MAX
        } else {
            Duration::ZERO
        };
        Watch { name, bar, said }
    }

    /// A line on standard output.
    pub(super) fn say(&self, line: &str) {
        self.bars.suspend(|| println!("{line}"));
    }
}

impl Watch {
    pub(super) fn see(&mut self, now: &Progress) {
        if let Some(bar) = &self.bar {
            bar.set_message(line(&self.name, now));
            bar.tick();
        } else if now.elapsed >= self.said.saturating_add(PAUSE) {
            self.said = now.elapsed;
            eprintln!("{}", line(&self.name, now));
        }
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }
}

fn line(name: &str, now: &Progress) -> String {
    let seconds = now.elapsed.as_secs_f64();
    let rate = now.states as f64 / seconds.max(1e-3);
    format!(
        "{name}: {} states, {}/s, {} steps, depth {}, queue {}, {:.1} GiB, {seconds:.0} s",
        number(now.states as u64),
        number(rate as u64),
        number(now.steps),
        now.depth,
        number(now.queue as u64),
        now.resident as f64 / f64::from(1 << 30),
    )
}

/// 1234567 as 1,234,567.
pub(super) fn number(n: u64) -> String {
    let digits = n.to_string();
    let mut said = String::new();
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at).is_multiple_of(3) {
            said.push(',');
        }
        said.push(digit);
    }
    said
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_readable() {
        let said: Vec<String> = [0, 12, 999, 1000, 1_234_567].map(number).to_vec();
        assert_eq!(said, ["0", "12", "999", "1,000", "1,234,567"]);
    }
}
