//! The parts of a layer in which tokens meet: the cache, and attention over it.

use std::cell::RefCell;
use std::ops::Range;

use kernels::{AttendPart, AttendScratch, Attended, Attention};
use pages::VerifiedSequence;

use crate::forward::Scratch;
use crate::{Error, KvError, KvMemory, Model, Quantity};

/// Queries (tokens × heads of a group) that share each key and value that is loaded.
const QUERIES: usize = 96;

/// Pieces of work for each thread, so that none waits long for another.
const PIECES: usize = 3;

thread_local! {
    static ATTEND: RefCell<AttendScratch> = RefCell::default();
}

/// Pages of one sequence and KV head: keys, values.
struct Runs<'a> {
    page_size: usize,
    keys: Vec<&'a [u16]>,
    values: Vec<&'a [u16]>,
}

/// One unit of parallel work.
enum Work<'a> {
    /// Consecutive rows of one sequence, all KV heads.
    Tile {
        runs: &'a [Runs<'a>],
        first_position: usize,
        /// Row-major with the full query width.
        queries: &'a [f32],
        out: &'a mut [f32],
    },
    /// A row's queries of one KV head.
    Head(Attention<'a>, &'a mut [f32]),
    /// Some blocks of such.
    Blocks(Attention<'a>, Range<usize>, &'a mut [AttendPart]),
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
        let config = &self.config;
        let (width, out_width) = (config.query_width(), config.attended_width());
        let (mut queries, mut out) = (&scratch.queries[..], &mut scratch.attended[..]);
        let (mut work, mut heads) = (Vec::new(), Vec::new());
        let rows = self.rows_of_a_tile(queries.len() / width);
        for (table, runs) in tables.iter().zip(&runs) {
            let new = table.new_tokens();
            let (my_queries, rest) = queries.split_at(new * width);
            queries = rest;
            let (my_out, rest) = out.split_at_mut(new * out_width);
            out = rest;
            if new == 1 {
                let queries = my_queries.chunks_exact(width / config.kv_heads);
                let out = my_out.chunks_exact_mut(out_width / config.kv_heads);
                for ((queries, out), runs) in queries.zip(out).zip(runs) {
                    heads.push((self.attention(layer, runs, table.start(), queries, 1), out));
                }
                continue;
            }
            let tiles = my_queries.chunks(rows * width);
            let tiles = tiles.zip(my_out.chunks_mut(rows * out_width));
            work.extend(tiles.enumerate().map(|(tile, (queries, out))| Work::Tile {
                runs,
                first_position: table.start() + tile * rows,
                queries,
                out,
            }));
        }
        self.attend_heads(layer, work, heads, &mut scratch.parts);
        Ok(())
    }

    /// Rows that share what they load; fewer where threads would have nothing to do.
    fn rows_of_a_tile(&self, rows: usize) -> usize {
        let shared = QUERIES * self.config.kv_heads / self.config.heads;
        shared
            .min(rows.div_ceil(PIECES * self.exec.threads()))
            .max(1)
    }

    /// Does `work`, and `heads`: whole if there are enough of them for all threads, else cut at
    /// blocks, whose parts are joined at the end.
    fn attend_heads<'a>(
        &self,
        layer: usize,
        work: Vec<Work<'a>>,
        heads: Vec<(Attention<'a>, &'a mut [f32])>,
        parts: &mut Vec<AttendPart>,
    ) {
        let mut work: Vec<Work<'_>> = work;
        let threads = self.exec.threads();
        let pieces = (PIECES * threads).div_ceil((heads.len() + work.len()).max(1));
        if threads == 1 || pieces == 1 {
            work.extend(heads.into_iter().map(|(head, out)| Work::Head(head, out)));
            self.exec
                .for_each(work, |work| self.attend_work(layer, work));
            return;
        }
        let blocks: usize = heads.iter().map(|(head, _)| head.blocks().len()).sum();
        parts.resize_with(blocks.max(parts.len()), AttendPart::default);
        let mut rest = &mut parts[..];
        for (head, _) in &heads {
            let mut blocks = head.blocks();
            let piece = blocks.len().div_ceil(pieces);
            while !blocks.is_empty() {
                let of = blocks.start..blocks.end.min(blocks.start + piece);
                blocks.start = of.end;
                let (mine, others) = rest.split_at_mut(of.len());
                rest = others;
                work.push(Work::Blocks(*head, of, mine));
            }
        }
        self.exec
            .for_each(work, |work| self.attend_work(layer, work));
        let mut parts = parts.iter();
        for (head, out) in heads {
            let mine = parts.by_ref().take(head.blocks().len());
            let out = self.attended(out);
            ATTEND.with_borrow_mut(|scratch| self.exec.kernels.join(&head, mine, out, scratch));
        }
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
                page_size: layout.page_size as usize,
                keys: run(layout.keys(layer, head)),
                values: match layout.value_dim {
                    0 => run(layout.keys(layer, head)),
                    _ => run(layout.values(layer, head)),
                },
            })
            .collect())
    }

    fn attend_work(&self, layer: usize, work: Work<'_>) {
        let (config, kernels) = (&self.config, self.exec.kernels);
        ATTEND.with_borrow_mut(|scratch| match work {
            Work::Head(head, out) => kernels.attend(&head, self.attended(out), scratch),
            Work::Blocks(head, blocks, parts) => {
                kernels.attend_blocks(&head, blocks, parts, scratch);
            }
            Work::Tile {
                runs,
                first_position,
                queries,
                out,
            } => {
                let rows = queries.len() / config.query_width();
                let group = config.heads / config.kv_heads;
                for (head, runs) in runs.iter().enumerate() {
                    let first = head * group;
                    let queries = &queries[first * config.key_dim..];
                    let head = self.attention(layer, runs, first_position, queries, rows);
                    let out = self.attended(&mut out[first * config.value_dim..]);
                    kernels.attend(&head, out, scratch);
                }
            }
        });
    }

    fn attended<'a>(&self, values: &'a mut [f32]) -> Attended<'a> {
        Attended {
            values,
            stride: self.config.attended_width(),
        }
    }

    /// Of one KV head; `queries` starts at the first of its own.
    fn attention<'a>(
        &self,
        layer: usize,
        runs: &'a Runs<'a>,
        first_position: usize,
        queries: &'a [f32],
        rows: usize,
    ) -> Attention<'a> {
        let config = &self.config;
        let window = config.local(layer).map(|local| local.window);
        Attention {
            queries,
            query_stride: config.query_width(),
            rows,
            group: config.heads / config.kv_heads,
            key_dim: config.key_dim,
            value_dim: config.value_dim,
            value_stride: match config.latent {
                Some(_) => config.key_dim,
                None => config.value_dim,
            },
            scale: config.score_scale,
            cap: config.score_cap,
            window: window.unwrap_or(usize::MAX),
            first_position,
            page_size: runs.page_size,
            keys: &runs.keys,
            values: &runs.values,
        }
    }
}
