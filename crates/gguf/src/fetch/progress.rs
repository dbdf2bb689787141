//! Shows that a download moves: a bar on a terminal, a line now and then elsewhere.

use indicatif::{ProgressBar, ProgressStyle};
use std::time::{Duration, Instant};

/// Pause between two lines where there is no terminal.
const LINE_EVERY: Duration = Duration::from_secs(2);

/// How far something of a known size is.
pub(super) struct Progress {
    what: String,
    bytes_total: u64,
    bar: ProgressBar,
    last_line: Instant,
}

impl Progress {
    pub(super) fn new(what: String, bytes_total: u64) -> Progress {
        let bar = ProgressBar::new(bytes_total);
        let style = "{msg} [{bar:30}] {bytes}/{total_bytes} {bytes_per_sec}";
        let style = ProgressStyle::with_template(style).expect("a constant template");
        bar.set_style(style.progress_chars("=> "));
        bar.set_message(what.clone());
        if bar.is_hidden() {
            eprintln!("{what} ({})", megabytes(bytes_total));
        }
        Progress {
            what,
            bytes_total,
            bar,
            last_line: Instant::now(),
        }
    }

    /// So many bytes are there by now.
    pub(super) fn at(&mut self, bytes: u64) {
        self.bar.set_position(bytes.min(self.bytes_total));
        if self.bar.is_hidden() && self.last_line.elapsed() >= LINE_EVERY {
            self.last_line = Instant::now();
            eprintln!("{}: {}", self.what, so_far(bytes, self.bytes_total));
        }
    }

    pub(super) fn finish(&self) {
        self.bar.finish_and_clear();
    }
}

/// pip has the file twice for a moment: what is there then is more than what comes.
fn so_far(bytes: u64, total: u64) -> String {
    format!("{} of {}", megabytes(bytes.min(total)), megabytes(total))
}

fn megabytes(bytes: u64) -> String {
    format!("{:.1} MB", bytes as f64 / 1e6)
}

#[cfg(test)]
mod tests {
    use super::so_far;

    #[test]
    fn it_is_never_more_than_all() {
        assert_eq!(so_far(46_450_000, 92_900_000), "46.5 MB of 92.9 MB");
        assert_eq!(so_far(142_700_000, 92_900_000), "92.9 MB of 92.9 MB");
    }
}
