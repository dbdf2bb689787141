//! What `--owners` costs: time and bytes of each owner that gets pages of somebody before it, and what is left on
//! the disk after more owners than its ring holds.
//!
//! `cargo run --release -p wire --example owners_cost`

use pages::Epoch;
use std::io;
use std::time::Instant;
use wire::trace::{OWNERS_MAX, OwnersLog};

const OWNERS: u64 = 1_000_000;

fn main() -> io::Result<()> {
    println!(
        "pages of each  µs an owner  bytes a line  owners kept  MiB on disk, of {} at most",
        OWNERS_MAX >> 20
    );
    for pages in [5, 64, 512] {
        measure(pages)?;
    }
    Ok(())
}

/// Owners with so many pages each, out of a pool of eight times as many.
fn measure(pages: usize) -> io::Result<()> {
    let dir = tempfile::tempdir()?;
    let epoch = Epoch::new(7 << 80);
    let mut log = OwnersLog::create(dir.path(), "decode", epoch)?;
    let owners = OWNERS * 5 / pages as u64;
    let began = Instant::now();
    for n in 0..owners {
        let first = (n as usize * pages) % (8 * pages);
        log.took((epoch, n), first..first + pages);
    }
    let each = began.elapsed().as_secs_f64() * 1e6 / owners as f64;
    let (mut bytes, mut lines) = (0, 0);
    for entry in dir.path().read_dir()? {
        let text = std::fs::read(entry?.path())?;
        bytes += text.len() as u64;
        lines += text.iter().filter(|it| **it == b'\n').count() as u64;
    }
    assert!(bytes <= OWNERS_MAX, "the ring has a bound");
    let (a_line, mib) = (bytes / lines, bytes as f64 / f64::from(1 << 20));
    println!("{pages:>13}{each:>13.1}{a_line:>14}{lines:>13}{mib:>13.1}");
    Ok(())
}
