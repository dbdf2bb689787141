//! Workers as real processes that are killed, stopped, continued, restarted and drained.

use crate::edge::{Answer, Edge};
use crate::held::{Asking, Turnstile};
use crate::{endless, probe, prompt, reference_of, spec};
use handoff::decode::{Decode, Effect, Event as Heard};
use handoff::gateway::{Event, Outcome};
use handoff::{Refusal, RequestId, Spec};
use pages::Sound;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::inotify;
use rustix::process::{Pid, PidfdFlags, Signal, kill_process, pidfd_open};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus};
use std::time::{Duration, Instant};
use testkit::process::wait_for;
use testkit::{SmallSpec, small_gguf};
use wire::control::{Addr, Role, certs};
use wire::trace::{DecodeInput, ReplayObserver, replay, replay_watched};
use worker::{Deadlines, EngineConfig, Ready, WorkerError, decode, prefill};

const CONTEXT: u32 = 1024;
const ROLE: &str = "COFFERDAM_TEST_ROLE";
const DIR: &str = "COFFERDAM_TEST_DIR";
const MODEL: &str = "COFFERDAM_TEST_MODEL";
const PATIENCE: Duration = Duration::from_secs(120);

/// The process that the other tests start: this very test, told by its environment what to be.
#[test]
fn child() {
    let (Ok(role), Ok(dir), Ok(model)) = (
        std::env::var(ROLE),
        std::env::var(DIR),
        std::env::var(MODEL),
    ) else {
        return;
    };
    let dir = PathBuf::from(dir);
    let ended = match role.as_str() {
        "decode" => run_decode(&dir, &model),
        _ => run_prefill(&dir, &model),
    };
    if let Err(error) = ended {
        eprintln!("{role}: {error}");
        std::process::exit(i32::from(error.exit_code()));
    }
}

fn engine(model: &str) -> EngineConfig {
    EngineConfig {
        threads: 1,
        max_context: Some(CONTEXT),
        chunk: 16, // a page each, so that long prompts go in several batches
        pool_tokens: Some(u64::from(CONTEXT) * 2), // both the same, so that one figure says both
        ..EngineConfig::new(model)
    }
}

fn deadlines() -> Deadlines {
    let short = Duration::from_millis(300);
    Deadlines {
        peer: short,
        cancel: short,
        unsettled: short,
        ..Deadlines::default()
    }
}

fn run_decode(dir: &Path, model: &str) -> Result<(), WorkerError> {
    let listen = socket(dir, "decode");
    let trace = Some(dir.join(format!("decode-{}.trace", std::process::id())));
    let config = decode::DecodeConfig {
        fabric_dir: Some(dir.to_owned()),
        trace,
        deadlines: deadlines(),
        signals: true,
        ..decode::DecodeConfig::new(engine(model), listen, dir.join("certs"))
    };
    decode::run(config, |ready| say_ready(dir, "decode", ready))
}

fn run_prefill(dir: &Path, model: &str) -> Result<(), WorkerError> {
    let (listen, decodes) = (socket(dir, "prefill"), vec![socket(dir, "decode")]);
    let trace = Some(dir.join(format!("prefill-{}.trace", std::process::id())));
    let config = prefill::PrefillConfig {
        trace,
        deadlines: deadlines(),
        signals: true,
        ..prefill::PrefillConfig::new(engine(model), listen, decodes, dir.join("certs"))
    };
    let held = Asking(dir.to_owned());
    prefill::run_through(Sound, &held, config, |ready| {
        say_ready(dir, "prefill", ready);
    })
}

fn socket(dir: &Path, role: &str) -> Addr {
    Addr::Unix(dir.join(role).join("control.sock"))
}

fn say_ready(dir: &Path, role: &str, ready: &Ready) {
    let part = dir.join(format!("{role}.part"));
    std::fs::write(&part, ready.pool_tokens.to_string()).unwrap();
    std::fs::rename(part, ready_file(dir, role)).unwrap();
}

fn ready_file(dir: &Path, role: &str) -> PathBuf {
    dir.join(format!("{role}.ready"))
}

/// A worker process. Dropping it kills it.
struct Process {
    child: Child,
    role: Role,
}

