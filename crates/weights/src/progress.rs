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
            let (now, total) = (megabytes(bytes), megabytes(self.bytes_total));
            eprintln!("{}: {now} of {total}", self.what);
        }
    }

    pub(super) fn finish(&self) {
        self.bar.finish_and_clear();
    }
}

fn megabytes(bytes: u64) -> String {
    format!("{:.1} MB", bytes as f64 / 1e6)
}
