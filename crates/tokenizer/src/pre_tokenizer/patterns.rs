//! Patterns of one regular expression: the length of the first word of a text.

use std::sync::LazyLock;

use super::classes::{Class, Sort, run, sort};

/// Length of the first word of `text`, which begins with `first`.
pub(super) fn gpt_2(first: char, text: &str) -> usize {
    if first == '\''
        && let Some(len) = contraction(text, |c| c)
    {
        return len;
    }
    // Of the classes only ` ?` may stand before a run.
    let lead = usize::from(first == ' ');
    match text[lead..].chars().next().map(sort) {
        None | Some(Sort::Space) => spaces(text),
        Some(sort) => lead + run(&text[lead..], sort),
    }
}

/// Length of the first word of `text`, which begins with `first`; of digits at most so many.
pub(super) fn llama_3(first: char, text: &str, digits_max: usize) -> usize {
    if let Some(len) = any_contraction(text) {
        return len;
    }
    let (own, after) = (sort(first), &text[first.len_utf8()..]);
    let next = after.chars().next().map(sort);
    let may_lead = !matches!(first, '\r' | '\n') && own != Sort::Number;
    match own {
        Sort::Letter => run(text, Sort::Letter),
        _ if may_lead && next == Some(Sort::Letter) => first.len_utf8() + run(after, Sort::Letter),
        Sort::Number => digits(text, digits_max),
        Sort::Other => with_line_ends(text, run(text, Sort::Other), &['\r', '\n']),
        Sort::Space if first == ' ' && next == Some(Sort::Other) => {
            with_line_ends(text, 1 + run(after, Sort::Other), &['\r', '\n'])
        }
        Sort::Space => lines_or_spaces(text),
    }
}

/// Length of the first word of `text`, which begins with `first`: capitals stand before small letters,
/// and `contractions` go with the word before them.
pub(super) fn cased(first: char, text: &str, digits_max: usize, contractions: bool) -> usize {
    let own = sort(first);
    let may_lead = !matches!(first, '\r' | '\n') && !matches!(own, Sort::Letter | Sort::Number);
    let leads = [may_lead.then(|| first.len_utf8()), Some(0)];
    let leads = || leads.into_iter().flatten();
    let low = leads().find_map(|lead| Some(lead + ends_low(&text[lead..])?));
    let word = low.or_else(|| leads().find_map(|lead| Some(lead + begins_high(&text[lead..])?)));
    if let Some(len) = word {
        let more = any_contraction(&text[len..]).filter(|_| contractions);
        return len + more.unwrap_or(0);
    }
    let next = text[first.len_utf8()..].chars().next().map(sort);
    match own {
        Sort::Number => digits(text, digits_max),
        Sort::Space if first == ' ' && next == Some(Sort::Other) => {
            with_line_ends(text, 1 + run(&text[1..], Sort::Other), &['\r', '\n', '/'])
        }
        Sort::Space => lines_or_spaces(text),
        _ => with_line_ends(text, run(text, Sort::Other), &['\r', '\n', '/']),
    }
}

static HIGH: LazyLock<Class> = LazyLock::new(|| Class::new(r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]"));
static LOW: LazyLock<Class> = LazyLock::new(|| Class::new(r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"));

/// `HIGH*LOW+`: all that is high, then all that is low; if there is nothing low behind it, up to the
/// last of the high ones that is low as well.
fn ends_low(text: &str) -> Option<usize> {
    let high = HIGH.run(text);
    let low = LOW.run(&text[high..]);
    if low > 0 {
        return Some(high + low);
    }
    let last = text[..high].char_indices().rev().find(|(_, c)| LOW.has(*c));
    last.map(|(at, c)| at + c.len_utf8())
}

/// `HIGH+LOW*`
fn begins_high(text: &str) -> Option<usize> {
    let high = HIGH.run(text);
    (high > 0).then(|| high + LOW.run(&text[high..]))
}

/// Length of the first word of `text`, which begins with `first`, as DeepSeek-V3 has it where there are
/// no digits; nothing if no word begins here.
pub(super) fn deepseek_3(first: char, text: &str) -> Option<usize> {
    let after = &text[first.len_utf8()..];
    let next = after.chars().next();
    if first.is_ascii_punctuation() && next.is_some_and(|c| c.is_ascii_alphabetic()) {
        let letters = after.find(|c: char| !c.is_ascii_alphabetic());
        return Some(1 + letters.unwrap_or(after.len()));
    }
    let may_lead = !matches!(first, '\r' | '\n') && !WORD.has(first) && !MARK.has(first);
    match first {
        // A mark above a letter may lead as well as be led.
        _ if WORD.has(first) => Some(WORD.run(text)),
        _ if may_lead && next.is_some_and(|c| WORD.has(c)) => {
            Some(first.len_utf8() + WORD.run(after))
        }
        ' ' if next.is_some_and(|c| MARK.has(c)) => {
            Some(with_line_ends(text, 1 + MARK.run(after), &['\r', '\n']))
        }
        _ if MARK.has(first) => Some(with_line_ends(text, MARK.run(text), &['\r', '\n'])),
        _ if first.is_whitespace() => Some(lines_or_spaces(text)),
        _ => None,
    }
}

static WORD: LazyLock<Class> = LazyLock::new(|| Class::new(r"[\p{L}\p{M}]"));
static MARK: LazyLock<Class> = LazyLock::new(|| Class::new(r"[\p{P}\p{S}]"));

/// `'s|'t|'re|'ve|'m|'ll|'d`, in bytes.
fn contraction(text: &str, fold: impl Fn(char) -> char) -> Option<usize> {
    let mut letters = text.chars().skip(1);
    let first = letters.next()?;
    match (fold(first), letters.next().map(fold)) {
        ('s' | 't' | 'm' | 'd', _) => Some(1 + first.len_utf8()),
        ('r' | 'v', Some('e')) | ('l', Some('l')) => Some(3),
        _ => None,
    }
}

/// Without regard to case, which in Unicode makes the long s an s.
fn any_contraction(text: &str) -> Option<usize> {
    let folded = |c: char| {
        if c == 'ſ' {
            's'
        } else {
            c.to_ascii_lowercase()
        }
    };
    text.starts_with('\'').then(|| contraction(text, folded))?
}

fn digits(text: &str, most: usize) -> usize {
    let numbers = text.chars().take(most);
    let numbers = numbers.take_while(|c| sort(*c) == Sort::Number);
    numbers.map(char::len_utf8).sum()
}

/// `\s*[\r\n]+|\s+(?!\S)|\s+`
fn lines_or_spaces(text: &str) -> usize {
    let all = &text[..run(text, Sort::Space)];
    let line_end = all.rfind(['\r', '\n']);
    line_end.map_or_else(|| spaces(text), |at| at + 1)
}

/// `\s+(?!\S)|\s+`: spaces, but for the last one if more than one and text follows.
fn spaces(text: &str) -> usize {
    let len = run(text, Sort::Space);
    let last = text[..len].chars().next_back().map_or(0, char::len_utf8);
    if len == text.len() || len == last {
        len
    } else {
        len - last
    }
}

fn with_line_ends(text: &str, len: usize, ends: &[char]) -> usize {
    let rest = &text[len..];
    len + rest.len() - rest.trim_start_matches(ends).len()
}
