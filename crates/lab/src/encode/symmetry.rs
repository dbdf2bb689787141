//! Symmetry: which page of a pool is which makes no difference.
//!
//! Pages of one pool are renamed so that those under a tag come first, in the order of their tags,
//! then the free ones in the order of their numbers; what is kept page by page is written in that
//! order, and sets of pages are written sorted by their new names.
//!
//! # Why that is nearly sound
//!
//! Let `p` permute the pages of a pool. The machines name a page because they hold it, or take the
//! lowest that is free; nothing else about a page's number decides anything. So whatever happens in
//! `w` also happens in `p(w)`, to the pages that `p` says, except that a page that is taken may be
//! another free one than `p` says. Free pages differ in nothing but in what their memory still
//! holds. That is left out of the bytes, here and as long as the next owner has not written over it:
//! no reading of it can be right, whosever it was, and the properties complain about every one. So
//! two worlds that are merged go on alike until somebody reads what was left behind, and that is a
//! violation in both.
//!
//! What it needs: all of a pool's pages alike (they are), nobody who prefers a page for its number
//! (the ledger's `take` is the only place that looks for a page), and one life of each kind: with
//! two lives the pages of that kind keep their names. And landing mode: in direct mode the slots of
//! a write are page numbers. With a defect that hands out tags or pages otherwise the argument is
//! void, and a counterexample is one all the same: it is a run of the code.
//!
//! # What is not exact
//!
//! A page that is given back and taken again in one and the same step keeps what it held, while
//! another free page that might be taken instead holds what is left behind already. Those two worlds
//! are merged before that step and differ after it, in cells that nobody may read. So the reduced
//! search reaches nearly every class, not every one: at the bound `smoke` as many as there are, but
//! where sequences are put back (a test compares). It finds violations sooner; it is no proof, and the
//! pinned numbers are without it.

use super::names::Class;
use super::{Mark, NUMBER_BITS, Names, Raw, is_name, put_varint};

/// What is written row by row. Keys of marks, above those of identifiers.
const FIRST: u64 = 0xff00;
/// A row for each page, in the order of the pages; the class of pages is added.
const BY_PAGE: u64 = FIRST << NUMBER_BITS;
/// Rows of a set or a map whose keys hold pages.
const SET: u64 = (FIRST + 1) << NUMBER_BITS;
/// The next row begins.
const ROW: u64 = (FIRST + 2) << NUMBER_BITS;
/// The last one has ended.
const END: u64 = (FIRST + 3) << NUMBER_BITS;
/// Like `BY_PAGE`, and the rows are the tags that the pages bear.
const TAGS: u64 = (FIRST + 4) << NUMBER_BITS;
/// A life of this class of pages begins.
const LIFE: u64 = (FIRST + 5) << NUMBER_BITS;
/// Like `SET`: what each page holds. Pages that hold nothing are left out.
const MEMORY: u64 = (FIRST + 6) << NUMBER_BITS;

/// How a field is written.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Rows {
    ByPage(Class),
    Tags(Class),
    Set,
    Memory,
}

/// The new names of pages.
pub(super) struct Orders {
    prefill: Option<Vec<u32>>,
    decode: Option<Vec<u32>>,
}

impl Orders {
    /// Every page keeps its name.
    pub(super) fn none() -> Self {
        let (prefill, decode) = (None, None);
        Self { prefill, decode }
    }

    pub(super) fn new(raw: &Raw) -> Self {
        Self {
            prefill: order(raw, Class::PrefillPage),
            decode: order(raw, Class::DecodePage),
        }
    }

    fn of(&self, class: u64) -> Option<&Vec<u32>> {
        match class {
            class if class == Class::PrefillPage as u64 => self.prefill.as_ref(),
            class if class == Class::DecodePage as u64 => self.decode.as_ref(),
            _ => None,
        }
    }

    /// The name of a page; `None` if the key names something else.
    pub(super) fn rank(&self, key: u64) -> Option<usize> {
        let (class, number) = (key >> NUMBER_BITS, key & ((1 << NUMBER_BITS) - 1));
        let name = self.of(class).and_then(|names| names.get(number as usize));
        is_page(key).then(|| name.map_or(number as usize, |name| *name as usize))
    }
}

/// Whether it names a page.
pub(super) fn is_page(key: u64) -> bool {
    let class = key >> NUMBER_BITS;
    class == Class::PrefillPage as u64 || class == Class::DecodePage as u64
}

