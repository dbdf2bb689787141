//! Columns that line up.

use std::fmt;

/// Rows of cells; the first row is the head. Cells that begin with a digit stand at the right.
#[derive(Default)]
pub(super) struct Table(Vec<Vec<String>>);

impl Table {
    pub(super) fn new(head: &[&str]) -> Self {
        Self(vec![head.iter().map(ToString::to_string).collect()])
    }

    pub(super) fn row(&mut self, cells: impl IntoIterator<Item = String>) {
        self.0.push(cells.into_iter().collect());
    }
}

impl fmt::Display for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let columns = self.0.iter().map(Vec::len).max().unwrap_or(0);
        let wide = |at: usize| {
            let cells = self.0.iter().filter_map(|row| row.get(at));
            cells.map(|cell| cell.chars().count()).max().unwrap_or(0)
        };
        let widths: Vec<usize> = (0..columns).map(wide).collect();
        let is_number = |at: usize| {
            let cell = self.0.get(1).and_then(|row| row.get(at));
            cell.is_some_and(|cell| cell.starts_with(|c: char| c.is_ascii_digit()))
        };
        for row in &self.0 {
            let mut line = String::new();
            for (at, (cell, width)) in row.iter().zip(&widths).enumerate() {
                if at > 0 {
                    line.push_str("  ");
                }
                if is_number(at) {
                    line.push_str(&format!("{cell:>width$}"));
                } else {
                    line.push_str(&format!("{cell:<width$}"));
                }
            }
            writeln!(f, "{}", line.trim_end())?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_line_up() {
        let mut table = Table::new(&["clause", "states"]);
        table.row(["H-1".into(), "7".into()]);
        table.row(["H-10".into(), "1,234".into()]);
        assert_eq!(
            table.to_string(),
            "clause  states\nH-1          7\nH-10     1,234\n"
        );
    }
}
