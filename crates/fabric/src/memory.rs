//! How much memory there really is (law: capacity is measured, not declared).
//!
//! The smallest of what the kernel calls available and of what every cgroup above this process,
//! v1 or v2, still allows. Memory that cannot be had is refused before it is touched: populating
//! more than there is gets a process killed, and that tells nobody why.

use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};

/// Room for new memory, and who limits it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Room {
    /// Bytes that may be populated.
    pub bytes: u64,
    /// Where that number comes from, for errors and logs.
    pub limited_by: Limiter,
}

/// Whose limit is the smallest.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Limiter {
    /// Available memory of the machine.
    Machine,
    /// A cgroup's limit; the directory of its files.
    Cgroup(PathBuf),
    /// The system does not say: nothing is known to limit.
    Unknown,
}

impl fmt::Display for Limiter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Limiter::Machine => f.write_str("available memory of the machine"),
            Limiter::Cgroup(dir) => write!(f, "cgroup {}", dir.display()),
            Limiter::Unknown => f.write_str("nothing known"),
        }
    }
}

/// There is less memory than was asked for. Nothing was allocated.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{wanted} bytes are needed, {} are there (limit: {})", room.bytes, room.limited_by)]
pub struct MemoryShortage {
    /// Bytes asked for.
    pub wanted: u64,
    /// What there is.
    pub room: Room,
}

/// Measures the room at this moment.
pub fn room() -> Room {
    room_under(Path::new("/"))
}

/// Refuses `wanted` bytes that are not there.
///
/// # Errors
/// [`MemoryShortage`] says both numbers and whose limit it is.
pub fn require(wanted: u64) -> Result<(), MemoryShortage> {
    let room = room();
    if wanted <= room.bytes {
        Ok(())
    } else {
        Err(MemoryShortage { wanted, room })
    }
}

fn room_under(root: &Path) -> Room {
    let unknown = Room {
        bytes: u64::MAX,
        limited_by: Limiter::Unknown,
    };
    let machine = machine(root).map(|bytes| Room {
        bytes,
        limited_by: Limiter::Machine,
    });
    let all = machine.into_iter().chain(cgroups(root));
    all.min_by_key(|room| room.bytes).unwrap_or(unknown)
}

fn machine(root: &Path) -> Option<u64> {
    let text = fs::read_to_string(root.join("proc/meminfo")).ok()?;
    let line = text
        .lines()
        .find_map(|line| line.strip_prefix("MemAvailable:"))?;
    let kib: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    kib.checked_mul(1024)
}

/// The room in each cgroup from this process's own up to the root of its hierarchy.
fn cgroups(root: &Path) -> Vec<Room> {
    let memberships = fs::read_to_string(root.join("proc/self/cgroup")).unwrap_or_default();
    let mounts = fs::read_to_string(root.join("proc/self/mountinfo")).unwrap_or_default();
    let mut rooms = Vec::new();
    for mount in mounts.lines().filter_map(Mount::parse) {
        let Some(path) = memberships.lines().find_map(|line| mount.membership(line)) else {
            continue;
        };
        let top = root.join(mount.point.trim_start_matches('/'));
        // In a container the hierarchy's root is often the container's own group, and the path
        // that /proc names may lie outside of what is mounted: then the mount itself is ours.
        let inner = path
            .strip_prefix(mount.root)
            .unwrap_or("")
            .trim_start_matches('/');
        let own = top.join(inner);
        let own = if own.is_dir() { own } else { top.clone() };
        for dir in own.ancestors().take_while(|dir| dir.starts_with(&top)) {
            if let Some(bytes) = mount.version.room(dir) {
                rooms.push(Room {
                    bytes,
                    limited_by: Limiter::Cgroup(dir.to_owned()),
                });
            }
        }
    }
    rooms
}

/// A mounted cgroup hierarchy that may account memory.
struct Mount<'a> {
    root: &'a str,
    point: &'a str,
    version: Version,
}

impl<'a> Mount<'a> {
    /// A line of mountinfo: `id parent dev ROOT POINT options... - TYPE source SUPER-OPTIONS`.
    fn parse(line: &'a str) -> Option<Self> {
        let (left, right) = line.split_once(" - ")?;
        let mut left = left.split(' ').skip(3);
        let (root, point) = (left.next()?, left.next()?);
        let mut right = right.split(' ');
        let version = match right.next()? {
            "cgroup2" => Version::V2,
            "cgroup" if right.nth(1)?.split(',').any(|option| option == "memory") => Version::V1,
            _ => return None,
        };
        Some(Self {
            root,
            point,
            version,
        })
    }

