//! What was done, as a reader reads it: messages without their wrapping, a lane for everybody.

use std::fmt::Debug;

/// Fields that say nothing to a reader.
const DULL: [&str; 6] = [
    "digest", "sampling", "model", "layout", "address", "payload",
];
/// Names around a number, and what they are called.
const NAMED: [(&str, &str); 5] = [
    ("StatedTag(", "tag "),
    ("PageId(", "page "),
    ("Conn(", "connection "),
    ("Domain(", "domain "),
    ("OwnerId(", "owner "),
];
/// A connection with the life that it is of.
const LINK: &str = "LinkId { epoch";
/// Who is heard over a connection.
const HEARD: [(&str, &str); 3] = [
    ("FromPrefill(", "prefill"),
    ("FromDecode(", "decode"),
    ("FromGateway(", "the gateway"),
];

/// A message without its payloads.
pub(super) fn short(message: &impl Debug) -> String {
    let mut said = readable(&format!("{message:?}"));
    const MOST: usize = 150;
    if said.len() > MOST {
        let end = (0..=MOST).rev().find(|at| said.is_char_boundary(*at));
        said.truncate(end.unwrap_or_default());
        said.push('…');
    }
    said
}

fn readable(debug: &str) -> String {
    let mut text = debug.to_owned();
    for field in DULL {
        drop_list(&mut text, field);
    }
    // A connection's number says which life has dialled it: they are numbered together in a world.
    while let Some(at) = text.find(LINK) {
        let Some(number) = text[at..]
            .find("conn: ")
            .map(|from| at + from + "conn: ".len())
        else {
            break;
        };
        let Some(end) = text[number..].find(" }").map(|end| number + end) else {
            break;
        };
        let number = text[number..end].to_owned();
        text.replace_range(at..end + 2, &number);
    }
    while let Some((from, to, name)) = next_id(&text) {
        text.replace_range(from..to, &name);
    }
    for (wrapped, name) in NAMED {
        while let Some(at) = text.find(wrapped) {
            let Some(end) = text[at..].find(')') else {
                break;
            };
            let number = text[at + wrapped.len()..at + end].to_owned();
            text.replace_range(at..=at + end, &format!("{name}{number}"));
        }
    }
    for name in [
        "offer",
        "handoff",
        "attempt",
        "arena",
        "submission",
        "request",
    ] {
        text = text.replace(&format!("{name}: {name} "), &format!("{name} "));
    }
    for (wrapped, who) in HEARD {
        if let Some(said) = text
            .strip_prefix(wrapped)
            .and_then(|rest| rest.strip_suffix(')'))
        {
            let said = said.split_once(", ").map_or(said, |(_, said)| said);
            return format!("{who}: {said}");
        }
    }
    text
}

/// Takes `field: [...]` out, with the comma behind or before it.
fn drop_list(text: &mut String, field: &str) {
    let begins = format!("{field}: [");
    while let Some(at) = text.find(&begins) {
        let Some(end) = text[at..].find(']').map(|end| at + end + 1) else {
            return;
        };
        let behind = text[end..].starts_with(", ");
        let before = text[..at].ends_with(", ");
        match (behind, before) {
            (true, _) => text.replace_range(at..end + 2, ""),
            (false, true) => text.replace_range(at - 2..end, ""),
            (false, false) => text.replace_range(at..end, ""),
        }
    }
}

/// The first `XyzId { epoch: Epoch(…), n: 7 }`: where it is, and `xyz 7`.
fn next_id(text: &str) -> Option<(usize, usize, String)> {
    const OPENS: &str = "Id { epoch: Epoch(";
    let at = text.find(OPENS)?;
    let letters = text[..at]
        .chars()
        .rev()
        .take_while(char::is_ascii_alphabetic)
        .count();
    let from = at - letters;
    let number = at + text[at..].find("), n: ")? + "), n: ".len();
    let to = number + text[number..].find(" }")?;
    let name = text[from..at].to_lowercase();
    Some((from, to + 2, format!("{name} {}", &text[number..to])))
}

/// The line with who did it in front, where that is known: `D0: hears …`.
pub(super) fn with_lane(line: &str) -> String {
    let text = line.trim_start();
    if let Some((_, owner)) = text.split_once(" is now in ") {
        let who = owner.split('\'').next().unwrap_or_default();
        return format!("{who}: {text}");
    }
    if text.starts_with('[') {
        return format!("fabric: {text}");
    }
    if let Some((client, what)) = text
        .strip_prefix("client ")
        .and_then(|rest| rest.split_once(": "))
    {
        return format!("{client}: {what}");
    }
    let end = text.find([' ', '\'']).unwrap_or(text.len());
    let (who, what) = text.split_at(end);
    let of_worker = who.len() > 1 && who[1..].chars().all(|c| c.is_ascii_digit());
    if who == "gateway" || (of_worker && who.starts_with(['P', 'D'])) {
        let what = what
            .strip_prefix("'s ")
            .map_or(what.trim_start().to_owned(), |rest| format!("its {rest}"));
        return format!("{who}: {what}");
    }
    line.to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;
    use handoff::{Conn, DecodeToPrefill, HandoffId, LinkId, OfferId, decode, prefill};
    use pages::{Epoch, StatedTag};

    #[test]
    fn a_message_is_read_without_its_wrapping() {
        let epoch = Epoch::new(7);
        let ticket = DecodeToPrefill::Ticket {
            offer: OfferId { epoch, n: 1 },
            handoff: HandoffId { epoch, n: 2 },
            under: LinkId {
                epoch,
                conn: Conn(3),
            },
            tags: vec![StatedTag(5)],
            first: 0,
            landings: Vec::new(),
            targets: Vec::new(),
        };
        let heard = prefill::Event::FromDecode(Conn(3), ticket);
        assert_eq!(
            short(&heard),
            "decode: Ticket { offer 1, handoff 2, under: connection 3, tags: [tag 5], first: 0, landings: [], targets: [] }"
        );
        let timer = decode::Timer::Cancel(HandoffId { epoch, n: 2 });
        assert_eq!(
            short(&decode::Event::Fired(timer)),
            "Fired(Cancel(handoff 2))"
        );
    }

    #[test]
    fn everybody_has_a_lane() {
        for (line, with) in [
            ("D0 hears: prefill: X", "D0: hears: prefill: X"),
            ("  D0 to prefill: X", "D0: to prefill: X"),
            ("  P0's page 0 holds [A0]", "P0: its page 0 holds [A0]"),
            ("  [A0] lands in slot 0", "fabric: [A0] lands in slot 0"),
            (
                "  [A0] is now in D0's page 1",
                "D0: [A0] is now in D0's page 1",
            ),
            ("  client A: ClientLeft", "A: ClientLeft"),
            ("  gateway to decode: X", "gateway: to decode: X"),
            ("something else", "something else"),
        ] {
            assert_eq!(with_lane(line), with);
        }
    }
}
