//! Who had which page before whom: one JSON object a line, ids only. What lay in a page when its next
//! owner got it was the previous owner's text, so that after a fault these lines say whose text somebody
//! *may* have received (docs/watch.md, "Whose text it may have been").
//!
//! A ring: when half of the bytes are written the file becomes `FILE.1`, over the one before, and a new
//! one begins. Its first line says from when on it knows.

use pages::Epoch;
use serde::Serialize;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

/// Bytes of both files of one life.
pub const OWNERS_MAX: u64 = 64 << 20;

/// Whoever has a page: an attempt of a gateway's life, or a request of an engine in one process.
pub type PageOwner = (Epoch, u64);

/// Where the lines of one life go.
#[derive(Debug)]
pub struct OwnersLog {
    path: PathBuf,
    file: File,
    /// What every first line says.
    role: &'static str,
    epoch: String,
    written: u64,
    max: u64,
    /// Lines that could not be written since the last that could.
    lost: u64,
    /// The last owner of each page that memory knows of.
    pages: Vec<Option<PageOwner>>,
}

impl OwnersLog {
    /// Begins the lines of a life in this directory, which is made; no other life has its file.
    ///
    /// # Errors
    /// It cannot be written, or is there.
    pub fn create(dir: &Path, role: &'static str, epoch: Epoch) -> io::Result<Self> {
        fs::create_dir_all(dir)?;
        let path = dir.join(format!("{role}-{epoch}.owners"));
        Self::with_bytes(&path, role, epoch, OWNERS_MAX)
    }

    fn with_bytes(
        path: &Path,
        role: &'static str,
        epoch: impl ToString,
        max: u64,
    ) -> io::Result<Self> {
        let file = open(path)?;
        let mut log = Self {
            path: path.to_owned(),
            file,
            role,
            epoch: epoch.to_string(),
            written: 0,
            max,
            lost: 0,
            pages: Vec::new(),
        };
        log.first_line(true)?;
        Ok(log)
    }

    /// An owner has these pages; said of those that it did not have before.
    pub fn took(&mut self, owner: PageOwner, pages: impl Iterator<Item = usize>) {
        let mut fresh = Vec::new();
        let mut from: BTreeMap<PageOwner, Vec<usize>> = BTreeMap::new();
        for page in pages {
            if page >= self.pages.len() {
                self.pages.resize(page + 1, None);
            }
            match self.pages[page].replace(owner) {
                Some(same) if same == owner => {}
                Some(before) => from.entry(before).or_default().push(page),
                None => fresh.push(page),
            }
        }
        if fresh.is_empty() && from.is_empty() {
            return;
        }
        let from: BTreeMap<_, _> = from
            .into_iter()
            .map(|(it, pages)| (self.name(it), pages))
            .collect();
        let mut line = json!({ self.what(): self.name(owner), "from": from });
        if !fresh.is_empty() {
            line["fresh"] = json!(fresh);
        }
        self.write(line);
    }

    /// The content of a page is gone: nobody's text is in it.
    pub fn erased(&mut self, page: usize) {
        if let Some(owner) = self.pages.get_mut(page) {
            *owner = None;
        }
    }

    /// Which request an attempt belongs to.
    pub fn belongs(&mut self, attempt: &impl ToString, request: &impl ToString) {
        self.write(json!({"attempt": attempt.to_string(), "request": request.to_string()}));
    }

    /// What an owner is called, as everywhere else.
    fn name(&self, (epoch, n): PageOwner) -> String {
        match self.role {
            "unified" => format!("{epoch}.{n}"),
            _ => format!("{epoch}-{n}"),
        }
    }

    fn what(&self) -> &'static str {
        match self.role {
            "unified" => "request",
            _ => "attempt",
        }
    }

    fn first_line(&mut self, whole: bool) -> io::Result<()> {
        #[derive(Serialize)]
        struct First<'a> {
            owners: u32,
            role: &'a str,
            epoch: &'a str,
            since_unix_s: f64,
            /// Whether the life began here; otherwise older lines were written over.
            from_the_beginning: bool,
        }
        let first = First {
            owners: 1,
            role: self.role,
            epoch: &self.epoch,
            since_unix_s: now(),
            from_the_beginning: whole,
        };
        let line = serde_json::to_string(&first).expect("text and numbers") + "\n";
        self.file.write_all(line.as_bytes())?;
        self.written = line.len() as u64;
        Ok(())
    }

    /// That a line cannot be written is said on the log and in the next line that can.
    fn write(&mut self, mut line: Value) {
        line["time_unix_s"] = json!(now());
        if self.lost > 0 {
            line["lost_lines"] = json!(self.lost);
        }
        let line = format!("{line}\n");
        let done = self.turn(line.len() as u64);
        let done = done.and_then(|()| self.file.write_all(line.as_bytes()));
        match done {
            Ok(()) => {
                self.written += line.len() as u64;
                self.lost = 0;
            }
            Err(error) => {
                if self.lost.is_power_of_two() || self.lost == 0 {
                    let path = self.path.display();
                    tracing::error!(%error, %path, lost = self.lost + 1, "who has which page is not written down");
                }
                self.lost += 1;
            }
        }
    }

    /// Begins the next file if this one is full.
    fn turn(&mut self, more: u64) -> io::Result<()> {
        if self.written + more <= self.max / 2 {
            return Ok(());
        }
        let mut old = self.path.clone().into_os_string();
        old.push(".1");
        fs::rename(&self.path, old)?;
        self.file = open(&self.path)?;
        self.first_line(false)
    }
}

