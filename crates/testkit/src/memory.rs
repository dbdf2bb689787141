//! Memory of processes, as the system says it.

/// The most memory that this process has had, in bytes.
pub fn peak() -> usize {
    of("self", "VmHWM:").expect("the system says it of everybody")
}

/// Resident memory of a process, in bytes; none if it has ended.
pub fn resident(pid: u32) -> Option<usize> {
    of(&pid.to_string(), "VmRSS:")
}

fn of(process: &str, name: &str) -> Option<usize> {
    let status = std::fs::read_to_string(format!("/proc/{process}/status")).ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix(name))?;
    let kib: usize = line.split_whitespace().next()?.parse().ok()?;
    Some(kib << 10)
}
