//! What a hop through a landing arena costs, as ratios to a plain copy in the same run.
//!
//! `cargo run --release -p fabric --example copy_ratio [MEGABYTES]`

use std::hint::black_box;
use std::sync::Arc;
use std::sync::mpsc::channel;
use std::time::{Duration, Instant};

use fabric::shm::{Limits, ShmReceiver, ShmSender};
use fabric::{ArenaId, Receiver, Sender, Shape, SlotWrite, SubmissionId, WordRun};
use pages::{Config, Epoch, Pool, WriterLife};

/// A page of 16 tokens of SmolLM2-135M: 30 layers, K and V, 3 heads of 64.
const PAGE_WORDS: usize = 30 * 2 * 3 * 16 * 64;
const ROUNDS: usize = 9;

fn main() {
    let megabytes: usize = std::env::args()
        .nth(1)
        .map_or(189, |text| text.parse().unwrap());
    let slots = (megabytes << 20).div_ceil(PAGE_WORDS * 2);
    let bytes = (slots * PAGE_WORDS * 2) as f64;
    let (_pool, mint) = Pool::new(Config {
        pages: 1,
        page_size: 16,
        scrub: false,
    });
    let limits = Limits { bytes_max: 8 << 30 };
    let mut receiver = ShmReceiver::new(&std::env::temp_dir(), mint, limits).unwrap();
    let writer = WriterLife {
        epoch: Epoch::new(1),
        rank: 0,
    };
    let arena = ArenaId {
        owner: Epoch::new(2),
        n: 1,
    };
    let shape = Shape {
        slots: slots as u32,
        slot_words: PAGE_WORDS,
    };
    let landing = receiver.open_arena(arena, writer, shape).unwrap();
    let reader = receiver.reader(arena).unwrap();
    let (told, completions) = channel();
    let told = Box::new(move |completion| told.send(completion).unwrap());
    let mut endpoint = ShmSender::new(writer).attach(&landing, told).unwrap();

    let sources: Vec<Arc<Vec<u16>>> = (0..slots)
        .map(|slot| Arc::new(vec![slot as u16 + 1; PAGE_WORDS]))
        .collect();
    let mut pages: Vec<Vec<u16>> = vec![vec![1; PAGE_WORDS]; slots];
    let runs: Arc<[WordRun]> = Arc::new([WordRun {
        offset: 0,
        words: PAGE_WORDS,
    }]);
    let as_bytes = |page: &[u16]| page.iter().flat_map(|word| word.to_ne_bytes()).collect();
    let flat: Vec<Vec<u8>> = sources.iter().map(|page| as_bytes(page)).collect();

    let copy = best(|| {
        for (source, page) in sources.iter().zip(&mut pages) {
            page.copy_from_slice(black_box(source));
        }
        black_box(&mut pages);
    });
    let checksum = best(|| {
        for page in &flat {
            black_box(crc32c::crc32c(black_box(page)));
        }
    });
    let mut submission = 0;
    let write = best(|| {
        submission += 1;
        let write = |(slot, source): (usize, &Arc<Vec<u16>>)| SlotWrite {
            source: source.clone(),
            runs: runs.clone(),
            slot: slot as u32,
        };
        let writes = sources.iter().enumerate().map(write).collect();
        endpoint.submit(SubmissionId(submission), writes).unwrap();
        completions.recv().unwrap();
    });
    let read = best(|| {
        for (slot, page) in pages.iter_mut().enumerate() {
            black_box(reader.copy_out(slot as u32, &runs, page).unwrap());
        }
    });

    println!("{:.1} MB in {slots} pages, best of {ROUNDS}", bytes / 1e6);
    for (what, took) in [
        ("plain copy", copy),
        ("CRC-32C alone", checksum),
        ("P: write into the arena", write),
        ("D: copy out with checksum", read),
    ] {
        let (ms, rate) = (took.as_secs_f64() * 1e3, bytes / took.as_secs_f64() / 1e9);
        let ratio = took.as_secs_f64() / copy.as_secs_f64();
        println!("{what:<26} {ms:8.2} ms {rate:6.1} GB/s   {ratio:.2} x plain copy");
    }
}

fn best(mut work: impl FnMut()) -> Duration {
    let timed = (0..ROUNDS).map(|_| {
        let begin = Instant::now();
        work();
        begin.elapsed()
    });
    timed.min().unwrap()
}
