//! The file: a SQLite database in WAL mode that several processes may use at once.
//!
//! Three tables. `journal` holds what was found out and done, as chained lines; nothing in it is ever
//! changed, and a trigger says so. `served` (who was answered by which lives) and `canaries` (counts of
//! minutes) are there to be looked up, and their oldest rows go when they are old or the file is full.

use crate::chain::{self, ChainBroken, ChainLine, NONE, Verifier};
use crate::entry::{Dated, Entry, Life};
use crate::served::{AFTER_TEXT, Canaried, Served};
use crate::times::Ms;
use rusqlite::{
    Connection, ErrorCode, OptionalExtension, Transaction, TransactionBehavior, params,
};
use std::collections::BTreeMap;
use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// What is written in a file's header, so that no other program's database is taken for ours.
const APPLICATION: i32 = 0x0C0F_FE4D;
/// Version of the tables.
const VERSION: i32 = 1;
/// How long one process waits for another's write to end.
const BUSY: Duration = Duration::from_secs(5);
/// Bytes of a page of the file.
const PAGE: u64 = 4096;
/// Requests that are named as affected; further ones are counted.
pub const AFFECTED_MAX: usize = 10_000;
/// Tenants that are named with them.
const TENANTS_MAX: usize = 1_000;

/// Requests that a fault may have met.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Met {
    /// Those that are named.
    pub requests: Vec<String>,
    /// Those that are not.
    pub more: u64,
    /// How many of them all are whose.
    pub tenants: BTreeMap<String, u64>,
    /// When the first and the last of them ended.
    pub between: Option<(Ms, Ms)>,
}

const TABLES: &str = "
CREATE TABLE journal(seq INTEGER PRIMARY KEY, id TEXT NOT NULL UNIQUE, line TEXT NOT NULL) STRICT;
CREATE TRIGGER journal_changes BEFORE UPDATE ON journal
  BEGIN SELECT RAISE(ABORT, 'the journal is appended to, and never changed'); END;
CREATE TRIGGER journal_loses BEFORE DELETE ON journal
  BEGIN SELECT RAISE(ABORT, 'the journal is appended to, and never changed'); END;
CREATE TABLE served(request TEXT PRIMARY KEY, at INTEGER NOT NULL, tenant TEXT NOT NULL,
  prompt_tokens INTEGER NOT NULL, prefill TEXT NOT NULL, prefill_life TEXT NOT NULL,
  decode TEXT NOT NULL, decode_life TEXT NOT NULL, outcome TEXT NOT NULL) STRICT, WITHOUT ROWID;
CREATE INDEX served_at ON served(at);
CREATE TABLE canaries(minute INTEGER NOT NULL, pair TEXT NOT NULL, life TEXT NOT NULL,
  sent INTEGER NOT NULL, telling INTEGER NOT NULL, seen INTEGER NOT NULL, found INTEGER NOT NULL,
  tokens INTEGER NOT NULL, PRIMARY KEY(minute, pair, life)) STRICT, WITHOUT ROWID;
";

/// How much is kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bounds {
    /// Bytes of the file; beside it stands a log of a few megabytes.
    pub bytes: u64,
    /// How long requests and canaries are kept, in milliseconds. The journal itself is kept.
    pub keep_ms: u64,
}

impl Default for Bounds {
    /// 256 MiB, 30 days.
    fn default() -> Self {
        Self {
            bytes: 256 << 20,
            keep_ms: 30 * 24 * 3_600_000,
        }
    }
}

