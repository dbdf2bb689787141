//! What memory holds, cell by cell: enough to say at every reading whether it is what its writer
//! computed for this position of this reader's own tokens (H-1), and if not, whose it is.

use serde::Serialize;
use std::fmt;

/// Token slots a page, in every world.
pub const PAGE_SIZE: u16 = 2;
/// Ranks of a prefill worker, at most.
pub const MAX_RANKS: usize = 2;
/// Prompts in a world, at most: a letter each.
pub const MAX_PROMPTS: usize = 52;

/// The KV of one token at one position, in one token slot of a page. It depends on the domain and
/// on all tokens up to there, so two prompts that begin alike in one domain have the same cells.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default, Serialize)]
pub struct Cell(u32);

// So far apart that no two pages that a world can hold have the same checksum, see there.
const GENERATED: u32 = 1 << 28;
const RESIDUE: u32 = 1 << 29;
const CORRUPT: u32 = 1 << 30;
/// Positions of a prompt, at most.
const POSITIONS: u32 = 64;

impl Cell {
    /// Never written, or zeroed.
    pub const EMPTY: Cell = Cell(0);

    /// The token at `position` of a prompt; `prompt` is the first one of this world that has the
    /// same domain and the same tokens up to there.
    pub fn prompt(prompt: usize, position: usize) -> Self {
        Self(1 + prompt as u32 * POSITIONS + position as u32)
    }

    /// The `n`-th token that was generated behind a prompt.
    pub fn generated(prompt: usize, choice: u16, n: u32) -> Self {
        Self(GENERATED | (prompt as u32) << 8 | u32::from(choice) << 6 | n)
    }

    /// What is left behind when a page is given back. Whose it was is kept and what it was is not:
    /// no reading of it can ever be right, so worlds that differ in it have the same future.
    pub fn as_residue(self) -> Self {
        match self.whose() {
            Some(prompt) => Self(RESIDUE | prompt as u32),
            None => self,
        }
    }

    /// Whether a cell of these bits can be what a reader is to find: neither nothing nor what was
    /// left behind.
    pub(crate) fn says_something(bits: u64) -> bool {
        bits != 0 && bits & u64::from(RESIDUE) == 0
    }

    /// With a flipped bit.
    pub fn corrupted(self) -> Self {
        Self(self.0 ^ CORRUPT)
    }

    /// The prompt that it belongs to.
    pub fn whose(self) -> Option<usize> {
        let plain = self.0 & !CORRUPT;
        match plain {
            0 => None,
            _ if plain & RESIDUE != 0 => Some((plain & !RESIDUE) as usize),
            _ if plain & GENERATED != 0 => Some(((plain & !GENERATED) >> 8) as usize),
            _ => Some(((plain - 1) / POSITIONS) as usize),
        }
    }
}

impl fmt::Display for Cell {
    /// `A3`: prompt A's token 3; `A+1`: the second token generated behind it; `(A)`: left behind
    /// by A; `·`: nothing.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Some(prompt) = self.whose() else {
            return write!(f, "·");
        };
        let (name, plain) = (letter(prompt), self.0 & !CORRUPT);
        if self.0 & CORRUPT != 0 {
            write!(f, "!")?;
        }
        if plain & RESIDUE != 0 {
            write!(f, "({name})")
        } else if plain & GENERATED != 0 {
            write!(f, "{name}+{}", plain & 0x3f)
        } else {
            write!(f, "{name}{}", (plain - 1) % POSITIONS)
        }
    }
}

/// Prompts are called by letters in timelines.
pub fn letter(prompt: usize) -> char {
    let mut letters = ('A'..='Z').chain('a'..='z');
    letters.nth(prompt).unwrap_or('?')
}

/// One page's token slots.
pub type Cells = [Cell; PAGE_SIZE as usize];

/// Shows a page.
pub fn show(cells: &[Cell]) -> String {
    let cells: Vec<String> = cells.iter().map(Cell::to_string).collect();
    format!("[{}]", cells.join(" "))
}

/// What the filling thread computes over the filled slots, and the copying thread over its copy.
pub fn checksum(cells: &[Cell]) -> u32 {
    cells.iter().fold(1, |sum: u32, cell| {
        sum.wrapping_mul(65_599).wrapping_add(cell.0)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cell_says_whose_it_is() {
        for (cell, shown) in [
            (Cell::EMPTY, "·"),
            (Cell::prompt(0, 3), "A3"),
            (Cell::generated(2, 1, 5), "C+5"),
            (Cell::prompt(1, 0).as_residue(), "(B)"),
            (Cell::prompt(1, 2).corrupted(), "!B2"),
        ] {
            assert_eq!(cell.to_string(), shown);
        }
        assert_eq!(Cell::EMPTY.as_residue(), Cell::EMPTY);
    }

    #[test]
    fn a_flipped_bit_changes_the_checksum_and_another_page_has_another() {
        let page = [Cell::prompt(0, 0), Cell::prompt(0, 1)];
        let flipped = [page[0], page[1].corrupted()];
        assert_ne!(checksum(&page), checksum(&flipped));
        assert_ne!(checksum(&page), checksum(&page[..1]));
        assert_ne!(checksum(&page), checksum(&[Cell::EMPTY, page[1]]));
    }
}