impl Process {
    fn pid(&self) -> Pid {
        Pid::from_child(&self.child)
    }

    fn signal(&self, signal: Signal) {
        kill_process(self.pid(), signal).unwrap();
    }

    fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    fn wait(&mut self) -> ExitStatus {
        let end = self.end();
        let happened = happens(&[end.as_fd()]);
        assert!(happened[0], "{} does not end", self.role);
        self.child.wait().unwrap()
    }

    /// Readable when the process has ended.
    fn end(&self) -> OwnedFd {
        pidfd_open(self.pid(), PidfdFlags::empty()).unwrap()
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Both workers, and what they share.
struct Site {
    prefill: Process,
    decode: Process,
    model: PathBuf,
    dir: tempfile::TempDir,
    pool_tokens: u64,
}

impl Site {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let shape = SmallSpec {
            context: CONTEXT as usize,
            ..SmallSpec::default()
        };
        let model = small_gguf(dir.path(), shape);
        certs::new_cluster(&dir.path().join("certs"), certs::Validity::days(1)).unwrap();
        let decode = start(dir.path(), &model, Role::Decode);
        let prefill = start(dir.path(), &model, Role::Prefill);
        let pool_tokens = std::fs::read_to_string(ready_file(dir.path(), "decode")).unwrap();
        Self {
            prefill,
            decode,
            model,
            dir,
            pool_tokens: pool_tokens.parse().unwrap(),
        }
    }

    fn restart(&mut self, role: Role) {
        let process = start(self.dir.path(), &self.model, role);
        match role {
            Role::Decode => self.decode = process,
            _ => self.prefill = process,
        }
    }

    fn edge(&self, epoch: u128) -> Edge {
        let mut edge = Edge::new(&self.dir.path().join("certs"), &self.model, epoch);
        edge.prefill = edge.dial(&socket(self.dir.path(), "prefill"), Role::Prefill);
        edge.decode = edge.dial(&socket(self.dir.path(), "decode"), Role::Decode);
        edge.ready(&probe());
        edge
    }

    fn trace(&self, process: &Process) -> PathBuf {
        self.dir
            .path()
            .join(format!("{}-{}.trace", process.role, process.child.id()))
    }

    /// What decode's machine has heard of dropped arenas.
    fn dropped(&self) -> Dropped {
        let mut dropped = Dropped::default();
        replay_watched(&self.trace(&self.decode), Sound, &mut dropped).unwrap();
        dropped
    }

    fn expected(&self, spec: &Spec) -> Vec<Vec<wire::TokenOut>> {
        reference_of(&self.model, CONTEXT, std::slice::from_ref(spec)).remove(0)
    }

    /// Both end well when told to, with every page back, and their traces give the same effects.
    fn end_well(mut self) {
        for process in [&mut self.prefill, &mut self.decode] {
            process.signal(Signal::TERM);
            assert!(process.wait().success(), "{}", process.role);
        }
        for process in [&self.prefill, &self.decode] {
            let replayed = replay(&self.trace(process)).unwrap();
            assert!(
                replayed.at_rest && !replayed.torn,
                "{}: {replayed:?}",
                process.role
            );
        }
    }
}

fn start(dir: &Path, model: &Path, role: Role) -> Process {
    let said = ready_file(dir, role.as_str());
    let _ = std::fs::remove_file(&said);
    let files = inotify::init(inotify::CreateFlags::CLOEXEC).unwrap();
    inotify::add_watch(&files, dir, inotify::WatchFlags::MOVED_TO).unwrap();
    let child = Command::new(std::env::current_exe().unwrap())
        .args([
            "--exact",
            "processes::child",
            "--nocapture",
            "--test-threads=1",
        ])
        .env(ROLE, role.as_str())
        .env(DIR, dir)
        .env(MODEL, model)
        .spawn()
        .unwrap();
    let process = Process { child, role };
    let end = process.end();
    while !said.exists() {
        let happened = happens(&[files.as_fd(), end.as_fd()]);
        assert!(!happened[1], "{role} did not start");
        assert!(happened[0], "{role} does not become ready");
        rustix::io::read(&files, &mut [0; 4096]).unwrap();
    }
    process
}

/// Which of these can be read, once one of them can; none if that takes too long.
fn happens(those: &[BorrowedFd<'_>]) -> Vec<bool> {
    let mut polled: Vec<_> = those
        .iter()
        .map(|it| PollFd::from_borrowed_fd(*it, PollFlags::IN))
        .collect();
    let limit = Timespec::try_from(PATIENCE).unwrap();
    poll(&mut polled, Some(&limit)).unwrap();
    let came = polled.iter().map(|it| !it.revents().is_empty());
    came.collect()
}

/// Submits a long prompt and waits until prefill is about to send the second batch of it. It goes
/// on when what this returns is dropped.
fn in_the_middle_of_prefill(site: &Site, edge: &mut Edge, spec: Spec) -> (RequestId, UnixStream) {
    let turnstile = Turnstile::new(site.dir.path());
    let end = site.prefill.end();
    let request = edge.submit(spec);
    // From its ticket on the gateway has no part in it.
    let until = Instant::now() + PATIENCE;
    while edge.facts(edge.decode).pages.granted == 0 {
        assert!(Instant::now() < until, "no ticket");
    }
    let held = turnstile.at_the_second(|asked| {
        let happened = happens(&[asked.as_fd(), end.as_fd()]);
        assert!(happened[0], "prefill sends nothing");
    });
    (request, held)
}

#[derive(Debug, Default, PartialEq)]
struct Dropped {
    lingers: usize,
    released: usize,
}

impl ReplayObserver<Sound> for Dropped {
    fn decode(&mut self, input: &DecodeInput, _: &[Effect], _: &mut Decode) {
        match input {
            DecodeInput::Event(Heard::ArenaLingers { .. }) => self.lingers += 1,
            DecodeInput::Event(Heard::ArenaReleased { .. }) => self.released += 1,
            _ => {}
        }
    }
}

fn until_fenced(edge: &mut Edge) {
    let until = Instant::now() + PATIENCE;
    while edge.facts(edge.decode).counters.fences == 0 {
        assert!(Instant::now() < until, "no fence");
    }
}

fn long(seed: u32) -> Spec {
    spec(1, prompt(seed, 960), 4, 1, &endless())
}

fn assert_answers(edge: &mut Edge, spec: Spec, expected: &[Vec<wire::TokenOut>]) {
    let answer: Answer = edge.ask(spec);
    assert_eq!(
        (answer.outcome, &answer.tokens[..]),
        (Some(Outcome::Answered), expected)
    );
}

#[test]
fn a_prefill_worker_that_is_killed_costs_its_requests_and_no_page() {
    let mut site = Site::new();
    let mut edge = site.edge(1);
    let (request, held) = in_the_middle_of_prefill(&site, &mut edge, long(1));
    site.prefill.kill();
    drop(held);
    let answer = edge.answers(&[request]).remove(0);
    assert!(
        matches!(
            answer.outcome,
            Some(Outcome::Failed(_) | Outcome::Refused(_))
        ),
        "{answer:?}"
    );
    assert!(answer.tokens.is_empty(), "no token of it may be shown");
    // The dead process proves nothing; the fence after the deadline does.
    until_fenced(&mut edge);
    let facts = edge.at_rest(edge.decode, site.pool_tokens, 16);
    assert_eq!(
        (facts.counters.fences, facts.counters.integrity_faults),
        (1, 0)
    );

    site.restart(Role::Prefill);
    edge.prefill = edge.dial(&socket(site.dir.path(), "prefill"), Role::Prefill);
    edge.ready(&probe());
    let expected = site.expected(&long(1));
    assert_answers(&mut edge, long(1), &expected);
    edge.at_rest(edge.prefill, site.pool_tokens, 16);
    edge.at_rest(edge.decode, site.pool_tokens, 16);
    drop(edge);
    site.end_well();
}

#[test]
fn a_prefill_worker_that_is_stopped_and_continued_wets_nothing() {
    let site = Site::new();
    let mut edge = site.edge(1);
    let (request, held) = in_the_middle_of_prefill(&site, &mut edge, long(2));
    site.prefill.signal(Signal::STOP);
    edge.tell(Event::ClientGone(request));
    // The client's pages come back although the writer may go on at any moment.
    edge.at_rest(edge.decode, site.pool_tokens, 16);
    until_fenced(&mut edge);
    // It maps the dropped arena as long as it has stopped: decode looked before it told this.
    edge.facts(edge.decode);
    assert_eq!(
        site.dropped(),
        Dropped {
            lingers: 1,
            released: 0
        }
    );
    assert_eq!(
        edge.at_rest(edge.decode, site.pool_tokens, 16)
            .counters
            .integrity_faults,
        0
    );
    // Now it writes what it was about to write.
    drop(held);
    site.prefill.signal(Signal::CONT);
    // It finds its connection closed, says Hello again and is as good as before.
    edge.ready(&probe());
    let expected = site.expected(&long(3));
    assert_answers(&mut edge, long(3), &expected);
    edge.at_rest(edge.prefill, site.pool_tokens, 16);
    let facts = edge.at_rest(edge.decode, site.pool_tokens, 16);
    assert_eq!(facts.counters.integrity_faults, 0);
    wait_for("its memory is given back", || {
        edge.facts(edge.decode);
        (site.dropped().released > 0).then_some(())
    });
    assert_eq!(
        site.dropped(),
        Dropped {
            lingers: 1,
            released: 1
        }
    );
    drop(edge);
    site.end_well();
}

#[test]
fn a_decode_worker_that_is_killed_is_replaced_by_another_life() {
    let mut site = Site::new();
    let mut edge = site.edge(1);
    let expected = site.expected(&long(5));
    let decode_dies = |site: &mut Site, edge: &mut Edge, request, held: Option<UnixStream>| {
        site.decode.kill();
        drop(held);
        let answer = edge.answers(&[request]).remove(0);
        let failed = matches!(
            answer.outcome,
            Some(Outcome::Failed(_) | Outcome::Refused(_))
        );
        assert!(failed, "{answer:?}");
        // Prefill's deadline ends what it was to hand over; its sources come back.
        edge.at_rest(edge.prefill, site.pool_tokens, 16);
        site.restart(Role::Decode);
        edge.decode = edge.dial(&socket(site.dir.path(), "decode"), Role::Decode);
        edge.ready(&probe());
        assert_answers(edge, long(5), &expected);
    };
    let (landing, held) = in_the_middle_of_prefill(&site, &mut edge, long(4));
    decode_dies(&mut site, &mut edge, landing, Some(held));

    let running = edge.submit(spec(1, prompt(4, 16), 1000, 1, &endless()));
    edge.until("some tokens", |edge| {
        edge.answers[&running]
            .tokens
            .first()
            .is_some_and(|tokens| tokens.len() > 3)
    });
    decode_dies(&mut site, &mut edge, running, None);
    edge.at_rest(edge.prefill, site.pool_tokens, 16);
    edge.at_rest(edge.decode, site.pool_tokens, 16);
    drop(edge);
    site.end_well();
}

#[test]
fn a_worker_that_is_told_to_end_finishes_what_runs() {
    let mut site = Site::new();
    let mut edge = site.edge(1);
    let spec = spec(1, prompt(6, 40), 400, 1, &endless());
    let expected = site.expected(&spec);
    let running = edge.submit(spec);
    edge.until("some tokens", |edge| {
        edge.answers[&running]
            .tokens
            .first()
            .is_some_and(|tokens| tokens.len() > 3)
    });
    site.decode.signal(Signal::TERM);
    let until = Instant::now() + PATIENCE;
    while !edge.facts(edge.decode).draining {
        assert!(Instant::now() < until, "it does not drain");
    }
    let refused = edge.ask(probe());
    assert_eq!(refused.outcome, Some(Outcome::Refused(Refusal::Draining)));
    let answer = edge.answers(&[running]).remove(0);
    assert_eq!(
        (answer.outcome, answer.tokens),
        (Some(Outcome::Answered), expected)
    );
    assert!(site.decode.wait().success());
    site.prefill.signal(Signal::TERM);
    assert!(site.prefill.wait().success());
}