/// The new name of every page of this class; `None` if there are several lives, or none.
fn order(raw: &Raw, class: Class) -> Option<Vec<u32>> {
    let place = |kind: u64| {
        let key = kind | class as u64;
        let mut places = raw
            .marks
            .iter()
            .enumerate()
            .filter(move |(_, mark)| mark.key == key);
        let first = places.next().map(|(at, _)| at);
        first.filter(|_| places.next().is_none())
    };
    place(LIFE)?;
    let begin = place(TAGS)? + 1;
    let mut tags: Vec<(u64, u32)> = Vec::new();
    for mark in &raw.marks[begin..] {
        match mark.key {
            ROW => tags.push((u64::MAX, tags.len() as u32)),
            END => break,
            tag if is_name(tag) => tags.last_mut()?.0 = tag,
            _ => {} // a cut
        }
    }
    tags.sort_unstable();
    let mut names = vec![0; tags.len()];
    for (name, (_, page)) in tags.into_iter().enumerate() {
        names[page as usize] = name as u32;
    }
    Some(names)
}

/// Marking rows, while a value is written.
impl Raw {
    pub(super) fn place(&mut self, key: u64) {
        let at = self.bytes.len() as u32;
        self.marks.push(Mark { at, key });
    }

    pub(super) fn begin_rows(&mut self, rows: Rows) {
        self.place(match rows {
            Rows::ByPage(class) => BY_PAGE | class as u64,
            Rows::Tags(class) => TAGS | class as u64,
            Rows::Set => SET,
            Rows::Memory => MEMORY,
        });
    }

    pub(super) fn begin_row(&mut self) {
        self.place(ROW);
    }

    /// Where later sections end must not depend on how long the rows were before some were left
    /// out: equal bytes are to be cut alike.
    pub(super) fn end_rows(&mut self) {
        self.place(END);
        self.cut();
    }

    pub(super) fn begin_life(&mut self, class: Class) {
        self.place(LIFE | class as u64);
    }
}

impl Names<'_> {
    /// Writes the rows that begin with the mark `next`, in their canonical order. The mark and the
    /// byte behind them.
    pub(super) fn write_rows(
        &self,
        kind: u64,
        mut next: usize,
        bytes: &mut Vec<u8>,
        cuts: Option<&mut Vec<u32>>,
    ) -> (usize, usize) {
        let marks = &self.raw.marks;
        if kind & !0xff == LIFE {
            return (next, marks[next - 1].at as usize);
        }
        let (mut rows, mut begin) = (Vec::new(), None);
        loop {
            let Mark { at, key } = marks[next];
            if (key == ROW || key == END)
                && let Some((mark, from)) = begin.replace((next + 1, at as usize))
            {
                rows.push((mark..next, from..at as usize));
            }
            next += 1;
            if key == END {
                break;
            }
        }
        let mut cuts = cuts;
        let mut put = |bytes: &mut Vec<u8>| {
            if let Some(cuts) = &mut cuts {
                cuts.push(bytes.len() as u32);
            }
        };
        if self.symmetric {
            let write = |(marks, part)| {
                let mut row = Vec::new();
                self.write(marks, part, &mut row, None);
                row
            };
            let rows = self.sorted(kind, rows.into_iter().map(write).collect());
            put_varint(bytes, rows.len() as u64);
            for row in rows {
                bytes.extend_from_slice(&row);
                put(bytes);
            }
        } else {
            put_varint(bytes, rows.len() as u64);
            for (marks, part) in rows {
                self.write(marks, part, bytes, None);
                put(bytes);
            }
        }
        (next, marks[next - 1].at as usize)
    }

    fn sorted(&self, kind: u64, mut rows: Vec<Vec<u8>>) -> Vec<Vec<u8>> {
        if kind == MEMORY {
            // Behind the page's name, which is short.
            rows.retain(|row| row[1..].iter().any(|byte| *byte != 0));
        }
        if kind == SET || kind == MEMORY {
            rows.sort_unstable();
            return rows;
        }
        let Some(names) = self.pages.of(kind & 0xff) else {
            return rows;
        };
        let mut sorted = vec![Vec::new(); rows.len()];
        for (row, name) in rows.into_iter().zip(names) {
            sorted[*name as usize] = row;
        }
        sorted
    }
}
