//! A report that is written beside what is printed: `--report FORMAT=FILE`.

use clap::ValueEnum;
use std::path::PathBuf;
use std::str::FromStr;

/// `FORMAT=FILE`
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReportArg<F> {
    /// The form.
    pub format: F,
    /// Where it is written.
    pub file: PathBuf,
}

impl<F: ValueEnum> FromStr for ReportArg<F> {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (format, file) = text.split_once('=').ok_or("FORMAT=FILE")?;
        Ok(Self {
            format: F::from_str(format, false)?,
            file: file.into(),
        })
    }
}
