//! The audit log: one JSON object a line for every event after which somebody will ask what
//! happened. Names, epochs and tags; never a token of a prompt or an answer.

use handoff::Fault;
use serde::{Serialize, Serializer};
use std::fs::File;
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::time::{SystemTime, UNIX_EPOCH};

/// What happened. Fields that do not apply are left out of the line.
#[derive(Clone, Debug, Serialize)]
pub struct AuditRecord {
    /// What kind of thing it is.
    pub event: AuditEvent,
    /// Which of the integrity faults: written by its name, a code of docs/errors.md without its
    /// prefix.
    #[serde(skip_serializing_if = "Option::is_none", serialize_with = "by_name")]
    pub kind: Option<Fault>,
    /// Who says so: `prefill`, `decode` or `gateway`.
    pub role: &'static str,
    /// Its life.
    pub epoch: String,
    /// The request, as in the gateway's access log.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub request: Option<String>,
    /// The attempt, which joins the lines of gateway and workers.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub attempt: Option<String>,
    /// The handoff.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub handoff: Option<String>,
    /// The prefill life that wrote.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub prefill_epoch: Option<String>,
    /// The decode life that read.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub decode_epoch: Option<String>,
    /// The tag that was stated, where one was.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub stated_tag: Option<u64>,
    /// The tags that were granted to this handoff.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub granted_tags: Vec<u64>,
    /// The arena.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub arena: Option<String>,
    /// What was found, in words: pages, owners and ordinals, no content.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub evidence: Option<String>,
    /// Whether the request goes on, as another attempt with new ids.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub retried: Option<bool>,
}

impl AuditRecord {
    /// What every line says.
    pub fn new(event: AuditEvent, role: &'static str, epoch: String) -> Self {
        Self {
            event,
            kind: None,
            role,
            epoch,
            request: None,
            attempt: None,
            handoff: None,
            prefill_epoch: None,
            decode_epoch: None,
            stated_tag: None,
            granted_tags: Vec::new(),
            arena: None,
            evidence: None,
            retried: None,
        }
    }
}

/// What a line of the audit log is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum AuditEvent {
    /// What arrived is not what was stated or granted.
    IntegrityFault,
    /// A process found one of its own rules broken, and has ended.
    FailStop,
    /// Decode reads a landing arena no more.
    ArenaDropped,
}

fn by_name<S: Serializer>(kind: &Option<Fault>, serializer: S) -> Result<S::Ok, S::Error> {
    kind.map(Fault::name).serialize(serializer)
}

/// Where the records go.
#[derive(Debug)]
pub struct AuditLog(Option<File>);

#[derive(Serialize)]
struct Line<'a> {
    time_unix_s: f64,
    #[serde(flatten)]
    record: &'a AuditRecord,
}

impl AuditLog {
    /// Into a file that is appended to, also by other processes: each line is one write. Without
    /// a file they go to standard error.
    ///
    /// # Errors
    /// The file cannot be opened.
    pub fn open(path: Option<&Path>) -> io::Result<Self> {
        let open = |path| {
            let mut options = File::options();
            options.create(true).append(true).mode(0o600).open(path)
        };
        path.map(open).transpose().map(Self)
    }

    /// Writes a line. That it cannot be written is said on the log; nothing waits for it.
    pub fn write(&mut self, record: &AuditRecord) {
        let now = SystemTime::now().duration_since(UNIX_EPOCH);
        let time_unix_s = now.unwrap_or_default().as_secs_f64();
        let line = Line {
            time_unix_s,
            record,
        };
        let mut line = serde_json::to_string(&line).expect("text and numbers become JSON");
        line.push('\n');
        let written = match &mut self.0 {
            Some(file) => file.write_all(line.as_bytes()),
            None => io::stderr().lock().write_all(line.as_bytes()),
        };
        if let Err(error) = written {
            tracing::error!(%error, line, "the audit log cannot be written");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_are_lines_of_json_and_leave_out_what_does_not_apply() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("audit.log");
        for kind in [Fault::WrongTag, Fault::PageTwice] {
            let mut log = AuditLog::open(Some(&path)).unwrap();
            log.write(&AuditRecord {
                kind: Some(kind),
                granted_tags: vec![7, 8],
                ..AuditRecord::new(AuditEvent::IntegrityFault, "decode", "e".into())
            });
        }
        let text = std::fs::read_to_string(path).unwrap();
        let lines: Vec<serde_json::Value> = text
            .lines()
            .map(|line| serde_json::from_str(line).unwrap())
            .collect();
        let kinds: Vec<_> = lines
            .iter()
            .map(|it| it["kind"].as_str().unwrap())
            .collect();
        assert_eq!(kinds, ["wrong_tag", "page_twice"]);
        let keys: Vec<_> = lines[0].as_object().unwrap().keys().cloned().collect();
        let expected = [
            "time_unix_s",
            "event",
            "kind",
            "role",
            "epoch",
            "granted_tags",
        ];
        assert_eq!(keys, expected);
    }
}
