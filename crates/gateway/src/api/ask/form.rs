//! The form that an answer is held to, by whichever of its names: `response_format`, vLLM's
//! `structured_outputs`, SGLang's `regex`.

use serde_json::Value;
use wire::Form;

use super::{Fields, invalid, unsupported};
use crate::api::strict_json::{self, Texts};
use crate::api::text::Text;
use crate::engine::{Code, Fault};

/// Alternatives of a `choice`, at most.
const CHOICES_MAX: usize = 1024;

/// A form and what it was asked for by.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Asked {
    /// The field that has it, with its path.
    pub param: String,
    /// What an answer is held to.
    pub form: Form,
}

impl Asked {
    /// Refuses what no answer of this model can be held to, before anything is reserved.
    ///
    /// # Errors
    /// The form is invalid, too large, or says what is not implemented; and where.
    pub(crate) fn judge(&self, text: &dyn Text) -> Result<(), Fault> {
        let most = wire::FORM_BYTES_MAX;
        let bytes = self.form.text().len();
        if bytes > most {
            return Err(invalid(
                &self.param,
                format!("at most {most} bytes, got {bytes}"),
            ));
        }
        match &self.form {
            Form::Json(schema) => drop(Texts::default().read(&self.param, schema)?),
            Form::Lark(grammar) => strict_json::within_grammar(&self.param, grammar)?,
            Form::Regex(_) => {}
        }
        text.compiles(&self.form).map_err(|problem| {
            let message = format!("`{}`: {problem}", self.param);
            Fault::new(Code::InvalidRequest, message).on(self.param.clone())
        })
    }
}

/// Reads the form; none if any text will do.
///
/// # Errors
/// A field is none, or two are set.
pub(super) fn read(fields: &mut Fields) -> Result<Option<Asked>, Fault> {
    let found = [
        response_format(fields)?,
        structured_outputs(fields)?,
        fields.text("regex")?.map(|regex| Asked {
            param: "regex".to_owned(),
            form: Form::Regex(regex),
        }),
    ];
    let mut found = found.into_iter().flatten();
    match (found.next(), found.next()) {
        (Some(_), Some(second)) => Err(invalid(second.param, "no other form beside it")),
        (one, _) => Ok(one),
    }
}

fn response_format(fields: &mut Fields) -> Result<Option<Asked>, Fault> {
    let Some(mut format) = fields.object("response_format")? else {
        return Ok(None);
    };
    let kind = format.text("type")?;
    let asked = match kind.as_deref() {
        Some("text") => None,
        Some("json_object") => Some(object(format.name("type"))),
        Some("json_schema") => Some(json_schema(&mut format)?),
        _ => {
            let expected = "\"text\", \"json_object\" or \"json_schema\"";
            return Err(invalid(format.name("type"), expected));
        }
    };
    format.finish()?;
    Ok(asked)
}

fn object(param: String) -> Asked {
    Asked {
        param,
        form: Form::Json(r#"{"type":"object"}"#.to_owned()),
    }
}

/// `{"name": …, "schema": …, "strict": …}`: held to in any case, strict or not.
fn json_schema(format: &mut Fields) -> Result<Asked, Fault> {
    let expected = "{\"name\": …, \"schema\": …}";
    let missing = invalid(format.name("json_schema"), expected);
    let mut named = format.object("json_schema")?.ok_or(missing)?;
    let asked = schema(&mut named, "schema")?;
    named.text("name")?;
    named.text("description")?;
    named.flag("strict")?;
    let missing = invalid(named.name("schema"), "a JSON schema");
    named.finish()?;
    asked.ok_or(missing)
}

fn schema(fields: &mut Fields, key: &str) -> Result<Option<Asked>, Fault> {
    let param = fields.name(key);
    let text = match fields.take(key) {
        None => return Ok(None),
        // vLLM's clients may send its text.
        Some(Value::String(text)) => text,
        Some(value @ (Value::Object(_) | Value::Bool(_))) => value.to_string(),
        Some(_) => return Err(invalid(param, "a JSON schema")),
    };
    let form = Form::Json(text);
    Ok(Some(Asked { param, form }))
}

fn structured_outputs(fields: &mut Fields) -> Result<Option<Asked>, Fault> {
    let Some(mut named) = fields.object("structured_outputs")? else {
        return Ok(None);
    };
    let of = |key: &str| format!("structured_outputs.{key}");
    let json = schema(&mut named, "json")?;
    let any = named.flag("json_object")?.unwrap_or(false);
    let regex = named.text("regex")?.map(Form::Regex);
    let grammar = named.text("grammar")?.map(Form::Lark);
    let choice = choice(&mut named)?;
    for key in ["disable_any_whitespace", "disable_additional_properties"] {
        if named.flag(key)?.unwrap_or(false) {
            return Err(unsupported(
                named.name(key),
                "say it in the schema; leave it out",
            ));
        }
    }
    for key in ["whitespace_pattern", "structural_tag"] {
        if named.take(key).is_some() {
            return Err(unsupported(
                named.name(key),
                "there is no such setting; leave it out",
            ));
        }
    }
    named.finish()?;
    let asked = |key, form: Option<Form>| {
        form.map(|form| Asked {
            param: of(key),
            form,
        })
    };
    let found = [
        json,
        any.then(|| object(of("json_object"))),
        asked("regex", regex),
        asked("grammar", grammar),
        asked("choice", choice),
    ];
    let mut found = found.into_iter().flatten();
    match (found.next(), found.next()) {
        (Some(one), None) => Ok(Some(one)),
        _ => Err(invalid(
            "structured_outputs",
            "exactly one of json, json_object, regex, choice and grammar",
        )),
    }
}

/// One of these texts, as a grammar.
fn choice(fields: &mut Fields) -> Result<Option<Form>, Fault> {
    let expected = format!("a list of 1 to {CHOICES_MAX} texts, none empty");
    let wrong = invalid(fields.name("choice"), expected);
    let Some(value) = fields.take("choice") else {
        return Ok(None);
    };
    let Value::Array(list) = value else {
        return Err(wrong);
    };
    let texts = list
        .iter()
        .map(|value| value.as_str().filter(|it| !it.is_empty()));
    let texts: Option<Vec<&str>> = texts.collect();
    match texts.filter(|texts| (1..=CHOICES_MAX).contains(&texts.len())) {
        None => Err(wrong),
        // A text of Lark is one of JSON.
        Some(texts) => {
            let texts = texts.iter().map(|text| Value::from(*text).to_string());
            let any = texts.collect::<Vec<_>>().join(" | ");
            Ok(Some(Form::Lark(format!("start: {any}\n"))))
        }
    }
}
