//! The parts of a layer in which tokens meet: the cache, and attention over it.

use std::cell::RefCell;

use kernels::{AttendScratch, Attention};
use pages::VerifiedSequence;

use crate::forward::Scratch;
use crate::{Error, KvError, KvMemory, Model, Quantity};

/// Queries (tokens × heads of a group) that share each key and value that is loaded.
const QUERIES: usize = 24;

thread_local! {
    static ATTEND: RefCell<AttendScratch> = RefCell::default();
}

/// Pages of one sequence and KV head: keys, values.
struct Runs<'a> {
    keys: Vec<&'a [u16]>,
    values: Vec<&'a [u16]>,
}

/// One unit of parallel work: consecutive rows of one sequence, for one or all KV heads.
struct Work<'a> {
    runs: &'a [Runs<'a>],
    first_position: usize,
    rows: usize,
    /// Row-major with the full query width; starts at the first of the heads in `runs`.
    queries: &'a [f32],
    out: &'a mut [f32],
}

impl Model {
    /// Writes the new tokens' keys and values into their pages, as f16.
    pub(crate) fn store_keys_and_values(
        &self,
        layer: usize,
        scratch: &Scratch,
        kv: &mut KvMemory,
        tables: &[VerifiedSequence<'_>],
    ) -> Result<(), Error> {
        let (layout, config) = (*kv.layout(), &self.config);
        let page_size = layout.page_size as usize;
        let dims = [layout.key_dim as usize, layout.value_dim as usize];
        let widths = [config.key_width(), config.value_width()];
        let mut rows = 0..;
        for (sequence, table) in tables.iter().enumerate() {
            for position in table.start()..table.start() + table.new_tokens() {
                let row = rows.next().expect("rows without end");
                let slot = position % page_size;
                let words = kv.page_mut(table.page_of(position))?.words_mut();
                let mut finite = true;
                for head in 0..config.kv_heads {
                    let starts = [layout.keys(layer, head), layout.values(layer, head)];
                    for (i, source) in [&scratch.keys, &scratch.values].into_iter().enumerate() {
                        let (dim, width) = (dims[i], widths[i]);
                        let values = &source[row * width + head * dim..][..dim];
                        let out = &mut words[starts[i].start + slot * dim..][..dim];
                        finite &= self.exec.kernels.encode_f16_checked(values, out);
                    }
                }
                if !finite {
                    return Err(Error::NotFinite {
                        what: Quantity::KeyOrValue,
                        sequence,
                        position,
                    });
                }
            }
        }
        Ok(())
    }

    /// Attention of every new token over its sequence's pages.
    pub(crate) fn attend(
        &self,
        layer: usize,
        scratch: &mut Scratch,
        kv: &KvMemory,
        tables: &[VerifiedSequence<'_>],
    ) -> Result<(), Error> {
        let runs = tables
            .iter()
            .map(|table| self.runs(layer, kv, table))
            .collect::<Result<Vec<_>, _>>()?;
        let widths = (self.config.query_width(), self.config.attended_width());
        let (mut queries, mut out) = (&scratch.queries[..], &mut scratch.attended[..]);
        let mut work = Vec::new();
        for (table, runs) in tables.iter().zip(&runs) {
            let new = table.new_tokens();
            let (my_queries, rest) = queries.split_at(new * widths.0);
            queries = rest;
            let (my_out, rest) = out.split_at_mut(new * widths.1);
            out = rest;
            self.split_work(table.start(), runs, my_queries, my_out, &mut work);
        }
        let page_size = kv.layout().page_size as usize;
        self.exec
            .for_each(work, |work| self.attend_work(layer, page_size, work));
        Ok(())
    }

    fn runs<'a>(
        &self,
        layer: usize,
        kv: &'a KvMemory,
        table: &VerifiedSequence<'_>,
    ) -> Result<Vec<Runs<'a>>, KvError> {
        let layout = kv.layout();
        let pages = table
            .pages()
            .map(|page| kv.page(page))
            .collect::<Result<Vec<_>, _>>()?;
        let run = |range: std::ops::Range<usize>| -> Vec<&'a [u16]> {
            pages
                .iter()
                .map(|page| &page.words()[range.clone()])
                .collect()
        };
        let heads = 0..self.config.kv_heads;
        Ok(heads
            .map(|head| Runs {
                keys: run(layout.keys(layer, head)),
                values: match layout.value_dim {
                    0 => run(layout.keys(layer, head)),
                    _ => run(layout.values(layer, head)),
                },
            })
            .collect())
    }

    /// A decode row is split by KV head, a prefill chunk into tiles of rows.
    fn split_work<'a>(
        &self,
        start: usize,
        runs: &'a [Runs<'a>],
        queries: &'a [f32],
        out: &'a mut [f32],
        work: &mut Vec<Work<'a>>,
    ) {
        let config = &self.config;
        let (width, out_width) = (config.query_width(), config.attended_width());
        if queries.len() == width {
            let heads = queries
                .chunks_exact(width / config.kv_heads)
                .zip(out.chunks_exact_mut(out_width / config.kv_heads));
            work.extend(
                heads
                    .zip(runs.chunks(1))
                    .map(|((queries, out), runs)| Work {
                        runs,
                        first_position: start,
                        rows: 1,
                        queries,
                        out,
                    }),
            );
            return;
        }
        let rows = (QUERIES * config.kv_heads / config.heads).max(1);
        let tiles = queries
            .chunks(rows * width)
            .zip(out.chunks_mut(rows * out_width));
        work.extend(tiles.enumerate().map(|(tile, (queries, out))| Work {
            runs,
            first_position: start + tile * rows,
            rows: queries.len() / width,
            queries,
            out,
        }));
    }

    fn attend_work(&self, layer: usize, page_size: usize, work: Work<'_>) {
        let config = &self.config;
        let group = config.heads / config.kv_heads;
        let window = config.local(layer).map(|local| local.window);
        ATTEND.with_borrow_mut(|scratch| {
            for (head, runs) in work.runs.iter().enumerate() {
                let first = head * group;
                let attention = Attention {
                    queries: &work.queries[first * config.key_dim..],
                    query_stride: config.query_width(),
                    rows: work.rows,
                    group,
                    key_dim: config.key_dim,
                    value_dim: config.value_dim,
                    value_stride: match config.latent {
                        Some(_) => config.key_dim,
                        None => config.value_dim,
                    },
                    scale: config.score_scale,
                    cap: config.score_cap,
                    window: window.unwrap_or(usize::MAX),
                    first_position: work.first_position,
                    page_size,
                    keys: &runs.keys,
                    values: &runs.values,
                    out: &mut work.out[first * config.value_dim..],
                    out_stride: config.attended_width(),
                };
                self.exec.kernels.attend(attention, scratch);
            }
        });
    }
}
