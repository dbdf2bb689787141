//! The plot as SVG, and in a page.

use super::Scatter;
use plotters::prelude::*;

const SIZE: (u32, u32) = (960, 560);
const DOT: RGBColor = RGBColor(70, 110, 160);
const FAST: RGBColor = RGBColor(200, 30, 30);
const FLOOR: RGBColor = RGBColor(20, 130, 80);

/// The drawing; `None` if there is nothing to draw.
pub fn svg(scatter: &Scatter, title: &str) -> Option<String> {
    let mut out = String::new();
    draw(scatter, title, &mut out)?.ok()?;
    Some(out)
}

type Drawn<'a> = Result<(), DrawingAreaErrorKind<<SVGBackend<'a> as DrawingBackend>::ErrorType>>;

fn draw<'a>(scatter: &Scatter, title: &str, out: &'a mut String) -> Option<Drawn<'a>> {
    let ((x0, x1), (y0, y1)) = scatter.ranges()?;
    Some((|| {
        let root = SVGBackend::with_string(out, SIZE).into_drawing_area();
        root.fill(&WHITE)?;
        let mut chart = ChartBuilder::on(&root)
            .caption(title, ("sans-serif", 20))
            .margin(16)
            .x_label_area_size(44)
            .y_label_area_size(70)
            .build_cartesian_2d((x0..x1).log_scale(), (y0..y1).log_scale())?;
        chart
            .configure_mesh()
            .light_line_style(WHITE)
            .bold_line_style(BLACK.mix(0.08))
            .x_desc("prompt tokens that were not cached")
            .y_desc("seconds to the first token")
            .x_label_formatter(&|x| format!("{x:.0}"))
            .y_label_formatter(&|y| crate::signal::duration(*y))
            .draw()?;
        let dots = scatter.dots.iter();
        chart
            .draw_series(dots.map(|it| Circle::new(*it, 2, DOT.mix(0.35).filled())))?
            .label("requests")
            .legend(|(x, y)| Circle::new((x + 8, y), 4, DOT.filled()));
        let floor = scatter.floor.iter().copied();
        chart
            .draw_series(LineSeries::new(floor, FLOOR.stroke_width(2)))?
            .label("least time of a prefill, as learned")
            .legend(|(x, y)| PathElement::new([(x, y), (x + 16, y)], FLOOR.stroke_width(2)));
        let alarm = scatter
            .floor
            .iter()
            .map(|it| (it.0, it.1 * scatter.tolerance));
        chart
            .draw_series(LineSeries::new(alarm, FLOOR.mix(0.5)))?
            .label("alarm below")
            .legend(|(x, y)| PathElement::new([(x, y), (x + 16, y)], FLOOR.mix(0.5)));
        let fast = scatter.convicted.iter();
        chart
            .draw_series(fast.map(|it| Cross::new(*it, 5, FAST.stroke_width(2))))?
            .label("too fast to be true")
            .legend(|(x, y)| Cross::new((x + 8, y), 4, FAST.stroke_width(2)));
        chart
            .configure_series_labels()
            .position(SeriesLabelPosition::UpperLeft)
            .background_style(WHITE.mix(0.85))
            .border_style(BLACK.mix(0.2))
            .draw()?;
        root.present()
    })())
}

/// A page for a browser with one drawing after the other, and what was said in text.
pub fn page(title: &str, says: &str, drawings: &[String]) -> String {
    let mut body = String::new();
    for drawing in drawings {
        body.push_str("<figure>");
        body.push_str(drawing);
        body.push_str("</figure>\n");
    }
    format!(
        "<!doctype html>\n<html lang=\"en\">\n<head><meta charset=\"utf-8\">\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\
         <title>{title}</title>\n<style>\
         body{{font:16px/1.5 system-ui,sans-serif;margin:2rem auto;max-width:62rem;padding:0 1rem}}\
         svg{{width:100%;height:auto}}figure{{margin:1rem 0}}\
         pre{{overflow-x:auto;background:#f5f5f5;padding:1rem;font-size:13px}}\
         </style></head>\n<body><h1>{title}</h1>\n{body}<pre>{says}</pre>\n</body>\n</html>\n",
        title = escape(title),
        says = escape(says),
    )
}

fn escape(text: &str) -> String {
    let text = text.replace('&', "&amp;").replace('<', "&lt;");
    text.replace('>', "&gt;").replace('"', "&quot;")
}
