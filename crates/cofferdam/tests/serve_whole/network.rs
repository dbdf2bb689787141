//! Hosts as network namespaces of a test of its own, with a switch between them.
//!
//! Needs the right to make namespaces: without it such a test says so and is not run.

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdout, Command, Output, Stdio};

/// Tells a test, started again, that it is inside of its own network.
const INSIDE: &str = "COFFERDAM_TEST_INSIDE";
/// Set where these tests have to run, so that a machine that does not let them is a failure.
const REQUIRED: &str = "COFFERDAM_TEST_REQUIRE_NAMESPACES";

/// Where a part runs: an address, and the network namespace that has it.
#[derive(Clone, Copy)]
pub struct Host {
    pub namespace: Option<&'static str>,
    pub ip: &'static str,
}

/// Whether this process has a network of its own. If not, the test of this name runs in one, as
/// another process, and is over here when it is over there.
pub fn is_own(name: &str) -> bool {
    if std::env::var_os(INSIDE).is_some() {
        return true;
    }
    let probe = "mount -t tmpfs none /run && ip link add probe type bridge && ip netns add probe";
    let probed = in_own_network(&["sh", "-c", probe]);
    if !probed.status.success() {
        let why = String::from_utf8_lossy(&probed.stderr);
        assert!(std::env::var_os(REQUIRED).is_none(), "cannot run: {why}");
        // Past the harness, which keeps what a test that passes has said to itself.
        let mut out = std::io::stderr();
        let said = format!("NOT RUN: serve_whole {name}: no network namespaces");
        writeln!(out, "{said}: {}", why.trim()).unwrap();
        return false;
    }
    let this = std::env::current_exe().unwrap();
    let this = this.to_str().expect("a path of ours is text");
    let inside = format!("{INSIDE}=1");
    let ran = in_own_network(&["env", &inside, this, name, "--exact", "--nocapture"]);
    let said = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let (out, err) = (said(&ran.stdout), said(&ran.stderr));
    assert!(ran.status.success(), "{out}\n{err}");
    assert!(out.contains("1 passed"), "it ran");
    print!("{out}");
    false
}

/// Namespaces, addresses and mounts end with the last process inside: nothing is left behind.
fn in_own_network(words: &[&str]) -> Output {
    let own = ["--net", "--mount", "--propagation", "private", "--"];
    let command = Command::new("unshare").args(own).args(words).output();
    command.unwrap_or_else(|error| Output {
        status: std::os::unix::process::ExitStatusExt::from_raw(127 << 8),
        stdout: Vec::new(),
        stderr: error.to_string().into_bytes(),
    })
}

fn run(words: &str) {
    let words: Vec<&str> = words.split(' ').collect();
    let ran = Command::new(words[0]).args(&words[1..]).output().unwrap();
    assert!(ran.status.success(), "{words:?}: {ran:?}");
}

pub const PREFILL: Host = Host {
    namespace: Some("prefill"),
    ip: "10.77.0.2",
};
pub const DECODE: Host = Host {
    namespace: Some("decode"),
    ip: "10.77.0.3",
};
pub const GATEWAY: Host = Host {
    namespace: Some("gateway"),
    ip: "10.77.0.4",
};

/// A switch, to which this process is connected, with a cable to each host.
pub fn switch(cabled: &[Host]) {
    run("mount -t tmpfs none /run");
    run("ip link set lo up");
    run("ip link add switch type bridge");
    run("ip link set switch up");
    run("ip addr add 10.77.0.1/24 dev switch");
    for host in [PREFILL, DECODE, GATEWAY] {
        let name = host.namespace.unwrap();
        run(&format!("ip netns add {name}"));
        run(&format!("ip -n {name} link set lo up"));
    }
    for host in cabled {
        let name = host.namespace.unwrap();
        run(&format!(
            "ip link add {name} type veth peer name eth0 netns {name}"
        ));
        run(&format!("ip link set {name} master switch up"));
        address(*host);
    }
}

/// Gives a host's end of its cable its address.
fn address(host: Host) {
    let name = host.namespace.unwrap();
    run(&format!("ip -n {name} addr add {}/24 dev eth0", host.ip));
    run(&format!("ip -n {name} link set eth0 up"));
}

/// A long line between a host and the switch instead of a cable, until it is dropped: every frame
/// takes a while of its own, so that some overtake others, and some are lost.
pub struct LongLine {
    relay: Child,
    said: BufReader<ChildStdout>,
}

impl LongLine {
    pub fn to(host: Host, delay_ms: f64, spread_ms: f64, loss: f64) -> LongLine {
        let script = concat!(
            env!("CARGO_MANIFEST_DIR"),
            "/tests/serve_whole/long_line.py"
        );
        let figures = [delay_ms, spread_ms, loss].map(|it| it.to_string());
        let mut relay = Command::new("python3")
            .arg(script)
            .args(["near", "far"])
            .args(figures)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("Python can be started");
        let mut said = BufReader::new(relay.stdout.take().expect("it is piped"));
        let mut line = String::new();
        said.read_line(&mut line).expect("it says when it is there");
        assert_eq!(line, "up\n", "a relay needs /dev/net/tun");
        let name = host.namespace.unwrap();
        run(&format!("ip link set near netns {name} name eth0"));
        run("ip link set far master switch up");
        address(host);
        LongLine { relay, said }
    }

    /// Frames that were passed on, were lost, and have overtaken another one.
    pub fn end(mut self) -> [u64; 3] {
        drop(self.relay.stdin.take());
        let mut line = String::new();
        self.said.read_line(&mut line).expect("it says what it did");
        let figures = line
            .split_whitespace()
            .map(|it| it.parse().expect("a count"));
        figures
            .collect::<Vec<_>>()
            .try_into()
            .expect("three counts")
    }
}

impl Drop for LongLine {
    fn drop(&mut self) {
        let _ = self.relay.kill();
        let _ = self.relay.wait();
    }
}

/// Bytes that a host has sent so far, as the switch counts them.
pub fn sent(host: Host) -> u64 {
    let table = fs::read_to_string("/proc/self/net/dev").unwrap();
    let name = format!("{}:", host.namespace.unwrap());
    let line = table
        .lines()
        .find_map(|line| line.trim().strip_prefix(&name));
    let received = line.and_then(|line| line.split_whitespace().next());
    received.expect("a line for each cable").parse().unwrap()
}

/// Segments that a host had to send once more, as its kernel counts them.
pub fn sent_again(host: Host) -> u64 {
    let name = host.namespace.unwrap();
    let snmp = Command::new("ip")
        .args(["netns", "exec", name, "cat", "/proc/self/net/snmp"])
        .output()
        .unwrap();
    let table = String::from_utf8(snmp.stdout).unwrap();
    let mut lines = table.lines().filter_map(|line| line.strip_prefix("Tcp: "));
    let (names, figures) = (lines.next().expect("names"), lines.next().expect("figures"));
    let mut pairs = names.split(' ').zip(figures.split(' '));
    let again = pairs.find(|(name, _)| *name == "RetransSegs");
    again.expect("it is counted").1.parse().unwrap()
}

pub fn pull(host: Host) {
    run(&format!("ip link set {} down", host.namespace.unwrap()));
}

pub fn plug(host: Host) {
    run(&format!("ip link set {} up", host.namespace.unwrap()));
}