fn open(path: &Path) -> io::Result<File> {
    let mut options = File::options();
    options.create_new(true).append(true).mode(0o600).open(path)
}

fn now() -> f64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    (now.unwrap_or_default().as_secs_f64() * 1e3).round() / 1e3
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(path: &Path) -> Vec<Value> {
        let text = fs::read_to_string(path).unwrap();
        text.lines()
            .map(|it| serde_json::from_str(it).unwrap())
            .collect()
    }

    #[test]
    fn a_page_that_goes_on_says_whose_it_was_and_one_that_stays_says_nothing() {
        let dir = tempfile::tempdir().unwrap();
        let epoch = Epoch::new(10 << 80);
        let path = dir.path().join("decode-00000000000a.owners");
        let mut log = OwnersLog::create(dir.path(), "decode", epoch).unwrap();
        let (a, b) = ((epoch, 1), (epoch, 2));
        log.took(a, [0, 1, 2].into_iter());
        log.took(a, [0, 1, 2].into_iter());
        log.took(b, [1, 2, 3].into_iter());
        log.erased(3);
        log.took(a, [0, 3].into_iter());
        log.belongs(&"10-1", &"10-7");
        let found = lines(&path);
        assert_eq!(found[0]["role"], "decode");
        assert_eq!(found[0]["from_the_beginning"], true);
        let names = ["00000000000a-1", "00000000000a-2"];
        assert_eq!(
            (&found[1]["attempt"], &found[1]["fresh"]),
            (&json!(names[0]), &json!([0, 1, 2]))
        );
        assert_eq!(
            (&found[2]["attempt"], &found[2]["from"]),
            (&json!(names[1]), &json!({names[0]: [1, 2]}))
        );
        assert_eq!(found[2]["fresh"], json!([3]));
        assert_eq!(
            (&found[3]["from"], &found[3]["fresh"]),
            (&json!({}), &json!([3]))
        );
        assert_eq!(found[4]["request"], "10-7");
        assert_eq!(found.len(), 5);
        assert!(
            OwnersLog::create(dir.path(), "decode", epoch).is_err(),
            "evidence is not written over"
        );
    }

    #[test]
    fn the_ring_keeps_its_bytes_and_says_from_when_on_it_knows() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("o");
        let mut log = OwnersLog::with_bytes(&path, "unified", "e", 4096).unwrap();
        for n in 0..1000 {
            log.took((Epoch::new(1 << 80), n), [0].into_iter());
        }
        let old = dir.path().join("o.1");
        let bytes = [&path, &old].map(|it| fs::metadata(it).unwrap().len());
        assert!(bytes.iter().all(|it| *it <= 2048), "{bytes:?}");
        for path in [&path, &old] {
            let found = lines(path);
            assert_eq!(found[0]["from_the_beginning"], false);
            assert!(found.len() > 5);
        }
        assert_eq!(lines(&path).last().unwrap()["request"], "000000000001.999");
    }

    #[test]
    fn what_could_not_be_written_is_counted_in_the_next_line() {
        let dir = tempfile::tempdir().unwrap();
        let place = dir.path().join("d");
        fs::create_dir(&place).unwrap();
        let path = place.join("o");
        let mut log = OwnersLog::with_bytes(&path, "decode", "e", 400).unwrap();
        fs::rename(&place, dir.path().join("away")).unwrap();
        for n in 0..5 {
            log.took((Epoch::new(1), n), [0].into_iter()); // the first still fits, or none does
        }
        let lost = log.lost;
        assert!(lost > 2);
        fs::rename(dir.path().join("away"), &place).unwrap();
        log.took((Epoch::new(1), 9), [0].into_iter());
        assert_eq!(lines(&path).last().unwrap()["lost_lines"], lost);
        assert_eq!(log.lost, 0);
    }
}
