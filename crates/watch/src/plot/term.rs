//! The plot as text.

use super::Scatter;
use crate::signal::duration;
use std::fmt::Write;

/// Draws into so many columns and rows, on logarithmic axes: `.` `o` `@` requests (more and more
/// of them), `-` the floor, `X` too fast. Empty if there is nothing to draw.
pub fn text(scatter: &Scatter, columns: usize, rows: usize) -> String {
    let Some(((x0, x1), (y0, y1))) = scatter.ranges() else {
        return String::new();
    };
    let place = |value: f64, low: f64, high: f64, cells: usize| {
        let share = (value / low).ln() / (high / low).ln();
        ((share * cells as f64) as usize).min(cells - 1)
    };
    let cell = |&(x, y): &(f64, f64)| {
        let (column, row) = (place(x, x0, x1, columns), place(y, y0, y1, rows));
        (rows - 1 - row) * columns + column
    };
    let mut counts = vec![0_u32; columns * rows];
    scatter.dots.iter().for_each(|it| counts[cell(it)] += 1);
    let mut cells: Vec<_> = counts
        .iter()
        .map(|n| match n {
            0 => ' ',
            1..=2 => '.',
            3..=9 => 'o',
            _ => '@',
        })
        .collect();
    for point in &scatter.floor {
        let at = cell(point);
        if cells[at] == ' ' {
            cells[at] = '-';
        }
    }
    scatter
        .convicted
        .iter()
        .for_each(|it| cells[cell(it)] = 'X');
    let mut out = String::new();
    for (row, line) in cells.chunks(columns).enumerate() {
        let label = match row {
            0 => duration(y1),
            row if row == rows - 1 => duration(y0),
            _ => String::new(),
        };
        let line: String = line.iter().collect();
        let _ = writeln!(out, "{label:>9} |{}", line.trim_end());
    }
    let _ = writeln!(out, "{:>9} +{}", "", "-".repeat(columns));
    let (left, right) = (
        format!("{x0:.0}"),
        format!("{x1:.0} uncached prompt tokens"),
    );
    let gap = columns.saturating_sub(left.len() + right.len()).max(1);
    let _ = writeln!(out, "{:>9}  {left}{}{right}", "", " ".repeat(gap));
    let _ = writeln!(out, "{:>9}  . o @ requests   - floor   X too fast", "");
    out
}
