//! One report in five forms.

mod json;
mod junit;
pub mod markup;
mod prometheus;
mod sarif;
mod table;

pub use json::{SCHEMA as JSON_SCHEMA, json};
pub use junit::junit;
pub use prometheus::{prometheus, prometheus_labels};
pub use sarif::sarif;
pub use table::{Style, explain, list, markdown, table};

/// What a server says is shown, but may not steer a terminal or end an element: control
/// characters are replaced.
fn tame(text: &str) -> String {
    let tame = |c: char| if c.is_control() { '\u{fffd}' } else { c };
    text.chars().map(tame).collect()
}
