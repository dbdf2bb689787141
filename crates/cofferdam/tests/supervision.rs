//! The supervisor with real processes: `/bin/sh` as parts, and this test binary itself where a
//! supervisor or a part has to be killed from outside.

use cofferdam::lifeline;
use cofferdam::supervisor::{Ending, Limits, Part, Ready, Report, Supervised, supervise};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, Signal, kill_process, pidfd_open, test_kill_process};
use std::io::{BufRead, BufReader, Write};
use std::process::{Command, Stdio};
use std::time::Duration;
use tokio::sync::mpsc;

/// Says that it is ready, with its process id as epoch, and lives as long as its parent.
const SOUND: &str = r#"echo '{"ready":{"role":"x","epoch":"'$$'","addr":"a"}}'; cat >/dev/null"#;

/// Chooses what this binary plays when it starts itself ([`played`]).
const PLAY: &str = "SUPERVISION_TEST_PLAY";

fn shell(name: &'static str, stage: u32, script: &'static str) -> Part {
    let command = Box::new(move |_| {
        let mut command = Command::new("/bin/sh");
        command.args(["-c", script]);
        command
    });
    Part {
        name: name.into(),
        kind: name.split('-').next().unwrap_or(name),
        stage,
        command,
    }
}

fn ourselves(role: &str) -> Command {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command
        .args(["--exact", "played", "--nocapture"])
        .env(PLAY, role);
    command
}

fn pid(report: &Ready) -> Pid {
    Pid::from_raw(report.epoch.parse().unwrap()).unwrap()
}

fn quick() -> Limits {
    let short = Duration::from_millis(20);
    let pauses = Limits {
        pause_first: short,
        pause_max: short,
        ..Limits::default()
    };
    Limits {
        drain: Duration::ZERO,
        grace: Duration::from_secs(10),
        ..pauses
    }
}

/// Collects what it hears; `on_ready` and `on_notice` may kill parts or ask to stop.
struct Script<R, N> {
    stop: mpsc::Sender<()>,
    on_ready: R,
    on_notice: N,
    heard: Vec<String>,
}

impl<R, N> Supervised for Script<R, N>
where
    R: FnMut(&[Ready], &mpsc::Sender<()>),
    N: FnMut(&str, &mpsc::Sender<()>),
{
    fn all_ready(&mut self, reports: &[Ready]) {
        self.heard.push("all ready".into());
        (self.on_ready)(reports, &self.stop);
    }

    fn notice(&mut self, text: &str) {
        self.heard.push(text.into());
        (self.on_notice)(text, &self.stop);
    }

    fn line(&mut self, part: &str, line: &str) {
        self.heard.push(format!("{part} | {line}"));
    }
}

/// Supervises to the end; what was heard, and how it ended.
fn run(
    parts: &[Part],
    limits: Limits,
    on_ready: impl FnMut(&[Ready], &mpsc::Sender<()>),
    on_notice: impl FnMut(&str, &mpsc::Sender<()>),
) -> (Ending, Vec<String>) {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    let (stop, mut stops) = mpsc::channel(4);
    let mut script = Script {
        stop,
        on_ready,
        on_notice,
        heard: Vec::new(),
    };
    let ending = runtime.block_on(async {
        let supervised = supervise(parts, limits, &mut stops, &mut script);
        tokio::time::timeout(Duration::from_secs(60), supervised).await
    });
    (ending.expect("it ends"), script.heard)
}

fn ask_to_stop(_: &[Ready], stop: &mpsc::Sender<()>) {
    stop.try_send(()).unwrap();
}

fn gone(pid: Pid) -> bool {
    test_kill_process(pid) == Err(rustix::io::Errno::SRCH)
}

#[test]
fn parts_are_ready_in_order_and_reaped_after_a_stop() {
    let parts = [shell("decode-0", 0, SOUND), shell("gateway", 1, SOUND)];
    let mut pids = Vec::new();
    let on_ready = |reports: &[Ready], stop: &mpsc::Sender<()>| {
        pids = reports.iter().map(pid).collect();
        ask_to_stop(reports, stop);
    };
    let (ending, heard) = run(&parts, quick(), on_ready, |_, _| {});
    assert_eq!(ending, Ending::Stopped);
    let ready = |name: &str, pid: Pid| format!("{name} is ready, epoch {}", pid.as_raw_nonzero());
    let (decode, gateway) = (ready("decode-0", pids[0]), ready("gateway", pids[1]));
    assert_eq!(heard, [decode, gateway, "all ready".into()]);
    assert!(pids.iter().all(|&pid| gone(pid)), "every process is reaped");
}

