//! Patterns of several steps, as DeepSeek's: each cuts the pieces that the one before has left, and what
//! none of its matches covers stays a piece of its own.

use std::ops::Range;
use std::sync::LazyLock;

use super::classes::{Class, LETTER};
use super::patterns;

/// Finds the first match in a text.
type Find = fn(&str) -> Option<Range<usize>>;

/// `[\r\n]`, `\s?[letters of cased alphabets]+`, `\s?[ASCII and Chinese punctuation]+`, `\s+$`,
/// `[一-龥ࠀ-一가-퟿]+`, `\p{N}+`
pub(super) const DEEPSEEK_LLM: &[Find] = &[
    line_end,
    |text| spaced(text, &ALPHABETS),
    |text| spaced(text, &PUNCTUATION),
    last_spaces,
    |text| long(text, &CHINESE),
    |text| long(text, &NUMBER),
];

/// `[\r\n]`, `\s?\p{L}+`, `\s?\p{P}+`, `[一-龥ࠀ-一가-퟿]+`, `\p{N}`
pub(super) const DEEPSEEK_CODER: &[Find] = &[
    line_end,
    |text| spaced(text, &LETTER),
    |text| spaced(text, &ANY_PUNCTUATION),
    |text| long(text, &CHINESE),
    |text| numbers(text, 1),
];

/// `\p{N}{1,3}`, `[一-龥぀-ゟ゠-ヿ]+`, and then
/// ``[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+``
pub(super) const DEEPSEEK_3: &[Find] = &[
    |text| numbers(text, 3),
    |text| long(text, &HAN_AND_KANA),
    |text| {
        let words = text.char_indices();
        let mut found = words.filter_map(|(at, c)| {
            let len = patterns::deepseek_3(c, &text[at..])?;
            Some(at..at + len)
        });
        found.next()
    },
];

/// The pieces of a text after all steps.
pub(super) fn cut<'t>(
    text: &'t str,
    steps: &'static [Find],
) -> Box<dyn Iterator<Item = &'t str> + 't> {
    let whole: Box<dyn Iterator<Item = &'t str>> = Box::new(std::iter::once(text));
    steps.iter().fold(whole, |pieces, find| {
        Box::new(pieces.flat_map(|piece| isolated(piece, *find)))
    })
}

/// Matches and what is between them, in order.
fn isolated(text: &str, find: Find) -> impl Iterator<Item = &str> {
    let (mut rest, mut matched) = (text, 0);
    std::iter::from_fn(move || {
        if rest.is_empty() {
            return None;
        }
        let mut len = std::mem::take(&mut matched);
        if len == 0 {
            let found = find(rest).unwrap_or(rest.len()..rest.len());
            (len, matched) = match found.start {
                0 => (found.end, 0),
                before => (before, found.len()),
            };
        }
        let (piece, after) = rest.split_at(len);
        rest = after;
        Some(piece)
    })
}

fn line_end(text: &str) -> Option<Range<usize>> {
    let at = text.find(['\r', '\n'])?;
    Some(at..at + 1)
}

/// A run of the class, with one white space before it.
fn spaced(text: &str, class: &Class) -> Option<Range<usize>> {
    let run = long(text, class)?;
    let before = text[..run.start].chars().next_back();
    let space = before
        .filter(|c| c.is_whitespace())
        .map_or(0, char::len_utf8);
    Some(run.start - space..run.end)
}

fn long(text: &str, class: &Class) -> Option<Range<usize>> {
    let at = text.find(|c| class.has(c))?;
    Some(at..at + class.run(&text[at..]))
}

fn numbers(text: &str, most: usize) -> Option<Range<usize>> {
    let at = text.find(char::is_numeric)?;
    let digits = text[at..].chars().take(most).take_while(|c| c.is_numeric());
    Some(at..at + digits.map(char::len_utf8).sum::<usize>())
}

