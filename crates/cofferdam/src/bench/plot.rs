//! The engine's rows as a picture: tokens a second to llama.cpp's, or to the machine's limit.

use super::figures::{Row, What};
use std::fmt::Write;

const ROW: usize = 22;
const LEFT: usize = 260;
const WIDTH: usize = 460;

/// An SVG with one bar a row, its interval, and a line where both are equal.
pub(super) fn svg(rows: &[Row]) -> String {
    let bars: Vec<_> = rows.iter().filter_map(bar).collect();
    let most = bars.iter().fold(1.0_f64, |most, bar| most.max(bar.high));
    let x = |value: f64| LEFT as f64 + value / most * WIDTH as f64;
    let (width, height) = (LEFT + WIDTH + 80, bars.len() * ROW + 40);
    let mut out = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width} {height}\" role=\"img\" \
         font-family=\"sans-serif\" font-size=\"12\">\n<title>Speed of the engine</title>\n\
         <rect width=\"{width}\" height=\"{height}\" fill=\"#fff\"/>\n"
    );
    for (n, bar) in bars.iter().enumerate() {
        let (top, middle) = (n * ROW + 6, n * ROW + 15);
        let (fill, what) = match bar.beside {
            true => ("#2a6f97", "of llama.cpp"),
            false => ("#8a8a8a", "of the limit"),
        };
        let _ = writeln!(
            out, // a String takes everything
            "<text x=\"{}\" y=\"{}\" text-anchor=\"end\">{}</text>\
             <rect x=\"{LEFT}\" y=\"{top}\" width=\"{:.1}\" height=\"{}\" fill=\"{fill}\"/>\
             <path d=\"M{:.1} {middle}H{:.1}\" stroke=\"#111\" stroke-width=\"1.5\"/>\
             <text x=\"{:.1}\" y=\"{}\">{:.2}<title>{what}</title></text>",
            LEFT - 8,
            middle + 4,
            bar.name,
            x(bar.value) - LEFT as f64,
            ROW - 6,
            x(bar.low),
            x(bar.high),
            x(bar.high) + 6.0,
            middle + 4,
            bar.value,
        );
    }
    let _ = writeln!(
        out,
        "<path d=\"M{0:.1} 0V{1}\" stroke=\"#b00\" stroke-dasharray=\"4 3\"/>\
         <text x=\"{0:.1}\" y=\"{2}\" text-anchor=\"middle\">1 (blue: llama.cpp; grey: the limit)</text>\n</svg>",
        x(1.0),
        bars.len() * ROW + 8,
        bars.len() * ROW + 24,
    );
    out
}

struct Bar {
    name: String,
    value: f64,
    low: f64,
    high: f64,
    beside: bool,
}

/// None where there is nothing to hold it against.
fn bar(row: &Row) -> Option<Bar> {
    let what = match row.what {
        What::Prefill => format!("prefill of {}", row.tokens),
        What::Decode => format!("decode at {}, {} sequences", row.tokens, row.sequences),
    };
    let name = format!("{what}, {} threads", row.threads);
    if let Some(ratio) = row.ratio(|it| it.wall) {
        return Some(Bar {
            name,
            value: ratio.median,
            low: ratio.low,
            high: ratio.high,
            beside: true,
        });
    }
    let ours = row.ours(|it| it.wall)?;
    let scale = row.of_limit? / ours.median;
    Some(Bar {
        name,
        value: ours.median * scale,
        low: ours.low * scale,
        high: ours.high * scale,
        beside: false,
    })
}