#[test]
fn a_killed_part_comes_back_with_a_new_epoch() {
    let parts = [shell("decode-0", 0, SOUND), shell("gateway", 1, SOUND)];
    let kill = |reports: &[Ready], _: &mpsc::Sender<()>| {
        kill_process(pid(&reports[0]), Signal::KILL).unwrap();
    };
    let stop_when_back = |text: &str, stop: &mpsc::Sender<()>| {
        if text.contains("ready again") {
            stop.try_send(()).unwrap();
        }
    };
    let (ending, heard) = run(&parts, quick(), kill, stop_when_back);
    assert_eq!(ending, Ending::Stopped);
    assert_eq!(
        heard[3],
        "decode-0 ended (signal: 9 (SIGKILL)); restart in 20 ms"
    );
    assert!(
        heard[4].starts_with("decode-0 is ready again, epoch "),
        "{heard:?}"
    );
    let epoch = |text: &str| text.rsplit(' ').next().unwrap().to_owned();
    assert_ne!(epoch(&heard[0]), epoch(&heard[4]));
}

#[test]
fn a_part_that_keeps_dying_is_given_up_and_its_words_are_passed_on() {
    let dying = shell("decode-0", 1, "echo no memory left >&2; exit 7");
    let parts = [shell("other", 0, SOUND), dying];
    let (ending, heard) = run(&parts, quick(), |_, _| panic!("never ready"), |_, _| {});
    let (part, deaths, how) = ("decode-0".into(), 5, "exit status: 7".into());
    assert_eq!(ending, Ending::CrashLoop { part, deaths, how });
    let words = heard
        .iter()
        .filter(|text| *text == "decode-0 | no memory left")
        .count();
    assert_eq!(words, 5, "{heard:?}");
}

#[test]
fn a_part_that_refuses_is_not_started_again() {
    let refusing = r#"echo '{"refused":{"message":"too small","exit":2}}'; exit 2"#;
    let parts = [shell("decode-0", 0, refusing), shell("gateway", 1, SOUND)];
    let (ending, heard) = run(&parts, quick(), |_, _| panic!("never ready"), |_, _| {});
    let Ending::Refused { part, why } = ending else {
        panic!("{ending:?}")
    };
    assert_eq!(
        (part.as_str(), why.message.as_str(), why.exit),
        ("decode-0", "too small", 2)
    );
    assert_eq!(heard, [""; 0], "the gateway never started");
}

#[test]
fn a_command_that_cannot_be_started_is_given_up() {
    let command = Box::new(|_| Command::new("/no/such/command"));
    let parts = [Part {
        name: "decode-0".into(),
        kind: "decode",
        stage: 0,
        command,
    }];
    let (ending, _) = run(&parts, quick(), |_, _| panic!("never ready"), |_, _| {});
    let Ending::CrashLoop { how, .. } = ending else {
        panic!("{ending:?}")
    };
    assert!(how.starts_with("cannot be started"), "{how}");
}

#[test]
fn a_part_that_ignores_sigterm_is_killed_when_its_time_is_over() {
    let deaf = r#"trap '' TERM; echo '{"ready":{"role":"x","epoch":"'$$'","addr":"a"}}'
                  while read line; do :; done"#;
    let parts = [shell("gateway", 0, deaf)];
    let limits = Limits {
        grace: Duration::from_millis(50),
        ..quick()
    };
    let (ending, heard) = run(&parts, limits, ask_to_stop, |_, _| {});
    assert_eq!(ending, Ending::Stopped);
    assert_eq!(heard.last().unwrap(), "gateway did not end in time: killed");
}