fn last_spaces(text: &str) -> Option<Range<usize>> {
    let at = text.trim_end().len();
    (at < text.len()).then_some(at..text.len())
}

static NUMBER: LazyLock<Class> = LazyLock::new(|| Class::new(r"\p{N}"));
static ANY_PUNCTUATION: LazyLock<Class> = LazyLock::new(|| Class::new(r"\p{P}"));
static HAN_AND_KANA: LazyLock<Class> = LazyLock::new(|| Class::new("[一-龥\u{3040}-ゟ゠-ヿ]"));
static CHINESE: LazyLock<Class> = LazyLock::new(|| Class::new("[一-龥ࠀ-一가-\u{D7FF}]"));
static PUNCTUATION: LazyLock<Class> =
    LazyLock::new(|| Class::new("[!-/:-~！-／：-～‘-‟\u{3000}-\u{3002}]"));
/// Letters of alphabets with two cases, as they are published; by number, since some of them have a
/// double elsewhere that looks the same.
static ALPHABETS: LazyLock<Class> = LazyLock::new(|| {
    Class::new(
        "[\u{41}-\u{5A}\u{61}-\u{7A}\u{B5}\u{C0}-\u{D6}\u{D8}-\u{F6}\u{F8}-\u{1BA}\
         \u{1BC}-\u{1BF}\u{1C4}-\u{293}\u{295}-\u{2AF}\u{370}-\u{373}\u{376}\u{377}\
         \u{37B}-\u{37D}\u{37F}\u{386}\u{388}-\u{38A}\u{38C}\u{38E}-\u{3A1}\u{3A3}-\u{3F5}\
         \u{3F7}-\u{481}\u{48A}-\u{52F}\u{531}-\u{556}\u{10A0}-\u{10C5}\u{13A0}-\u{13F5}\
         \u{13F8}-\u{13FD}\u{1C90}-\u{1CBA}\u{1CBD}-\u{1CBF}\u{1D00}-\u{1D2B}\u{1D6B}-\u{1D77}\
         \u{1D79}-\u{1D9A}\u{1E00}-\u{1F15}\u{1F18}-\u{1F1D}\u{1F20}-\u{1F45}\u{1F48}-\u{1F4D}\
         \u{1F50}-\u{1F57}\u{1F59}\u{1F5B}\u{1F5D}\u{1F5F}-\u{1F7D}\u{1F80}-\u{1FB4}\
         \u{1FB6}-\u{1FBC}\u{1FBE}\u{1FC2}-\u{1FC4}\u{1FC6}-\u{1FCC}\u{1FD0}-\u{1FD3}\
         \u{1FD6}-\u{1FDB}\u{1FE0}-\u{1FEC}\u{1FF2}-\u{1FF4}\u{1FF6}-\u{1FFC}\u{2102}\u{2107}\
         \u{210A}-\u{2113}\u{2115}\u{2119}-\u{211D}\u{2124}\u{2126}\u{2128}\u{212A}-\u{212D}\
         \u{212F}-\u{2134}\u{2139}\u{213C}-\u{213F}\u{2145}-\u{2149}\u{214E}\u{2183}\u{2184}\
         \u{2C00}-\u{2C7B}\u{2C7E}-\u{2CE4}\u{2CEB}-\u{2CEE}\u{2CF2}\u{2CF3}\u{A640}-\u{A66D}\
         \u{A680}-\u{A69B}\u{A722}-\u{A76F}\u{A771}-\u{A787}\u{A78B}-\u{A78E}\u{AB70}-\u{ABBF}\
         \u{FB00}-\u{FB06}\u{FB13}-\u{FB17}\u{FF21}-\u{FF3A}\u{FF41}-\u{FF5A}\
         \u{10400}-\u{1044F}\u{104B0}-\u{104D3}\u{104D8}-\u{104FB}\u{10C80}-\u{10CB2}\
         \u{10CC0}-\u{10CF2}\u{118A0}-\u{118DF}\u{1E900}-\u{1E943}]",
    )
});
