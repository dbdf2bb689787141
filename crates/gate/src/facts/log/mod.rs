//! Start-up logs, for servers that cannot be reached: one log a server process, all of its ranks
//! interleaved, plain or wrapped in JSON, coloured or not.

mod line;
mod python;
mod sglang;
mod vllm;

use crate::facts::answers::Page;
use crate::facts::combine::{contradiction, not_reported};
use crate::facts::figure::{Fact, Figure, FigureSource, Unknown};
use crate::facts::json::{Doc, absurd};
use crate::facts::node::{Engine, Node, Probe};
use crate::facts::trouble::Trouble;
use line::{Line, unwrapped};
use python::Cut;
use serde_json::Value;
use std::io::{BufRead, Read};

/// No more of a line is looked at.
const LINE_MAX: usize = 256 << 10;
/// No more of a log is looked at: a start-up is at its beginning, a restart may be far behind.
const LOG_MAX: u64 = 4 << 30;

/// Takes what a server said of itself when it started. A later start in the same log replaces an
/// earlier one; two servers in one log are a contradiction.
///
/// `name` is the file as the operator named it, or `stdin`.
pub fn read_log(name: &str, log: impl BufRead) -> Node {
    let mut sglang = sglang::Scan::default();
    let mut vllm = vllm::Scan::default();
    let read = each_line(name, log, |line| {
        sglang.take(line);
        vllm.take(line);
    });
    let bytes = match read {
        Ok(bytes) => bytes,
        Err(error) => {
            let trouble = Trouble::Unreachable {
                why: error.to_string(),
            };
            return with_probe(
                name,
                Node::unknown(name, unread(name, &trouble)),
                Err(trouble),
            );
        }
    };
    let node = match (sglang.mark(), vllm.mark()) {
        (Some(one), Some(other)) => {
            let one = Figure::new(Engine::Sglang, one.clone());
            let other = Figure::new(Engine::Vllm, other.clone());
            let why = contradiction(&one, &other, "a log is that of one server");
            Node::unknown(name, why)
        }
        (Some(_), None) => sglang.node(name),
        (None, Some(_)) => vllm.node(name),
        (None, None) => {
            let looked = vec![format!("start-up lines of SGLang and vLLM in {name}")];
            Node::unknown(name, Unknown::NotReported { looked })
        }
    };
    with_probe(name, node, Ok(bytes))
}

fn unread(name: &str, trouble: &Trouble) -> Unknown {
    Unknown::NotRead {
        url: name.to_owned(),
        trouble: trouble.clone(),
    }
}

fn with_probe(name: &str, mut node: Node, outcome: Result<u64, Trouble>) -> Node {
    let url = name.to_owned();
    node.probes = vec![Probe {
        url,
        with_key: false,
        outcome,
    }];
    node
}

/// Hands every line on, cut to [`LINE_MAX`]; returns how many bytes there were.
fn each_line(name: &str, log: impl BufRead, mut take: impl FnMut(&Line)) -> std::io::Result<u64> {
    let mut log = log.take(LOG_MAX);
    let mut bytes = Vec::new();
    let (mut number, mut total) = (0, 0);
    loop {
        bytes.clear();
        let got = (&mut log)
            .take(LINE_MAX as u64)
            .read_until(b'\n', &mut bytes)?;
        if got == 0 {
            return Ok(total);
        }
        total += got as u64;
        number += 1;
        let mut ended = bytes.last() == Some(&b'\n');
        while !ended {
            let rest = log.fill_buf()?;
            let end = rest.iter().position(|it| *it == b'\n');
            let length = end.map_or(rest.len(), |at| at + 1);
            ended = end.is_some() || rest.is_empty();
            log.consume(length);
            total += length as u64;
        }
        for text in unwrapped(&bytes) {
            take(&Line {
                file: name,
                number,
                text: &text,
            });
        }
    }
}

/// The settings that stand behind `key`, as `read` takes them.
///
/// # Errors
/// The line is cut: what is not in it may have been there, so nothing is taken from it.
fn settings(line: &Line, key: &str, read: fn(&str) -> Result<Value, Cut>) -> Fact<Doc> {
    let text = line.after(key).unwrap_or_default();
    match read(text) {
        Ok(Value::Object(mut root)) => {
            for value in root.values_mut() {
                // An object that was given as text.
                let object = value.as_str().and_then(|it| serde_json::from_str(it).ok());
                if let Some(object @ Value::Object(_)) = object {
                    *value = object;
                }
            }
            Ok(Doc::of_line(line.file, line.number, root.into()))
        }
        Ok(_) | Err(Cut) => {
            let end: String = text.chars().rev().take(40).collect();
            let end: String = end.chars().rev().collect();
            let why = "settings that are cut, so nothing is taken from them";
            Err(absurd(&format!("…{end}"), source(line, key), why))
        }
    }
}

/// Settings that no line has told.
fn untold(key: &str) -> Page {
    Page::of(not_reported(&format!("{key} in the log")))
}

/// Where something in a line stands.
fn source(line: &Line, field: &str) -> FigureSource {
    FigureSource::Line {
        file: line.file.to_owned(),
        line: line.number,
        field: field.to_owned(),
    }
}
