//! How fast the engine is, alone: tokens per second of prefill and of decode at several depths.
//!
//! ```sh
//! cargo run --release -p model --example bench -- MODEL.gguf [--threads N] [--exact]
//!     [--depths 0,2048] [--prefill 512] [--chunk 512] [--decode 64] [--batch 8]
//! ```
//! Prints one JSON object a line. Figures of one machine at one moment: compare with another
//! engine only by running both in turn, as `bench/run` does.

use std::error::Error;
use std::time::Instant;

use model::{Isa, KvLayout, KvMemory, LoadOptions, Model, Numeric, Scratch, SequenceInput, Want};
use pages::{BlockTable, Config, Domain, Grant, Owner, OwnerId, Pool, Seal, Step};

const PAGE: usize = 16;

struct Options {
    model: String,
    numeric: Numeric,
    threads: usize,
    prefill: Vec<usize>,
    chunk: usize,
    depths: Vec<usize>,
    decode: usize,
    batch: usize,
}

fn options() -> Result<Options, Box<dyn Error>> {
    let mut options = Options {
        model: String::new(),
        numeric: Numeric::Fast,
        threads: 1,
        prefill: vec![512],
        chunk: 512,
        depths: vec![0],
        decode: 64,
        batch: 1,
    };
    let list = |text: String| -> Result<Vec<usize>, Box<dyn Error>> {
        Ok(text
            .split(',')
            .filter(|n| !n.is_empty())
            .map(str::parse)
            .collect::<Result<_, _>>()?)
    };
    let mut args = std::env::args().skip(1);
    while let Some(arg) = args.next() {
        let mut value = || args.next().ok_or(format!("{arg} needs a value"));
        match arg.as_str() {
            "--exact" => options.numeric = Numeric::Exact,
            "--threads" => options.threads = value()?.parse()?,
            "--prefill" => options.prefill = list(value()?)?,
            "--chunk" => options.chunk = value()?.parse()?,
            "--depths" => options.depths = list(value()?)?,
            "--decode" => options.decode = value()?.parse()?,
            "--batch" => options.batch = value()?.parse()?,
            _ => options.model = arg,
        }
    }
    Ok(options)
}

/// Sequences that run in step, as a decode worker's batch does.
struct Batch<'m> {
    model: &'m Model,
    pool: Pool,
    kv: KvMemory,
    scratch: Scratch,
    sequences: Vec<(BlockTable, Vec<Grant>)>,
}

impl<'m> Batch<'m> {
    fn new(model: &'m Model, sequences: usize, tokens: usize) -> Result<Batch<'m>, Box<dyn Error>> {
        let each = tokens.div_ceil(PAGE);
        let pages = each * sequences;
        let config = Config {
            pages: pages as u32,
            page_size: PAGE as u16,
            scrub: false,
        };
        let (mut pool, _mint) = Pool::new(config);
        let mut all = Vec::new();
        for i in 0..sequences {
            let domain = Domain::new(1);
            let owner = Owner {
                id: OwnerId::new(i as u64 + 1),
                domain,
                lane: 0,
            };
            let grants = pool.reserve(owner, each)?;
            let mut table = BlockTable::new(owner, PAGE as u16);
            for (ordinal, grant) in grants.iter().enumerate() {
                let seal = Seal {
                    ordinal: ordinal as u32,
                    filled: 0,
                    checksum: None,
                };
                pool.seal(grant, seal)?;
                table.push_own(grant);
            }
            all.push((table, grants));
        }
        let kv = KvMemory::allocate(KvLayout::new(model.config(), PAGE), &pool)?;
        Ok(Batch {
            model,
            pool,
            kv,
            scratch: Scratch::default(),
            sequences: all,
        })
    }

    /// Runs the same new tokens in every sequence; verification and bookkeeping included.
    fn step(&mut self, tokens: &[u32]) -> Result<(), Box<dyn Error>> {
        let new = tokens.len() as u32;
        let inputs = vec![
            SequenceInput {
                tokens,
                want: Want::Last
            };
            self.sequences.len()
        ];
        let steps = self
            .sequences
            .iter_mut()
            .map(|(table, _)| Step { table, new })
            .collect();
        let verified = self.pool.verify(steps)?;
        let logits = self
            .model
            .forward(&mut self.scratch, &mut self.kv, &verified, &inputs)?;
        drop(verified);
        std::hint::black_box(logits);
        for (table, grants) in &mut self.sequences {
            let (start, end) = (table.tokens() as usize, (table.tokens() + new) as usize);
            let touched = grants
                .iter()
                .enumerate()
                .take(end.div_ceil(PAGE))
                .skip(start / PAGE);
            for (ordinal, grant) in touched {
                let filled = PAGE.min(end - ordinal * PAGE) as u16;
                self.pool.extend(grant, filled, None)?;
            }
            table.advance_to(end as u32);
        }
        Ok(())
    }
}

/// Token ids that mean nothing but spread over the vocabulary.
fn tokens(n: usize) -> Vec<u32> {
    (0..n as u32).map(|i| (i * 7919 + 17) % 40_000).collect()
}

fn main() -> Result<(), Box<dyn Error>> {
    let options = options()?;
    let file = gguf::File::open(options.model.as_ref())?;
    let (numeric, threads, isa) = (options.numeric, options.threads, Isa::from_env()?);
    let begun = Instant::now();
    let model = Model::load(
        &file,
        LoadOptions {
            numeric,
            isa,
            threads,
        },
    )?;
    let load_ms = begun.elapsed().as_millis();
    println!(
        r#"{{"engine":"cofferdam","isa":"{isa}","numeric":"{numeric:?}","threads":{threads},"load_ms":{load_ms}}}"#
    );
    for n in &options.prefill {
        let mut batch = Batch::new(&model, 1, *n)?;
        let begun = Moment::now();
        for chunk in tokens(*n).chunks(options.chunk) {
            batch.step(chunk)?;
        }
        report("prefill", *n, *n, begun, threads);
    }
    for depth in &options.depths {
        let mut batch = Batch::new(&model, options.batch, depth + options.decode + 1)?;
        for chunk in tokens(depth + 1).chunks(options.chunk) {
            batch.step(chunk)?;
        }
        let begun = Moment::now();
        for token in tokens(options.decode) {
            batch.step(&[token])?;
        }
        report(
            "decode",
            *depth,
            options.decode * options.batch,
            begun,
            threads,
        );
    }
    Ok(())
}

/// A moment, in wall time and in time that this thread has run.
struct Moment(Instant, f64);

impl Moment {
    fn now() -> Moment {
        // Nanoseconds on a CPU come first; elsewhere than on Linux the figure is left out.
        let text = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap_or_default();
        let ns = text.split(' ').next().and_then(|ns| ns.parse::<f64>().ok());
        Moment(Instant::now(), ns.unwrap_or(f64::NAN) / 1e9)
    }
}

/// One figure: what, at which size or depth, tokens per second, and per second of CPU (the fairer
/// one of a single thread where others use the machine).
fn report(what: &str, at: usize, tokens: usize, begun: Moment, threads: usize) {
    let wall = tokens as f64 / begun.0.elapsed().as_secs_f64();
    let cpu = tokens as f64 / (Moment::now().1 - begun.1);
    let cpu = if threads == 1 && cpu.is_finite() {
        format!(r#","tokens_per_cpu_s":{cpu:.1}"#)
    } else {
        String::new()
    };
    println!(r#"{{"what":"{what}","at":{at},"tokens_per_s":{wall:.1}{cpu}}}"#);
}
