//! How work is spread over threads. Nothing here can show in a result: every output element is
//! computed whole by one thread, in an order that does not depend on which.

use std::ops::Range;

use kernels::{GROUP, Kernels, Matrix, Rows, Target};
use rayon::prelude::*;

use crate::Error;

/// The kernels and the threads that run them.
#[derive(Debug)]
pub(crate) struct Exec {
    pub(crate) kernels: Kernels,
    /// None for one thread: the caller's own.
    pool: Option<rayon::ThreadPool>,
}

/// How one product is spread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Split {
    /// Not at all: the caller is one of several threads already.
    Whole,
    /// Over the weight rows: for batches of few tokens.
    WeightRows,
}

impl Exec {
    pub(crate) fn new(kernels: Kernels, threads: usize) -> Result<Exec, Error> {
        let threads = threads.max(1);
        let build = || {
            rayon::ThreadPoolBuilder::new()
                .num_threads(threads)
                .thread_name(|i| format!("compute-{i}"))
                .build()
                .map_err(|source| Error::Threads { threads, source })
        };
        let pool = if threads > 1 { Some(build()?) } else { None };
        Ok(Exec { kernels, pool })
    }

    /// Threads that compute.
    pub(crate) fn threads(&self) -> usize {
        self.pool
            .as_ref()
            .map_or(1, rayon::ThreadPool::current_num_threads)
    }

    /// Runs `work` where `for_each` finds the pool's threads.
    pub(crate) fn enter<R: Send>(&self, work: impl FnOnce() -> R + Send) -> R {
        match &self.pool {
            Some(pool) => pool.install(work),
            None => work(),
        }
    }

    /// Runs `work` on every item, in any order.
    pub(crate) fn for_each<T: Send>(&self, items: Vec<T>, work: impl Fn(T) + Send + Sync) {
        if self.pool.is_some() && items.len() > 1 {
            items.into_par_iter().with_max_len(1).for_each(work);
        } else {
            items.into_iter().for_each(work);
        }
    }

    /// Token-major products of several matrices with the same activations.
    pub(crate) fn products(
        &self,
        split: Split,
        rows: Rows<'_>,
        outputs: &mut [(&Matrix, &mut [f32])],
    ) {
        let parts = self.threads();
        if split == Split::Whole || parts == 1 {
            for (matrix, out) in outputs {
                let stride = matrix.rows();
                let target = Target {
                    values: out,
                    token_stride: stride,
                    group_stride: GROUP,
                };
                self.kernels
                    .matmul(matrix, rows, 0..matrix.groups(), target);
            }
        } else if rows.rows() == 1 {
            self.split_one_token(parts, rows, outputs);
        } else {
            self.split_tokens(parts, rows, outputs);
        }
    }

    /// One token: a thread's share of the output is contiguous already.
    fn split_one_token(&self, parts: usize, rows: Rows<'_>, outputs: &mut [(&Matrix, &mut [f32])]) {
        let mut work: Vec<Vec<Share<'_>>> = (0..parts).map(|_| Vec::new()).collect();
        for (matrix, out) in outputs {
            let mut rest: &mut [f32] = out;
            let mut taken = 0;
            for (part, work) in work.iter_mut().enumerate() {
                let groups = share(matrix.groups(), parts, part);
                let end = (groups.end * GROUP).min(matrix.rows());
                let (mine, others) = rest.split_at_mut(end - taken);
                (rest, taken) = (others, end);
                work.push(Share {
                    matrix,
                    groups,
                    values: mine,
                });
            }
        }
        self.for_each(work, |shares| {
            for Share {
                matrix,
                groups,
                values,
            } in shares
            {
                let stride = matrix.rows();
                let target = Target {
                    values,
                    token_stride: stride,
                    group_stride: GROUP,
                };
                self.kernels.matmul(matrix, rows, groups, target);
            }
        });
    }

    /// Several tokens: every thread writes its groups apart, then they are put in token order.
    fn split_tokens(&self, parts: usize, rows: Rows<'_>, outputs: &mut [(&Matrix, &mut [f32])]) {
        let tokens = rows.rows();
        let size = GROUP * tokens;
        let mut buffers: Vec<Vec<f32>> = outputs
            .iter()
            .map(|(matrix, _)| vec![0.0; matrix.groups() * size])
            .collect();
        let mut work: Vec<Vec<Share<'_>>> = (0..parts).map(|_| Vec::new()).collect();
        for ((matrix, _), buffer) in outputs.iter().zip(&mut buffers) {
            let mut rest: &mut [f32] = buffer;
            for (part, work) in work.iter_mut().enumerate() {
                let groups = share(matrix.groups(), parts, part);
                let (mine, others) = rest.split_at_mut(groups.len() * size);
                rest = others;
                work.push(Share {
                    matrix,
                    groups,
                    values: mine,
                });
            }
        }
        self.for_each(work, |shares| {
            for Share {
                matrix,
                groups,
                values,
            } in shares
            {
                let target = Target {
                    values,
                    token_stride: GROUP,
                    group_stride: size,
                };
                self.kernels.matmul(matrix, rows, groups, target);
            }
        });
        for ((matrix, out), buffer) in outputs.iter_mut().zip(&buffers) {
            for (group, lanes) in buffer.chunks_exact(size).enumerate() {
                let first = group * GROUP;
                let width = GROUP.min(matrix.rows() - first);
                for (token, lanes) in lanes.chunks_exact(GROUP).enumerate() {
                    out[token * matrix.rows() + first..][..width].copy_from_slice(&lanes[..width]);
                }
            }
        }
    }
}

/// One thread's groups of one matrix.
struct Share<'a> {
    matrix: &'a Matrix,
    groups: Range<usize>,
    values: &'a mut [f32],
}

/// The `part`-th of `parts` nearly equal ranges of `0..n`.
fn share(n: usize, parts: usize, part: usize) -> Range<usize> {
    n * part / parts..n * (part + 1) / parts
}