/// Why a journal cannot be used, or something not be written.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum JournalError {
    /// The file is of something else.
    #[error(
        "{0} is no journal of cofferdam's: give the path of one, or of a file that is not there"
    )]
    Foreign(PathBuf),
    /// It was written by a newer version.
    #[error(
        "{path} has tables of version {found}, this cofferdam knows {VERSION}: use the newer one"
    )]
    Newer {
        /// Which file.
        path: PathBuf,
        /// Its version.
        found: i32,
    },
    /// It is damaged, or was changed by hand.
    #[error("the journal is not whole: {0}")]
    Broken(#[from] ChainBroken),
    /// Another process has it.
    #[error("{0} is kept by another gateway: each keeps one of its own")]
    Kept(PathBuf),
    /// Another process has been writing for too long.
    #[error("another process has been writing to it for more than {} s: try again", BUSY.as_secs())]
    Busy,
    /// No room.
    #[error("no room for it: the disk is full, or the journal has reached its {0} bytes")]
    Full(u64),
    /// The file system.
    #[error("{}: {why}", path.display())]
    File {
        /// Which file.
        path: PathBuf,
        /// What it says.
        why: io::Error,
    },
    /// Anything else that SQLite says.
    #[error("SQLite: {0}")]
    Sql(rusqlite::Error),
}

/// An open journal.
pub struct Journal {
    path: PathBuf,
    connection: Connection,
    bounds: Bounds,
    /// Held while a gateway runs.
    kept: Option<File>,
}

type Result<T> = std::result::Result<T, JournalError>;

impl Journal {
    /// Opens a journal, or begins one.
    ///
    /// # Errors
    /// See [`JournalError`].
    pub fn open(path: &Path, bounds: Bounds) -> Result<Self> {
        let error = |why| of_sql(why, bounds);
        let connection = Connection::open(path).map_err(error)?;
        connection.busy_timeout(BUSY).map_err(error)?;
        let mut journal = Self {
            path: path.to_owned(),
            connection,
            bounds,
            kept: None,
        };
        journal.prepare()?;
        Ok(journal)
    }

    /// The same, of a file that must be there.
    ///
    /// # Errors
    /// See [`JournalError`].
    pub fn open_existing(path: &Path, bounds: Bounds) -> Result<Self> {
        let there = std::fs::metadata(path);
        there.map_err(|why| JournalError::File {
            path: path.to_owned(),
            why,
        })?;
        Self::open(path, bounds)
    }

    fn prepare(&mut self) -> Result<()> {
        let bounds = self.bounds;
        let error = |why| of_sql(why, bounds);
        let foreign = |why: rusqlite::Error| match why.sqlite_error_code() {
            Some(ErrorCode::NotADatabase) => JournalError::Foreign(self.path.clone()),
            _ => of_sql(why, bounds),
        };
        let number = |name: &str| -> rusqlite::Result<i32> {
            self.connection
                .pragma_query_value(None, name, |row| row.get(0))
        };
        let tables: i64 = self
            .connection
            .query_row("SELECT count(*) FROM sqlite_master", [], |row| row.get(0))
            .map_err(foreign)?;
        let application = number("application_id").map_err(error)?;
        if tables > 0 && application != APPLICATION {
            return Err(JournalError::Foreign(self.path.clone()));
        }
        let version = number("user_version").map_err(error)?;
        if version > VERSION {
            return Err(JournalError::Newer {
                path: self.path.clone(),
                found: version,
            });
        }
        let settings = format!(
            "PRAGMA journal_mode=WAL; PRAGMA synchronous=FULL; PRAGMA journal_size_limit=4194304; \
             PRAGMA max_page_count={};",
            (self.bounds.bytes / PAGE).max(16)
        );
        // Some of these answer with a row, which `execute_batch` passes over.
        self.connection.execute_batch(&settings).map_err(error)?;
        // Under a lock, for two processes may begin one at once.
        self.write(|begun| {
            let there: i64 =
                begun.query_row("SELECT count(*) FROM sqlite_master", [], |row| row.get(0))?;
            if there == 0 {
                begun.execute_batch(TABLES)?;
                begun.pragma_update(None, "application_id", APPLICATION)?;
                begun.pragma_update(None, "user_version", VERSION)?;
            }
            Ok(())
        })
    }

