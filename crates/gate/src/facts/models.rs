//! `GET /v1/models`, which all engines have.

use crate::facts::answers::Page;
use crate::facts::combine::not_reported;
use crate::facts::figure::{Fact, Figure};

/// The adapters that are served now, each with what it was loaded from: entries with a parent.
pub(crate) fn adapters(models: &Page) -> Fact<Figure<String>> {
    let doc = models.doc()?;
    let mut found = Vec::new();
    for n in 0..models.len("data").min(1000) {
        if models.has(&format!("data[{n}].parent")) {
            let id = models.text(&format!("data[{n}].id"))?.value;
            let root = models.text(&format!("data[{n}].root"))?.value;
            found.push(format!("{id}={root}"));
        }
    }
    found.sort();
    let text = match found.is_empty() {
        true => "none".to_owned(),
        false => found.join(","),
    };
    Ok(Figure::new(text, doc.source("data[].parent")))
}

/// The longest `max_model_len` that any entry advertises: adapters stand beside the base model,
/// and clients may choose.
pub(crate) fn advertised(models: &Page) -> Fact<Figure<u64>> {
    models.doc()?;
    let mut longest: Option<Figure<u64>> = None;
    for n in 0..models.len("data").min(1000) {
        let field = format!("data[{n}].max_model_len");
        if n > 0 && !models.has(&field) {
            continue; // an adapter that says nothing
        }
        let length = models.count(&field)?;
        if longest.as_ref().is_none_or(|it| it.value < length.value) {
            longest = Some(length);
        }
    }
    longest.map_or_else(|| not_reported("data[0].max_model_len of /v1/models"), Ok)
}
