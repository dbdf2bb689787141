//! What a handoff over TCP costs, as ratios to a plain socket in the same run: from the source page
//! of the writer to the private, checksummed copy of the receiver, in batches as the worker sends.
//!
//! `cargo run --release -p fabric --example tcp_ratio [MEGABYTES]`

use std::hint::black_box;
use std::io::{Read, Write as _};
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::mpsc::channel;
use std::time::{Duration, Instant};

use fabric::tcp::{DataDeadlines, Listen, TcpReceiver, TcpSender};
use fabric::{
    ArenaId, Completion, Endpoint, Limits, Reader, Receiver, Sender, Shape, SlotWrite,
    SubmissionId, WordRun, WriteEnding,
};
use pages::{Config, Epoch, Pool, WriterLife};
use wire::control::certs::{Validity, new_cluster};
use wire::control::{Identity, Role};

/// A page of 16 tokens of SmolLM2-135M: 30 layers, K and V, 3 heads of 64.
const PAGE_WORDS: usize = 30 * 2 * 3 * 16 * 64;
/// Pages of a batch, and slots of the arena, as the decode worker has them.
const BATCH: usize = 16;
const SLOTS: usize = 128;
const ROUNDS: usize = 7;

fn main() {
    let megabytes: usize = std::env::args()
        .nth(1)
        .map_or(189, |text| text.parse().unwrap());
    let batches = (megabytes << 20).div_ceil(PAGE_WORDS * 2 * BATCH);
    let bytes = batches * BATCH * PAGE_WORDS * 2;

    let mut plain = Plain::new();
    let mut fabric = Fabric::new();
    let (mut socket, mut landed, mut copied) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..ROUNDS {
        // Taken in turns, so that what else the machine does hits all of them.
        socket.push(plain.send(batches));
        landed.push(fabric.send(batches, false));
        copied.push(fabric.send(batches, true));
    }
    println!(
        "{:.1} MB in batches of {BATCH} pages of {} bytes, best and median of {ROUNDS}",
        bytes as f64 / 1e6,
        PAGE_WORDS * 2
    );
    let reference = best_and_median(&mut socket);
    for (what, mut took) in [
        ("plain socket, 1-byte acknowledgements", socket),
        ("TCP fabric: source to arena (TLS 1.3)", landed),
        ("TCP fabric: source to checksummed copy", copied),
    ] {
        let (best, median) = best_and_median(&mut took);
        let rate = |took: Duration| bytes as f64 / took.as_secs_f64() / 1e9;
        println!(
            "{what:<40} {:6.2} / {:6.2} GB/s   {:.2} / {:.2} of the plain socket's rate",
            rate(best),
            rate(median),
            reference.0.as_secs_f64() / best.as_secs_f64(),
            reference.1.as_secs_f64() / median.as_secs_f64(),
        );
    }
}

fn best_and_median(took: &mut [Duration]) -> (Duration, Duration) {
    took.sort();
    (took[0], took[took.len() / 2])
}

/// Two ends of one TCP connection; the other one reads into one batch's buffer.
struct Plain {
    socket: TcpStream,
    source: Vec<u8>,
}

impl Plain {
    fn new() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let socket = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (mut other, _) = listener.accept().unwrap();
        socket.set_nodelay(true).unwrap();
        other.set_nodelay(true).unwrap();
        let source = vec![1u8; BATCH * PAGE_WORDS * 2];
        let mut buffer = source.clone();
        std::thread::spawn(move || {
            while other.read_exact(&mut buffer).is_ok() {
                black_box(&mut buffer);
                other.write_all(&[1]).unwrap();
            }
        });
        Self { socket, source }
    }

    /// Each batch is sent when the one before the last was acknowledged.
    fn send(&mut self, batches: usize) -> Duration {
        let begin = Instant::now();
        for batch in 0..batches {
            self.socket.write_all(black_box(&self.source)).unwrap();
            if batch > 0 {
                self.socket.read_exact(&mut [0]).unwrap();
            }
        }
        self.socket.read_exact(&mut [0]).unwrap();
        begin.elapsed()
    }
}

struct Fabric {
    endpoint: Box<dyn Endpoint>,
    completions: std::sync::mpsc::Receiver<Completion>,
    reader: Arc<dyn Reader>,
    sources: Vec<Arc<Vec<u16>>>,
    runs: Arc<[WordRun]>,
    page: Vec<u16>,
    submission: u64,
    _receiver: TcpReceiver,
}

impl Fabric {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let certs = dir.path().join("certs");
        new_cluster(&certs, Validity::days(1)).unwrap();
        let identity = |role| Identity::load(&certs, role).unwrap();
        let (_pool, mint) = Pool::new(Config {
            pages: 1,
            page_size: 16,
            scrub: false,
        });
        let tls = identity(Role::Decode).data_listener(&[Role::Prefill]);
        let listen = Listen {
            at: ([127, 0, 0, 1], 0).into(),
            advertised: None,
            tls: tls.unwrap(),
        };
        let limits = Limits { bytes_max: 1 << 30 };
        let mut receiver = TcpReceiver::new(listen, mint, limits).unwrap();
        let (epoch, rank, owner, n) = (Epoch::new(1), 0, Epoch::new(2), 1);
        let (writer, arena) = (WriterLife { epoch, rank }, ArenaId { owner, n });
        let shape = Shape {
            slots: SLOTS as u32,
            slot_words: PAGE_WORDS,
        };
        let landing = receiver.open_arena(arena, writer, shape).unwrap();
        let reader = receiver.reader(arena).unwrap();
        let (told, completions) = channel();
        let told = Box::new(move |completion| {
            let _ = told.send(completion);
        });
        let tls = identity(Role::Prefill)
            .data_dialler(&[Role::Decode])
            .unwrap();
        let sender = TcpSender::new(writer, tls, DataDeadlines::default());
        let endpoint = sender.attach(&landing, told).unwrap();
        let source = |page| Arc::new(vec![page as u16 + 1; PAGE_WORDS]);
        let (offset, words) = (0, PAGE_WORDS);
        Self {
            endpoint,
            completions,
            reader,
            sources: (0..BATCH).map(source).collect(),
            runs: Arc::new([WordRun { offset, words }]),
            page: vec![1; PAGE_WORDS],
            submission: 0,
            _receiver: receiver,
        }
    }

    /// As the worker does it: the next batch is on its way while the last one is copied.
    fn send(&mut self, batches: usize, copy: bool) -> Duration {
        let begin = Instant::now();
        for batch in 0..batches {
            self.submit();
            if batch > 0 {
                self.take(copy);
            }
        }
        self.take(copy);
        begin.elapsed()
    }

    /// Which slots a submission goes to follows from its number.
    fn slot(submission: u64, page: usize) -> u32 {
        (submission as usize * BATCH % SLOTS + page) as u32
    }

    fn submit(&mut self) {
        self.submission += 1;
        let write = |(page, source): (usize, &Arc<Vec<u16>>)| SlotWrite {
            source: source.clone(),
            runs: self.runs.clone(),
            slot: Self::slot(self.submission, page),
        };
        let writes = self.sources.iter().enumerate().map(write).collect();
        let id = SubmissionId(self.submission);
        self.endpoint.submit(id, writes).unwrap();
    }

    fn take(&mut self, copy: bool) {
        let landed = self.completions.recv().unwrap();
        assert_eq!(landed.ending, WriteEnding::Landed);
        for page in 0..if copy { BATCH } else { 0 } {
            let slot = Self::slot(landed.id.0, page);
            let copied = self.reader.copy_out(slot, &self.runs, &mut self.page);
            black_box(copied.unwrap());
        }
    }
}
