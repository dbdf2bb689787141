//! The three machines, each driven directly: what it is told goes in, what it answers is asserted
//! by content. Nothing stands in for a machine; where two are needed both are the shipped ones.
//!
//! One binary, because the machines are small and linking is not.

mod ages;
mod between;
mod credits;
mod decisions;
mod decode_edges;
mod decode_rig;
mod direct;
mod every_rank;
mod fences;
mod gateway;
mod gateway_edge;
mod gateway_rig;
mod gateway_waits;
mod growth;
mod integrity;
mod limits;
mod lives;
mod order;
mod outages;
mod prefill;
mod prefill_between;
mod prefill_edges;
mod prefill_peers;
mod prefill_rig;
mod prefill_waits;
mod prefill_writes;
mod ranks;
mod refusals;
mod rig;
mod statements;
mod sync;
#[path = "../watch/mod.rs"]
mod watch;

/// H-8: two lives are one if all 128 bits are equal, and not if some are. Every test of this binary
/// holds whichever byte it is in which lives differ.
#[test]
fn h8_a_life_is_all_of_its_bits() {
    if std::env::var(rig::BYTE_OF_LIVES).is_ok() {
        return; // this is one of the runs
    }
    let tests = std::env::current_exe().expect("this binary");
    // Whichever bytes a comparison looks at, it does not look at all of these.
    for byte in [0, 7, 8, 15] {
        let mut run = std::process::Command::new(&tests);
        run.env(rig::BYTE_OF_LIVES, byte.to_string());
        run.args(["--skip", "between::"]); // hundreds of cases each, of the same two lives
        let output = run.output().expect("it runs");
        let said = String::from_utf8_lossy(&output.stdout);
        assert!(output.status.success(), "byte {byte} of a life:\n{said}");
    }
}