    /// From now on this process is the one that keeps it.
    ///
    /// # Errors
    /// Another one is.
    pub fn keep(&mut self) -> Result<()> {
        let mut path = self.path.clone().into_os_string();
        path.push(".lock");
        let path = PathBuf::from(path);
        let file = OpenOptions::new()
            .create(true)
            .truncate(false)
            .write(true)
            .open(&path);
        let file = file.map_err(|why| JournalError::File { path, why })?;
        if file.try_lock().is_err() {
            return Err(JournalError::Kept(self.path.clone()));
        }
        self.kept = Some(file);
        Ok(())
    }

    /// All of it or nothing, while no other process writes.
    fn write<T>(&mut self, work: impl FnOnce(&Transaction) -> rusqlite::Result<T>) -> Result<T> {
        let bounds = self.bounds;
        let write = || {
            let behavior = TransactionBehavior::Immediate;
            let transaction = self.connection.transaction_with_behavior(behavior)?;
            let done = work(&transaction)?;
            transaction.commit().map(|()| done)
        };
        write().map_err(|why| of_sql(why, bounds))
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Appends entries, all of them or none; those whose name is there already were written before.
    /// Says the number and hash of the last line.
    ///
    /// # Errors
    /// See [`JournalError`].
    pub fn append(&mut self, entries: &[(String, Dated)]) -> Result<(u64, String)> {
        self.write(|write| {
            let last: Option<(u64, String)> = write
                .query_row(
                    "SELECT seq, line FROM journal ORDER BY seq DESC LIMIT 1",
                    [],
                    |row| Ok((row.get(0)?, row.get(1)?)),
                )
                .optional()?;
            let mut last = match last {
                None => (0, NONE.to_owned()),
                Some((seq, line)) => (seq, chain::hash(&line)),
            };
            let mut insert = write.prepare_cached(
                "INSERT INTO journal(seq, id, line) SELECT ?1, ?2, ?3 \
                 WHERE NOT EXISTS (SELECT 1 FROM journal WHERE id = ?2)",
            )?;
            for (id, dated) in entries {
                let line = ChainLine::after((last.0, &last.1), id, dated.at, dated.entry.clone());
                let text = line.text();
                if insert.execute(params![line.seq, id, text])? > 0 {
                    last = (line.seq, chain::hash(&text));
                }
            }
            Ok(last)
        })
    }

    /// Entries behind this number, with theirs. All of them are checked; what was read before is not.
    ///
    /// # Errors
    /// See [`JournalError`].
    pub fn after(&self, seq: u64) -> Result<Vec<(u64, Dated)>> {
        let lines = self.lines(seq)?;
        let read = lines.into_iter().map(|(seq, text)| {
            let broken = |why: String| JournalError::Broken(ChainBroken { line: seq, why });
            let line: ChainLine =
                serde_json::from_str(&text).map_err(|why| broken(why.to_string()))?;
            Ok((seq, line.dated().map_err(broken)?))
        });
        read.collect()
    }

    /// Reads and checks everything.
    ///
    /// # Errors
    /// See [`JournalError`].
    pub fn read(&self) -> Result<(Vec<(u64, Dated)>, String)> {
        let mut verifier = Verifier::default();
        let mut entries = Vec::new();
        for (seq, text) in self.lines(0)? {
            let line = verifier.next(&text)?;
            let dated = line.dated().map_err(|why| ChainBroken { line: seq, why })?;
            entries.push((seq, dated));
        }
        Ok((entries, verifier.head().to_owned()))
    }

    fn lines(&self, after: u64) -> Result<Vec<(u64, String)>> {
        let error = |why| of_sql(why, self.bounds);
        let mut select = self
            .connection
            .prepare_cached("SELECT seq, line FROM journal WHERE seq > ?1 ORDER BY seq")
            .map_err(error)?;
        let rows = select.query_map([after], |row| Ok((row.get(0)?, row.get(1)?)));
        rows.and_then(Iterator::collect).map_err(error)
    }

    /// Writes all lines as they are.
    ///
    /// # Errors
    /// See [`JournalError`].
    pub fn export(&self, to: &mut impl Write) -> Result<String> {
        let mut verifier = Verifier::default();
        for (_, text) in self.lines(0)? {
            verifier.next(&text)?;
            writeln!(to, "{text}").map_err(|why| JournalError::File {
                path: self.path.clone(),
                why,
            })?;
        }
        Ok(verifier.head().to_owned())
    }

    /// Keeps who was answered by whom.
    ///
    /// # Errors
    /// See [`JournalError`].
    pub fn serve(&mut self, rows: &[Served]) -> Result<()> {
        self.make_room()?;
        self.write(|write| {
            let mut insert = write.prepare_cached(
                "INSERT OR IGNORE INTO served VALUES(?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9)",
            )?;
            for row in rows {
                insert.execute(params![
                    row.request,
                    row.at,
                    row.tenant,
                    row.prompt_tokens,
                    row.prefill.0,
                    row.prefill.1,
                    row.decode.0,
                    row.decode.1,
                    row.outcome
                ])?;
            }
            Ok(())
        })
    }

    /// Adds counts of canaries to their minutes.
    ///
    /// # Errors
    /// See [`JournalError`].
    pub fn canaried(&mut self, rows: &[Canaried]) -> Result<()> {
        self.write(|write| {
            let mut insert = write.prepare_cached(
                "INSERT INTO canaries VALUES(?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8) ON CONFLICT DO UPDATE SET \
                 sent = sent + excluded.sent, telling = telling + excluded.telling, \
                 seen = seen + excluded.seen, found = found + excluded.found, \
                 tokens = tokens + excluded.tokens",
            )?;
            for row in rows {
                insert.execute(params![
                    row.minute,
                    row.pair,
                    row.life,
                    row.sent,
                    row.telling,
                    row.seen,
                    row.foreign,
                    row.tokens
                ])?;
            }
            Ok(())
        })
    }

    /// Canaries of all minutes since then, minute by minute.
    ///
    /// # Errors
    /// See [`JournalError`].
    pub fn canaries(&self, since: u64) -> Result<Vec<Canaried>> {
        let error = |why| of_sql(why, self.bounds);
        let mut select = self
            .connection
            .prepare_cached("SELECT * FROM canaries WHERE minute >= ?1 ORDER BY minute")
            .map_err(error)?;
        let rows = select.query_map([since], |row| {
            Ok(Canaried {
                minute: row.get(0)?,
                pair: row.get(1)?,
                life: row.get(2)?,
                sent: row.get(3)?,
                telling: row.get(4)?,
                seen: row.get(5)?,
                foreign: row.get(6)?,
                tokens: row.get(7)?,
            })
        });
        rows.and_then(Iterator::collect).map_err(error)
    }

    /// Requests with prompts of at least so many tokens that these lives have answered; canaries are
    /// nobody. Named up to [`AFFECTED_MAX`], and how many more there are.
    ///
    /// # Errors
    /// See [`JournalError`].
    pub fn affected(&self, lives: &[Life], at_least: u64, nobody: &[String]) -> Result<Met> {
        let error = |why| of_sql(why, self.bounds);
        let mut select = self
            .connection
            .prepare_cached(
                "SELECT request, tenant, prefill, prefill_life, decode, decode_life, at FROM served \
                 WHERE prompt_tokens >= ?1 AND (outcome = 'ok' OR outcome LIKE '%' || ?2) ORDER BY at, request",
            )
            .map_err(error)?;
        let mut rows = select.query((at_least, AFTER_TEXT)).map_err(error)?;
        let mut met = Met::default();
        while let Some(row) = rows.next().map_err(error)? {
            let get = |n| row.get::<_, String>(n).map_err(error);
            let of = |engine: String, life: String| lives.contains(&Life { engine, life });
            let tenant = get(1)?;
            if nobody.contains(&tenant) || !(of(get(2)?, get(3)?) || of(get(4)?, get(5)?)) {
                continue;
            }
            match met.requests.len() < AFFECTED_MAX {
                true => met.requests.push(get(0)?),
                false => met.more += 1,
            }
            let at = row.get(6).map_err(error)?;
            met.between = Some((met.between.map_or(at, |(first, _)| first), at));
            // Of more tenants than that the rest is one.
            let known = met.tenants.len() < TENANTS_MAX || met.tenants.contains_key(&tenant);
            let tenant = if known { tenant } else { "(others)".to_owned() };
            *met.tenants.entry(tenant).or_default() += 1;
        }
        Ok(met)
    }

    /// Since when it is known who was answered by whom; none if nobody was.
    ///
    /// # Errors
    /// See [`JournalError`].
    pub fn served_since(&self) -> Result<Option<Ms>> {
        let read = self
            .connection
            .query_row("SELECT min(at) FROM served", [], |row| row.get(0));
        read.map_err(|why| of_sql(why, self.bounds))
    }

    /// Takes out what is too old.
    ///
    /// # Errors
    /// See [`JournalError`].
    pub fn forget(&mut self, now: Ms) -> Result<()> {
        let error = |why| of_sql(why, self.bounds);
        let oldest = now.saturating_sub(self.bounds.keep_ms);
        self.connection
            .execute("DELETE FROM served WHERE at < ?1", [oldest])
            .map_err(error)?;
        self.connection
            .execute("DELETE FROM canaries WHERE minute < ?1", [oldest / 60_000])
            .map_err(error)?;
        Ok(())
    }

    /// The last quarter of the file is the journal's: the oldest requests go first.
    fn make_room(&mut self) -> Result<()> {
        let error = |why| of_sql(why, self.bounds);
        let number = |name: &str| -> Result<u64> {
            let read = self
                .connection
                .pragma_query_value(None, name, |row| row.get(0));
            read.map_err(error)
        };
        let used = number("page_count")?.saturating_sub(number("freelist_count")?);
        if used * PAGE < self.bounds.bytes / 4 * 3 {
            return Ok(());
        }
        self.connection
            .execute_batch(
                "DELETE FROM served WHERE request IN (SELECT request FROM served ORDER BY at LIMIT \
                 (SELECT count(*) / 5 + 1 FROM served)); \
                 DELETE FROM canaries WHERE minute < (SELECT min(minute) + (max(minute) - \
                 min(minute)) / 5 FROM canaries);",
            )
            .map_err(error)
    }
}

fn of_sql(why: rusqlite::Error, bounds: Bounds) -> JournalError {
    match why.sqlite_error_code() {
        Some(ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked) => JournalError::Busy,
        Some(ErrorCode::DiskFull) => JournalError::Full(bounds.bytes),
        _ => JournalError::Sql(why),
    }
}

/// A name for an entry, or an incident: drawn, so that no two are the same.
///
/// # Errors
/// The system gives no random bits.
pub fn drawn() -> std::result::Result<String, getrandom::Error> {
    let mut bytes = [0; 8];
    getrandom::fill(&mut bytes)?;
    Ok(bytes.iter().map(|byte| format!("{byte:02x}")).collect())
}

/// What an incident that begins now is called: its day, and something drawn.
///
/// # Errors
/// The system gives no random bits.
pub fn incident_name(now: Ms) -> std::result::Result<String, getrandom::Error> {
    let day: String = crate::times::written(now).chars().take(10).collect();
    Ok(format!("{day}-{}", &drawn()?[..6]))
}

/// That a process begins to write.
pub fn began(by: &str, version: &str, model: &str) -> Entry {
    Entry::Began {
        by: by.to_owned(),
        version: version.to_owned(),
        model: model.to_owned(),
    }
}
