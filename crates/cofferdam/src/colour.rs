//! Whether a stream is written in colours: on a terminal, unless somebody wants it otherwise.

use std::ffi::OsString;

/// Whether a stream that is a terminal, or is none, gets colours.
pub(crate) fn wanted(is_terminal: bool) -> bool {
    decided(|name| std::env::var_os(name), is_terminal)
}

fn decided(variable: impl Fn(&str) -> Option<OsString>, is_terminal: bool) -> bool {
    let is = |name: &str, value: &str| variable(name).is_some_and(|it| it == value);
    let is_set = |name: &str| variable(name).is_some_and(|it| !it.is_empty());
    if is_set("NO_COLOR") {
        return false;
    }
    if is_set("CLICOLOR_FORCE") && !is("CLICOLOR_FORCE", "0") {
        return true;
    }
    is_terminal && !is("CLICOLOR", "0") && !is("TERM", "dumb")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn on_a_terminal_unless_somebody_wants_it_otherwise() {
        for (variables, terminal, expected) in [
            (&[][..], true, true),
            (&[], false, false),
            (&[("NO_COLOR", "1")], true, false),
            (&[("NO_COLOR", "")], true, true),
            (&[("CLICOLOR_FORCE", "1")], false, true),
            (&[("CLICOLOR_FORCE", "0")], false, false),
            (&[("CLICOLOR_FORCE", "1"), ("NO_COLOR", "1")], true, false),
            (&[("CLICOLOR", "0")], true, false),
            (&[("TERM", "dumb")], true, false),
        ] {
            let variable = |name: &str| {
                let found = variables.iter().find(|(known, _)| *known == name);
                found.map(|(_, value)| OsString::from(value))
            };
            assert_eq!(
                decided(variable, terminal),
                expected,
                "{variables:?} {terminal}"
            );
        }
    }
}
