//! Files that are read again while the gateway runs: keys and certificates.
//!
//! They are looked at every second. What has changed is read when it has been the same for one look, so
//! that nobody is let in or kept out by half a file; on SIGHUP everything is read at once. What cannot be
//! used changes nothing.

use crate::exit::Failure;
use anyhow::Context;
use gateway::api::Reloads;
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;
use std::time::Duration;
use tokio::signal::unix::{Signal, SignalKind, signal};

/// How often files are looked at.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// What tells one state of a file from another; none: it is not there.
pub(crate) type Look = Option<(u64, u64, u64, i64, i64)>;

/// Files that mean something together only.
pub(crate) struct Reload {
    what: &'static str,
    files: Vec<PathBuf>,
    take: Box<dyn FnMut() -> anyhow::Result<String> + Send>,
    taken: Vec<Look>,
    last: Vec<Look>,
}

impl Reload {
    /// `now` is how they looked before they were read for the first time. `take` reads them, and says
    /// what counts from now on.
    pub(crate) fn new(
        what: &'static str,
        (files, now): (Vec<PathBuf>, Vec<Look>),
        take: impl FnMut() -> anyhow::Result<String> + Send + 'static,
    ) -> Self {
        let take = Box::new(take);
        Self {
            what,
            files,
            take,
            taken: now.clone(),
            last: now,
        }
    }

    fn pass(&mut self, asked: bool, counts: &Reloads) {
        let now = look(&self.files);
        let settled = now == std::mem::replace(&mut self.last, now.clone());
        if !asked && (!settled || now == self.taken) {
            return;
        }
        self.taken = now;
        let result = (self.take)();
        counts.count(self.what, result.is_ok());
        match result {
            Ok(said) => tracing::info!("{} read again: {said}", self.what),
            Err(why) => tracing::warn!(
                "{} read again, and what was there before stays: {why:#}",
                self.what
            ),
        }
    }
}

/// How files look now.
pub(crate) fn look(files: &[PathBuf]) -> Vec<Look> {
    let one = |path: &PathBuf| {
        let it = std::fs::metadata(path).ok()?;
        Some((it.dev(), it.ino(), it.size(), it.mtime(), it.mtime_nsec()))
    };
    files.iter().map(one).collect()
}

/// Looks at files until it is dropped.
pub(crate) struct Reloading {
    all: Vec<Reload>,
    counts: Reloads,
    hangup: Signal,
}

impl Reloading {
    /// From now on SIGHUP does not end the process. None if there is nothing to read again.
    pub(crate) fn new(all: Vec<Reload>, counts: Reloads) -> Result<Option<Self>, Failure> {
        if all.is_empty() {
            return Ok(None);
        }
        let hangup = signal(SignalKind::hangup()).context("cannot listen to signals");
        let hangup = hangup.map_err(Failure::found)?;
        Ok(Some(Self {
            all,
            counts,
            hangup,
        }))
    }

    pub(crate) async fn run<T>(mut self) -> T {
        let mut every = tokio::time::interval(LOOK_EVERY);
        loop {
            let asked = tokio::select! {
                _ = every.tick() => false,
                _ = self.hangup.recv() => true,
            };
            for one in &mut self.all {
                one.pass(asked, &self.counts);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc::channel;

    /// What stands in a file meanwhile is a file of keys, too: nothing of it counts while it grows.
    #[test]
    fn a_file_that_is_written_slowly_is_read_when_it_has_stayed_the_same_for_a_look() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("keys");
        let mut text = "red k-red\n".to_owned();
        let mut write = |more: &str| {
            text += more;
            std::fs::write(dir.path().join("keys"), &text).unwrap();
        };
        write("");
        let files = vec![file.clone()];
        let now = look(&files);
        let (told, read) = channel();
        let take = move || {
            told.send(std::fs::read_to_string(&file)?)?;
            Ok(String::new())
        };
        let mut reload = Reload::new("keys", (files, now), take);
        let counts = Reloads::default();
        for _ in 0..3 {
            write("# more\n");
            reload.pass(false, &counts);
            assert!(read.try_recv().is_err(), "half of the file");
        }
        write("green k-green\n");
        reload.pass(false, &counts);
        assert!(read.try_recv().is_err(), "it may still grow");
        reload.pass(false, &counts);
        assert!(read.try_recv().unwrap().ends_with("green k-green\n"));
        reload.pass(false, &counts);
        assert!(read.try_recv().is_err(), "nothing has changed");
        // Who asks gets what is there.
        write("# more\n");
        reload.pass(true, &counts);
        assert!(read.try_recv().unwrap().ends_with("# more\n"));
    }
}