    /// This process's path, if this line of /proc/self/cgroup (`id:controllers:path`) is about
    /// this hierarchy.
    fn membership<'l>(&self, line: &'l str) -> Option<&'l str> {
        let mut parts = line.splitn(3, ':');
        let (_, controllers, path) = (parts.next()?, parts.next()?, parts.next()?);
        let ours = match self.version {
            Version::V1 => controllers
                .split(',')
                .any(|controller| controller == "memory"),
            Version::V2 => controllers.is_empty(),
        };
        ours.then_some(path)
    }
}

#[derive(Clone, Copy)]
enum Version {
    V1,
    V2,
}

impl Version {
    /// Limit less usage, plus page cache that the kernel drops before it kills anybody.
    fn room(self, dir: &Path) -> Option<u64> {
        let (limit, usage, cache) = match self {
            Version::V1 => (
                "memory.limit_in_bytes",
                "memory.usage_in_bytes",
                "total_inactive_file",
            ),
            Version::V2 => ("memory.max", "memory.current", "inactive_file"),
        };
        let number = |file: &str| -> Option<u64> {
            fs::read_to_string(dir.join(file)).ok()?.trim().parse().ok()
        };
        let limit = number(limit)?; // "max" does not parse: no limit
        let usage = number(usage)?;
        let stat = fs::read_to_string(dir.join("memory.stat")).unwrap_or_default();
        let cache = stat
            .lines()
            .find_map(|line| line.strip_prefix(cache)?.trim().parse().ok());
        Some(limit.saturating_sub(usage.saturating_sub(cache.unwrap_or(0))))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tree(files: &[(&str, &str)]) -> tempfile::TempDir {
        let dir = tempfile::tempdir().unwrap();
        for (path, text) in files {
            let path = dir.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
        dir
    }

    const MEMINFO: (&str, &str) = (
        "proc/meminfo",
        "MemTotal: 9000 kB\nMemFree: 1 kB\nMemAvailable:   8000 kB\n",
    );

    #[test]
    fn without_cgroups_the_machine_limits() {
        let dir = tree(&[MEMINFO]);
        let expected = Room {
            bytes: 8000 * 1024,
            limited_by: Limiter::Machine,
        };
        assert_eq!(room_under(dir.path()), expected);
    }

    #[test]
    fn the_smallest_v2_group_on_the_way_up_limits() {
        let dir = tree(&[
            MEMINFO,
            ("proc/self/cgroup", "0::/a/b\n"),
            (
                "proc/self/mountinfo",
                "30 1 0:26 / /cg rw - cgroup2 cgroup rw\n",
            ),
            ("cg/a/memory.max", "5000\n"),
            ("cg/a/memory.current", "4000\n"),
            ("cg/a/memory.stat", "anon 1\ninactive_file 300\n"),
            ("cg/a/b/memory.max", "max\n"),
            ("cg/a/b/memory.current", "10\n"),
        ]);
        let limited_by = Limiter::Cgroup(dir.path().join("cg/a"));
        assert_eq!(
            room_under(dir.path()),
            Room {
                bytes: 1300,
                limited_by
            }
        );
    }

    #[test]
    fn a_v1_group_limits_also_where_proc_names_a_path_outside_of_the_container() {
        let dir = tree(&[
            MEMINFO,
            ("proc/self/cgroup", "4:cpu:/x\n3:memory:/docker/abc\n"),
            (
                "proc/self/mountinfo",
                "31 1 0:27 /docker/abc /cg/memory rw shared:1 - cgroup cgroup rw,memory\n\
                 32 1 0:28 / /cg/cpu rw - cgroup cgroup rw,cpu\n",
            ),
            ("cg/memory/memory.limit_in_bytes", "7000\n"),
            ("cg/memory/memory.usage_in_bytes", "6500\n"),
            (
                "cg/memory/memory.stat",
                "inactive_file 1\ntotal_inactive_file 100\n",
            ),
        ]);
        let limited_by = Limiter::Cgroup(dir.path().join("cg/memory"));
        assert_eq!(
            room_under(dir.path()),
            Room {
                bytes: 600,
                limited_by
            }
        );
    }

    #[test]
    fn this_machine_has_memory_and_not_without_end() {
        assert!(require(4096).is_ok());
        let shortage = require(1 << 60).unwrap_err();
        assert!(shortage.room.bytes < 1 << 60, "{shortage}");
        assert_ne!(shortage.room.limited_by, Limiter::Unknown);
    }
}