#[test]
fn a_part_that_is_never_ready_is_killed_and_given_up() {
    let parts = [shell("decode-0", 0, "cat >/dev/null")];
    let limits = Limits {
        start_max: Duration::from_millis(50),
        ..quick()
    };
    let (ending, heard) = run(&parts, limits, |_, _| panic!("never ready"), |_, _| {});
    assert!(
        matches!(ending, Ending::CrashLoop { deaths: 5, .. }),
        "{ending:?}"
    );
    assert_eq!(heard[0], "decode-0 was not ready in time: killed");
}

#[test]
fn long_lines_are_cut_and_the_next_line_is_whole() {
    let script = r#"head -c 200000 /dev/zero | tr '\0' a; echo; echo short
                    echo '{"refused":{"message":"enough","exit":1}}'"#;
    let (ending, heard) = run(&[shell("p", 0, script)], quick(), |_, _| {}, |_, _| {});
    assert!(matches!(ending, Ending::Refused { .. }), "{ending:?}");
    assert_eq!(heard[0].len(), "p | ".len() + (64 << 10));
    assert_eq!(heard[1], "p | short");
}

/// No test of its own: what this binary does when the tests below start it.
#[test]
fn played() {
    match std::env::var(PLAY).as_deref() {
        Ok("part") => part_that_never_reads(),
        Ok("supervisor") => supervisor_to_be_killed(),
        _ => {}
    }
}

fn part_that_never_reads() {
    lifeline::end_with_parent().unwrap();
    let epoch = std::process::id().to_string();
    Report::Ready(Ready {
        role: "x".into(),
        epoch,
        addr: "a".into(),
        ..Ready::default()
    })
    .say()
    .unwrap();
    loop {
        std::thread::park();
    }
}

fn supervisor_to_be_killed() {
    let ours = Part {
        name: "ours".into(),
        kind: "ours",
        stage: 1,
        command: Box::new(|_| ourselves("part")),
    };
    let parts = [shell("shell", 0, SOUND), ours];
    let say = |reports: &[Ready], _: &mpsc::Sender<()>| {
        let pids: Vec<_> = reports.iter().map(|report| report.epoch.as_str()).collect();
        let mut out = std::io::stdout().lock();
        writeln!(out, "\nparts {}", pids.join(" ")).unwrap();
        out.flush().unwrap();
    };
    run(&parts, quick(), say, |_, _| {});
}

/// Waits for the end of a process that need not be our child.
fn ends(pid: &std::os::fd::OwnedFd) -> bool {
    let mut wanted = [PollFd::new(pid, PollFlags::IN)];
    let limit = Timespec {
        tv_sec: 30,
        tv_nsec: 0,
    };
    poll(&mut wanted, Some(&limit)).unwrap() == 1
}

#[test]
fn parts_end_when_their_supervisor_is_killed() {
    let mut supervisor = ourselves("supervisor");
    let mut supervisor = supervisor.stdout(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(supervisor.stdout.take().unwrap()).lines();
    let line = lines
        .find(|line| line.as_ref().unwrap().starts_with("parts "))
        .unwrap()
        .unwrap();
    let open = |raw: &str| {
        let pid = Pid::from_raw(raw.parse().unwrap()).unwrap();
        pidfd_open(pid, PidfdFlags::empty()).unwrap()
    };
    let pids: Vec<_> = line.split(' ').skip(1).map(open).collect();
    assert_eq!(pids.len(), 2);
    supervisor.kill().unwrap(); // SIGKILL: it cannot tell its parts anything
    supervisor.wait().unwrap();
    assert!(pids.iter().all(ends), "the parts outlived their supervisor");
}

#[test]
fn a_part_ends_when_the_parent_pipe_closes() {
    let mut part = ourselves("part");
    let part = part.stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut part = part.spawn().unwrap();
    let mut lines = BufReader::new(part.stdout.take().unwrap()).lines();
    lines
        .find(|line| Report::parse(line.as_ref().unwrap()).is_some())
        .unwrap()
        .unwrap();
    drop(part.stdin.take());
    let pid = Pid::from_child(&part);
    let ended = ends(&pidfd_open(pid, PidfdFlags::empty()).unwrap());
    if !ended {
        part.kill().unwrap();
    }
    assert!(ended, "it outlived its parent pipe");
    assert_eq!(part.wait().unwrap().code(), Some(lifeline::PARENT_GONE));
}
