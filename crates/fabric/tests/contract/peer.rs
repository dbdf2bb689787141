//! A writer in a process of its own, which can be killed, stopped, continued and restarted.
//!
//! The parent sends lines on the child's standard input and reads lines from its standard output;
//! each command has one answer, and completions come as lines of their own.

use std::io::{BufRead, BufReader, Lines, Write as _};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::Arc;

use pages::WriterLife;
use rustix::process::{Pid, Signal, WaitOptions};

use super::Fabric;
use super::source::{Gate, Gated, pattern};
use super::world::{SHAPE, WHOLE, life, whole};
use fabric::{Endpoint, Landing, SlotWrite, SubmissionId, WriteEnding};

const ROLE: &str = "COFFERDAM_FABRIC_WRITER";

pub(crate) fn is_writer() -> bool {
    std::env::var_os(ROLE).is_some()
}

/// The parent's handle. Dropping it kills the process.
pub(crate) struct Peer {
    pub(crate) life: WriterLife,
    child: Child,
    to: ChildStdin,
    from: Lines<BufReader<ChildStdout>>,
}

impl Peer {
    /// Starts this binary again as the writer with life `n`.
    pub(crate) fn start(fabric: &dyn Fabric, n: u128) -> Self {
        let mut command = Command::new(std::env::current_exe().unwrap());
        fabric.prepare(&mut command);
        let mut child = command
            .env(ROLE, n.to_string())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let to = child.stdin.take().unwrap();
        let from = BufReader::new(child.stdout.take().unwrap()).lines();
        Self {
            life: life(n),
            child,
            to,
            from,
        }
    }

    /// Tells it to attach; its answer.
    pub(crate) fn attach(&mut self, landing: &Landing) -> String {
        let hex: String = landing
            .as_bytes()
            .iter()
            .map(|byte| format!("{byte:02x}"))
            .collect();
        self.say(&format!("attach {hex}"));
        self.hear()
    }

    /// Submits whole slots; with `hold` the transfer stops inside that write and says so.
    pub(crate) fn submit(&mut self, id: u64, slots: &[(u32, u64)], hold: Option<usize>) {
        let hold = hold.map_or(-1, |hold| hold as i64);
        let slots: Vec<String> = slots
            .iter()
            .map(|(slot, seed)| format!("{slot}:{seed}"))
            .collect();
        self.say(&format!("submit {id} {hold} {}", slots.join(" ")));
        assert_eq!(self.hear(), "submitted");
    }

    /// Lets a held transfer go on.
    pub(crate) fn release(&mut self) {
        self.say("go");
    }

    pub(crate) fn say(&mut self, line: &str) {
        writeln!(self.to, "{line}").unwrap();
    }

    pub(crate) fn hear(&mut self) -> String {
        self.from.next().expect("the writer has ended").unwrap()
    }

    /// SIGSTOP, and waits until it has stopped.
    pub(crate) fn stop(&mut self) {
        rustix::process::kill_process(self.pid(), Signal::STOP).unwrap();
        let (_, status) = rustix::process::waitpid(Some(self.pid()), WaitOptions::UNTRACED)
            .unwrap()
            .expect("blocking");
        assert!(status.stopped(), "{status:?}");
    }

    pub(crate) fn resume(&mut self) {
        rustix::process::kill_process(self.pid(), Signal::CONT).unwrap();
    }

    /// SIGKILL, and waits until the process is gone.
    pub(crate) fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    fn pid(&self) -> Pid {
        Pid::from_child(&self.child)
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The child's side.
pub(crate) fn run_writer(fabric: &dyn Fabric) {
    let n = std::env::var(ROLE).unwrap().parse().unwrap();
    let sender = fabric.sender(life(n));
    let gate = Arc::new(Gate::default());
    let mut endpoint: Option<Box<dyn Endpoint>> = None;
    for line in std::io::stdin().lines() {
        let line = line.unwrap();
        let mut words = line.split(' ');
        match words.next().unwrap() {
            "attach" => {
                let landing = Landing::from_bytes(unhex(words.next().unwrap())).unwrap();
                let told = |completion: fabric::Completion| {
                    let landed = completion.ending == WriteEnding::Landed;
                    let ending = if landed { "landed" } else { "failed" };
                    println!("{ending} {}", completion.id.0);
                };
                match sender.attach(&landing, Box::new(told)) {
                    Ok(attached) => {
                        endpoint = Some(attached);
                        println!("attached");
                    }
                    Err(error) => println!("{error}"),
                }
            }
            "submit" => {
                let mut number = || words.next().unwrap().parse::<i64>().unwrap();
                let (id, hold) = (number() as u64, number());
                let writes = words.enumerate().map(|(at, word)| {
                    let (slot, seed) = word.split_once(':').unwrap();
                    let (slot, seed) = (slot.parse().unwrap(), seed.parse().unwrap());
                    if at as i64 == hold {
                        held(slot, seed, &gate)
                    } else {
                        whole(slot, seed)
                    }
                });
                let writes: Vec<SlotWrite> = writes.collect();
                // Before the transfer can say anything of its own.
                println!("submitted");
                endpoint
                    .as_mut()
                    .unwrap()
                    .submit(SubmissionId(id), writes)
                    .unwrap();
            }
            "go" => gate.open(),
            other => panic!("unknown command {other}"),
        }
    }
}

fn held(slot: u32, seed: u64, gate: &Arc<Gate>) -> SlotWrite {
    let reading = || println!("in mid-batch");
    let source = Gated::new(pattern(seed, SHAPE.slot_words), gate.clone(), reading);
    SlotWrite {
        source,
        runs: Arc::new([WHOLE]),
        slot,
    }
}

fn unhex(text: &str) -> Vec<u8> {
    let digit = |at: usize| u8::from_str_radix(&text[at..at + 2], 16).unwrap();
    (0..text.len()).step_by(2).map(digit).collect()
}
