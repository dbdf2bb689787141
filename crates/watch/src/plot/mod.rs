//! Prompt tokens against time: the requests, the floor, and what lies below it. As SVG, as a page
//! for a browser, and as text for a terminal.

mod svg;
mod term;

pub use svg::{page, svg};
pub use term::text;

use crate::request::Request;
use crate::watching::{Detector, Key};

/// Ordinary requests that are drawn; of more, an even sample.
const DOTS_MAX: usize = 4000;
/// Convicted requests that are drawn.
const CONVICTED_MAX: usize = 2000;

/// One plot: the requests of one series.
#[derive(Clone, Debug, Default)]
pub struct Scatter {
    /// Tokens and seconds of requests that nothing speaks against.
    dots: Vec<(f64, f64)>,
    /// Of requests that were too fast.
    convicted: Vec<(f64, f64)>,
    /// The floor, from short to long.
    floor: Vec<(f64, f64)>,
    /// Share of the floor below which a request is convicted.
    tolerance: f64,
    /// Ordinary requests offered, for the sample.
    offered: usize,
    /// Every how many of them one is kept.
    stride: usize,
}

impl Scatter {
    /// An empty plot.
    pub fn new(tolerance: f64) -> Self {
        Self {
            tolerance,
            stride: 1,
            ..Self::default()
        }
    }

    /// Adds a request.
    pub fn add(&mut self, request: &Request, convicted: bool) {
        let Some(seconds) = request.seconds.filter(|_| request.is_measured()) else {
            return;
        };
        let point = (request.uncached() as f64, seconds.max(1e-4));
        if convicted {
            if self.convicted.len() < CONVICTED_MAX {
                self.convicted.push(point);
            }
            return;
        }
        if self.offered.is_multiple_of(self.stride) {
            self.dots.push(point);
        }
        self.offered += 1;
        if self.dots.len() == DOTS_MAX {
            // Every second one goes, and from here on only every second one comes.
            let mut keep = false;
            self.dots.retain(|_| {
                keep = !keep;
                keep
            });
            self.stride *= 2;
        }
    }

    /// Draws the floor of a series over the lengths that were seen.
    pub fn floor_of(&mut self, watch: &mut Detector, key: &Key) {
        let least = watch.settings().learn;
        let Some(series) = watch.series.get_mut(key) else {
            return;
        };
        let learned = series.learned(least);
        let Some((from, to)) = self.lengths() else {
            return;
        };
        let mut tokens = from;
        while tokens <= to * 1.001 {
            if let Some(floor) = learned.floor(tokens.round() as u64) {
                self.floor.push((tokens, floor.seconds));
            }
            tokens *= 1.05;
        }
    }

    /// Whether there is anything to draw.
    pub fn is_empty(&self) -> bool {
        self.dots.is_empty() && self.convicted.is_empty()
    }

    fn points(&self) -> impl Iterator<Item = &(f64, f64)> {
        self.dots.iter().chain(&self.convicted)
    }

    fn lengths(&self) -> Option<(f64, f64)> {
        range(self.points().map(|it| it.0))
    }

    /// Ranges of both axes, with room at the ends.
    fn ranges(&self) -> Option<((f64, f64), (f64, f64))> {
        let (x0, x1) = self.lengths()?;
        let lines = self.floor.iter().map(|it| it.1 * self.tolerance);
        let (y0, y1) = range(self.points().map(|it| it.1).chain(lines))?;
        Some(((x0 / 1.2, x1 * 1.2), (y0 / 1.5, y1 * 1.5)))
    }
}

fn range(values: impl Iterator<Item = f64>) -> Option<(f64, f64)> {
    values.fold(None, |range, it| match range {
        None => Some((it, it)),
        Some((low, high)) => Some((low.min(it), high.max(it))),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fields::{Fields, Line};

    fn request(tokens: u64, ms: f64) -> Request {
        let line = format!(
            "{{\"time_unix_s\":1,\"status\":200,\"prompt_tokens\":{tokens},\"cached_tokens\":0,\
             \"ttft_ms\":{ms}}}"
        );
        match Fields::default().line(&line) {
            Line::Request(request) => *request,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn a_million_requests_are_sampled_and_every_convicted_one_is_shown() {
        let mut scatter = Scatter::new(0.5);
        for n in 1..100_000 {
            scatter.add(&request(n, n as f64), false);
        }
        scatter.add(&request(99_999, 1.0), true);
        assert!(scatter.dots.len() < DOTS_MAX && scatter.dots.len() > DOTS_MAX / 4);
        assert_eq!(scatter.lengths().unwrap().1, 99_999.0);
        let text = text(&scatter, 60, 12);
        assert!(text.contains('X'), "{text}");
        let svg = svg(&scatter, "m on w").unwrap();
        assert!(
            svg.starts_with("<svg") && svg.contains("circle"),
            "{svg:.200}"
        );
    }

    #[test]
    fn nothing_to_draw_is_said() {
        assert!(svg(&Scatter::new(0.5), "x").is_none());
        assert_eq!(text(&Scatter::new(0.5), 60, 12), "");
    }
}
