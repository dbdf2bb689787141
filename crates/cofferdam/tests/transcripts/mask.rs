//! What is another one each time: ids, times, dates.

/// What stands before a value that is another one each time, and what the value is made of.
type Value = (&'static str, fn(char) -> bool);

const VALUES: [Value; 9] = [
    ("cmpl-", |c| c.is_ascii_hexdigit()),
    ("\"created\":", |c| c.is_ascii_digit()),
    ("epoch ", |c| c.is_ascii_hexdigit()),
    ("epoch=", |c| c.is_ascii_hexdigit()),
    ("isa=", |c| c.is_ascii_alphanumeric()),
    ("seconds=", |c| c.is_ascii_digit() || c == '.'),
    ("ttft ", of_a_time),
    ("total ", of_a_time),
    ("read at ", |c| c.is_ascii_digit() || "-:TZ".contains(c)),
];

fn of_a_time(c: char) -> bool {
    c.is_ascii_digit() || " .ms".contains(c)
}

/// The text with `#` for each of them.
pub fn masked(text: &str) -> String {
    let lines = text.trim_end().lines();
    lines
        .map(|line| clock(&values(line)))
        .collect::<Vec<_>>()
        .join("\n")
}

fn values(line: &str) -> String {
    let mut line = line.to_owned();
    for (before, belongs) in VALUES {
        let mut from = 0;
        while let Some(at) = line[from..].find(before) {
            let start = from + at + before.len();
            let length: usize = line[start..]
                .chars()
                .take_while(|c| belongs(*c))
                .map(char::len_utf8)
                .sum();
            line.replace_range(start..start + length, "#");
            from = start;
        }
    }
    line
}

/// A time of day, with a date before it and a fraction behind it.
fn clock(line: &str) -> String {
    let words = line.split(' ').map(|word| {
        let digits = word.bytes().filter(u8::is_ascii_digit).count();
        let is_clock = word.ends_with('Z')
            && digits >= 6
            && word
                .bytes()
                .all(|it| it.is_ascii_digit() || b"-:.TZ".contains(&it));
        if is_clock { "#" } else { word }
    });
    words.collect::<Vec<_>>().join(" ")
}

#[test]
fn what_changes_is_masked_and_nothing_else() {
    let line = "gateway | 05:34:04Z  anonymous  200  37+8 tok  ttft   80 ms  total  1.20 s";
    let other = "gateway | 15:00:59Z  anonymous  200  37+8 tok  ttft  180 ms  total  120 ms";
    assert_eq!(masked(line), masked(other));
    assert_ne!(masked(line), masked(&line.replace("37+8", "37+9")));
    let line = r#"{"created":1795970981,"id":"chatcmpl-818756cc8d2e","model":"m"}"#;
    assert_eq!(
        masked(line),
        r##"{"created":#,"id":"chatcmpl-#","model":"m"}"##
    );
    assert_eq!(
        masked("2026-12-01T05:34:06.123456Z  INFO decode-0 is ready again, epoch 12faef9eaacb"),
        "#  INFO decode-0 is ready again, epoch #"
    );
}
