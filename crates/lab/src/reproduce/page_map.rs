//! Decode's pool as a picture: a cell for each page, in it a stripe for each run of slots that was
//! written for the same tenant.

use super::pool::{Page, Written};
use super::scenario::Tenant;
use std::fmt::Write;

/// Side of a cell and the gap between two, in units of the picture.
const CELL: usize = 20;
const GAP: usize = 4;

/// Columns for so many pages: about twice as wide as high.
fn columns(pages: usize) -> usize {
    let wide = ((pages * 2) as f64).sqrt().round() as usize;
    wide.next_power_of_two().clamp(8, 32)
}

/// The picture. `name` is read out by those who cannot see it.
pub(super) fn svg(pages: &[Page], page_size: u32, name: &str) -> String {
    let columns = columns(pages.len());
    let rows = pages.len().div_ceil(columns);
    let (width, height) = (extent(columns), extent(rows));
    let mut out = format!(
        "<svg class=\"map\" viewBox=\"0 0 {width} {height}\" role=\"img\" aria-label=\"{name}\">"
    );
    for (at, page) in pages.iter().enumerate() {
        let x = GAP + at % columns * (CELL + GAP);
        let y = GAP + at / columns * (CELL + GAP);
        cell(&mut out, page, page_size, (x, y), at);
    }
    out.push_str("</svg>");
    out
}

fn extent(cells: usize) -> usize {
    cells * (CELL + GAP) + GAP
}

fn cell(out: &mut String, page: &Page, page_size: u32, (x, y): (usize, usize), at: usize) {
    let owned = if page.ordinal.is_some() { " own" } else { "" };
    let _ = write!(
        out,
        "<g class=\"page{owned}\"><title>{}</title><rect class=\"none\" x=\"{x}\" y=\"{y}\" \
         width=\"{CELL}\" height=\"{CELL}\" rx=\"2\"/>",
        title(page, page_size, at)
    );
    let slots = page.slots.len().max(1);
    let mut begin = 0;
    while begin < page.slots.len() {
        let whose = page.slots[begin].map(|it| it.tenant);
        let same = page.slots[begin..]
            .iter()
            .take_while(|it| it.map(|it| it.tenant) == whose);
        let end = begin + same.count();
        if let Some(tenant) = whose {
            let class = match tenant {
                Tenant::A => "a",
                Tenant::B => "b",
            };
            let left = x as f64 + (CELL * begin) as f64 / slots as f64;
            let width = (CELL * (end - begin)) as f64 / slots as f64;
            let _ = write!(
                out,
                "<rect class=\"{class}\" x=\"{left:.2}\" y=\"{y}\" width=\"{width:.2}\" \
                 height=\"{CELL}\"/>"
            );
        }
        begin = end;
    }
    let _ = write!(
        out,
        "<rect class=\"edge\" x=\"{x}\" y=\"{y}\" width=\"{CELL}\" height=\"{CELL}\" rx=\"2\"/></g>"
    );
}

/// What stands beside the pointer.
fn title(page: &Page, page_size: u32, at: usize) -> String {
    let mut text = format!("page {at}");
    if let Some(ordinal) = page.ordinal {
        let from = ordinal * page_size;
        let to = from + page_size - 1;
        let _ = write!(text, ": B's positions {from} to {to}");
    }
    let mut begin = 0;
    while begin < page.slots.len() {
        let end = begin + run(&page.slots[begin..]);
        let slots = match end - begin {
            1 => format!("slot {begin}"),
            _ => format!("slots {begin} to {}", end - 1),
        };
        let _ = match page.slots[begin] {
            None => write!(text, "; {slots} never written"),
            Some(it) => write!(
                text,
                "; {slots} written for tenant {:?}, request {}, from its position {} on",
                it.tenant, it.handoff, it.position
            ),
        };
        begin = end;
    }
    text
}

/// Slots from the first on that one request wrote in a row.
fn run(slots: &[Option<Written>]) -> usize {
    let first = slots[0];
    let follows = |(n, slot): &(u32, &Option<Written>)| match (first, slot) {
        (None, None) => true,
        (Some(first), Some(it)) => it.handoff == first.handoff && it.position == first.position + n,
        _ => false,
    };
    (0..).zip(slots).take_while(follows).count()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn written(tenant: Tenant, handoff: u64, position: u32) -> Option<Written> {
        Some(Written {
            tenant,
            handoff,
            position,
        })
    }

    #[test]
    fn a_page_says_whose_it_is_and_for_whom_it_was_written() {
        let a = |position| written(Tenant::A, 2, position);
        let page = Page {
            slots: vec![written(Tenant::B, 3, 0), a(1), a(2), None],
            ordinal: Some(0),
        };
        let said = title(&page, 4, 7);
        assert_eq!(
            said,
            "page 7: B's positions 0 to 3; slot 0 written for tenant B, request 3, from its \
             position 0 on; slots 1 to 2 written for tenant A, request 2, from its position 1 on; \
             slot 3 never written"
        );
        let drawn = svg(&[page], 4, "x");
        assert!(drawn.contains("class=\"b\" x=\"4.00\""), "{drawn}");
        assert!(
            drawn.contains("class=\"a\" x=\"9.00\" y=\"4\" width=\"10.00\""),
            "two slots of four: {drawn}"
        );
    }
}
