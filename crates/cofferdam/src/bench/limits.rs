//! What the machine could do: the limits that the engine's figures are held against.

use super::figures::Median;
use kernels::{Arena, GROUP, Int8Rows, Isa, Kernels, Matrix, PackedInt8, Rows, Target};
use serde::Serialize;
use std::hint::black_box;
use std::time::{Duration, Instant};

/// Bytes that are read: more than any cache holds.
const STREAM: usize = 512 << 20;
/// A product that stays in the cache of one core: 128 KiB of weights.
const ROWS: usize = 256;
const COLS: usize = 512;
const TOKENS: usize = 64;
/// How long one measurement of products lasts.
const PRODUCTS_FOR: Duration = Duration::from_millis(200);

/// The limits of this machine for so many threads.
#[derive(Clone, Copy, Debug, Serialize)]
pub(super) struct Limits {
    pub(super) threads: u16,
    /// Bytes a second, read once from memory.
    pub(super) bytes: Median,
    /// Products of int8 a second, by the engine's own kernel on weights that stay in the cache.
    pub(super) products: Median,
}

impl Limits {
    pub(super) fn measure(isa: Isa, threads: u16, rounds: u32) -> anyhow::Result<Self> {
        let memory = vec![1_u64; STREAM / 8];
        let work = Work::new(isa)?;
        let bytes = (0..rounds).map(|_| read(&memory, threads));
        let bytes = Median::of(bytes.collect::<Vec<_>>().into_iter());
        let products = (0..rounds).map(|_| work.run(threads));
        let products = Median::of(products.collect::<Vec<_>>().into_iter());
        let (Some(bytes), Some(products)) = (bytes, products) else {
            anyhow::bail!("no rounds");
        };
        Ok(Self {
            threads,
            bytes,
            products,
        })
    }
}

/// Bytes a second, each thread its share.
fn read(memory: &[u64], threads: u16) -> f64 {
    let begun = Instant::now();
    std::thread::scope(|scope| {
        for share in memory.chunks(memory.len().div_ceil(usize::from(threads))) {
            scope.spawn(|| {
                let sum = |part: &[u64]| part.iter().fold(0_u64, |sum, it| sum.wrapping_add(*it));
                black_box(sum(black_box(share)))
            });
        }
    });
    size_of_val(memory) as f64 / begun.elapsed().as_secs_f64()
}

/// One product, again and again.
struct Work {
    kernels: Kernels,
    weights: Matrix,
    tokens: Int8Rows,
}

impl Work {
    fn new(isa: Isa) -> anyhow::Result<Self> {
        let kernels = Kernels::new(isa)?;
        let fill = |row: usize, out: &mut [f32]| {
            let value = |column: usize| ((row * 31 + column * 17) % 255) as f32 - 127.0;
            out.iter_mut()
                .enumerate()
                .for_each(|(i, it)| *it = value(i));
            Ok::<(), kernels::OutOfMemory>(())
        };
        let weights = PackedInt8::quantize(&mut Arena::default(), ROWS, COLS, fill)?;
        let values: Vec<f32> = (0..COLS * TOKENS)
            .map(|i| (i % 199) as f32 - 99.0)
            .collect();
        let mut tokens = Int8Rows::default();
        kernels.quantize(&values, COLS, &mut tokens);
        Ok(Self {
            kernels,
            weights: Matrix::Int8(weights),
            tokens,
        })
    }

    /// Products a second, all threads together.
    fn run(&self, threads: u16) -> f64 {
        std::thread::scope(|scope| {
            let one = |_| scope.spawn(|| self.run_alone());
            let threads: Vec<_> = (0..threads).map(one).collect();
            let rates = threads.into_iter().filter_map(|thread| thread.join().ok());
            rates.sum()
        })
    }

    fn run_alone(&self) -> f64 {
        let mut values = vec![0.0; ROWS * TOKENS];
        let begun = Instant::now();
        let mut times = 0_u32;
        while begun.elapsed() < PRODUCTS_FOR {
            let target = Target {
                values: &mut values,
                token_stride: ROWS,
                group_stride: GROUP,
            };
            let groups = 0..self.weights.groups();
            self.kernels
                .matmul(&self.weights, Rows::Int8(&self.tokens), groups, target);
            black_box(&values);
            times += 1;
        }
        let products = (ROWS * COLS * TOKENS) as f64 * f64::from(times);
        products / begun.elapsed().as_secs_f64()
    }
}
