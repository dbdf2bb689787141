//! How much memory a page pool may take, and how large a context that carries.
//!
//! *Capacity is measured, not declared*: a worker compares what its pool would take with what the
//! machine and the control group still have, **before** it allocates, and derives its limits from
//! what it then owns. Two halves: [`available`] reads the kernel's figures, [`size_pool`] is a
//! pure function from a wish and those figures to a size or a refusal that says what would fit.

use handoff::{Decisions, Role};
use pages::Sound;
use std::fmt;
use std::path::Path;

/// Memory that may still be taken without swapping or being killed, in bytes, and who says so.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Available {
    /// Bytes that can be taken now.
    pub bytes: u64,
    /// The bound that was the smallest.
    pub bound: Bound,
}

/// What bounds the memory of this process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Bound {
    /// `MemAvailable` of the machine.
    Machine,
    /// A control group (v1 or v2): its directory and its limit in bytes.
    Cgroup {
        /// Directory that holds the limit.
        directory: String,
        /// The limit, in bytes.
        limit: u64,
    },
    /// Nothing could be read (no `/proc`): the size is unknown and nothing is refused for it.
    Unknown,
}

impl fmt::Display for Available {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.bound {
            Bound::Machine => write!(f, "{} available on this machine", Bytes(self.bytes)),
            Bound::Cgroup { directory, limit } => {
                let (left, limit) = (Bytes(self.bytes), Bytes(*limit));
                write!(
                    f,
                    "{left} left of the control group's {limit} ({directory})"
                )
            }
            Bound::Unknown => write!(f, "an unknown amount of memory available"),
        }
    }
}

/// A number of bytes, displayed in the largest binary unit that keeps it readable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bytes(pub u64);

impl fmt::Display for Bytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const MIB: u64 = 1 << 20;
        match self.0 {
            b if b >= 10 << 30 => write!(f, "{:.1} GiB", b as f64 / (1u64 << 30) as f64),
            b if b >= MIB => write!(f, "{:.1} MiB", b as f64 / MIB as f64),
            b => write!(f, "{b} bytes"),
        }
    }
}

/// What the operator asked for and what the model dictates.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Wish {
    /// Token slots in a page.
    pub page_size: u32,
    /// KV bytes of one token over all layers (SmolLM2-135M: 23,040).
    pub bytes_per_token: u64,
    /// The longest context that the model was trained for, in tokens.
    pub model_context: u32,
    /// `--max-context`: prompt plus output, in tokens. Default: the model's context.
    pub max_context: Option<u32>,
    /// `--pool-tokens`. Default: a share of what is available, see [`Share`].
    pub pool_tokens: Option<u64>,
    /// How large a pool is if nobody says it.
    pub share: Share,
    /// Bytes that the process needs beside its pool (arena, activations, stacks).
    pub beside_bytes: u64,
}

/// The default size of a pool: so much of the memory that is available, and no more contexts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Share {
    /// One part in so many of what is available.
    pub divisor: u64,
    /// Contexts that fit into the pool, at most.
    pub contexts: u64,
}

impl Share {
    /// Prefill holds prompts for as long as they are handed over, decode answers for as long as they
    /// run.
    pub const fn of(role: Role) -> Self {
        let (divisor, contexts) = match role {
            Role::Prefill => (8, 2),
            _ => (4, 8),
        };
        Self { divisor, contexts }
    }
}

/// A pool that fits: what to allocate and the context that it carries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PoolSize {
    /// Whole pages to allocate.
    pub pages: u64,
    /// Token slots in a page.
    pub page_size: u32,
    /// Largest sum of prompt and output, in tokens.
    pub max_context: u32,
    /// What the pages take, in bytes.
    pub bytes: u64,
}

impl PoolSize {
    /// Token slots in the pool.
    pub fn tokens(&self) -> u64 {
        self.pages * u64::from(self.page_size)
    }
}

/// Why no pool is made. Every text names both figures and the value that would be accepted.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Refusal {
    /// A wish that no machine can fulfil.
    #[error("{name} is {got}; it must be at least {least}")]
    TooLow {
        /// The flag.
        name: &'static str,
        /// What was given.
        got: u64,
        /// The smallest accepted value.
        least: u64,
    },
    /// More context than the model was trained for.
    #[error(
        "--max-context {wanted} is more than the model's context of {model} tokens: \
         use --max-context {model} or less"
    )]
    OverModel {
        /// What was asked for, in tokens.
        wanted: u32,
        /// What the model carries, in tokens.
        model: u32,
    },
    /// The pool is less than a page.
    #[error(
        "--pool-tokens {pool_tokens} is less than one page of {page_size} tokens: --max-context \
         {wanted} needs --pool-tokens {needed_tokens} ({}) or more", Bytes(*.needed_bytes)
    )]
    NoPage {
        /// Tokens that were asked for.
        pool_tokens: u64,
        /// Tokens of a page.
        page_size: u32,
        /// The wanted context, in tokens.
        wanted: u32,
        /// The smallest pool that carries the wanted context, in tokens.
        needed_tokens: u64,
        /// What that pool would take, in bytes.
        needed_bytes: u64,
    },
    /// The pool cannot hold one sequence of the wanted context.
    #[error(
        "a pool of {pool_tokens} tokens cannot hold one sequence of --max-context {wanted}: the \
         largest --max-context that fits is {largest}; {wanted} would need --pool-tokens \
         {needed_tokens} ({})", Bytes(*.needed_bytes)
    )]
    PoolTooSmall {
        /// Tokens in the pool as asked for, in whole pages.
        pool_tokens: u64,
        /// The wanted context, in tokens.
        wanted: u32,
        /// The largest context that this pool carries, in tokens.
        largest: u32,
        /// The smallest pool that carries the wanted context, in tokens.
        needed_tokens: u64,
        /// What that pool would take, in bytes.
        needed_bytes: u64,
    },
    /// The pool does not fit into memory.
    #[error(
        "a pool of {pool_tokens} tokens for --max-context {wanted} needs {} of memory, and there \
         is {available}: {}", Bytes(*.needed_bytes), advice(*.largest)
    )]
    MemoryTooSmall {
        /// Tokens in the pool.
        pool_tokens: u64,
        /// The wanted context, in tokens.
        wanted: u32,
        /// What pool and process would take, in bytes.
        needed_bytes: u64,
        /// What there is.
        available: Available,
        /// The largest context that fits with a default pool, in tokens; 0: none.
        largest: u32,
    },
}

fn advice(largest: u32) -> String {
    match largest {
        0 => "not even a context of one page fits; free memory or raise the limit".into(),
        n => format!("the largest --max-context that fits, with its default pool, is {n}"),
    }
}

/// The size of a pool for `wish` when `available` memory is left, or what would fit instead.
pub fn size_pool(wish: &Wish, available: &Available) -> Result<PoolSize, Refusal> {
    size_pool_by(Sound, wish, available)
}

/// [`size_pool`] under other decisions, for a laboratory.
pub(crate) fn size_pool_by(
    decisions: impl Decisions,
    wish: &Wish,
    available: &Available,
) -> Result<PoolSize, Refusal> {
    let page = u64::from(wish.page_size);
    at_least_one("--page-size", page)?;
    at_least_one("KV bytes per token", wish.bytes_per_token)?;
    let wanted = wish.max_context.unwrap_or(wish.model_context);
    // A prompt has a token and so has an answer: a context of 1 could serve nobody.
    if wanted < 2 {
        return Err(Refusal::TooLow {
            name: "--max-context",
            got: wanted.into(),
            least: 2,
        });
    }
    if wanted > wish.model_context {
        return Err(Refusal::OverModel {
            wanted,
            model: wish.model_context,
        });
    }
    let bytes = |pages: u64| {
        pages
            .saturating_mul(page)
            .saturating_mul(wish.bytes_per_token)
    };
    let pages = match wish.pool_tokens {
        Some(tokens) => tokens / page,
        None => wish.default_pool_tokens(wanted, available).div_ceil(page),
    };
    let needed_pages = u64::from(wanted).div_ceil(page);
    if let (0, Some(pool_tokens)) = (pages, wish.pool_tokens) {
        return Err(Refusal::NoPage {
            pool_tokens,
            page_size: wish.page_size,
            wanted,
            needed_tokens: needed_pages * page,
            needed_bytes: bytes(needed_pages),
        });
    }
    if !decisions.carries(pages.saturating_mul(page), wanted) {
        return Err(Refusal::PoolTooSmall {
            pool_tokens: pages * page,
            wanted,
            largest: u32::try_from(pages * page).expect("less than a u32 of tokens"),
            needed_tokens: needed_pages * page,
            needed_bytes: bytes(needed_pages),
        });
    }
    let needed_bytes = bytes(pages).saturating_add(wish.beside_bytes);
    if available.bound != Bound::Unknown && needed_bytes > available.bytes {
        return Err(Refusal::MemoryTooSmall {
            pool_tokens: pages.saturating_mul(page),
            wanted,
            needed_bytes,
            available: available.clone(),
            largest: largest_context(wish, available.bytes),
        });
    }
    Ok(PoolSize {
        pages,
        page_size: wish.page_size,
        max_context: wanted,
        bytes: bytes(pages),
    })
}

/// Tokens in the smallest default pool: one sequence of the full context and a quarter beside it, so
/// that a second, short request never waits for the longest one.
pub fn least_pool_tokens(max_context: u32) -> u64 {
    (u64::from(max_context) * 5).div_ceil(4)
}

impl Wish {
    /// The share of what is available, at least [`least_pool_tokens`], at most so many contexts: what
    /// is populated at the start costs time there, and memory that others may want later.
    fn default_pool_tokens(&self, context: u32, available: &Available) -> u64 {
        let least = least_pool_tokens(context);
        if available.bound == Bound::Unknown {
            return least;
        }
        let free = available.bytes.saturating_sub(self.beside_bytes);
        let tokens = free / self.share.divisor.max(1) / self.bytes_per_token;
        let most = u64::from(context).saturating_mul(self.share.contexts);
        tokens.min(most).max(least)
    }
}

fn at_least_one(name: &'static str, got: u64) -> Result<(), Refusal> {
    if got == 0 {
        Err(Refusal::TooLow {
            name,
            got,
            least: 1,
        })
    } else {
        Ok(())
    }
}

/// The largest context whose default pool fits into `available_bytes`; 0 if none does.
fn largest_context(wish: &Wish, available_bytes: u64) -> u32 {
    let page = u64::from(wish.page_size);
    let for_pool = available_bytes.saturating_sub(wish.beside_bytes);
    let tokens = for_pool / wish.bytes_per_token / page * page;
    let context = (tokens / 5 * 4 + tokens % 5 * 4 / 5).min(u64::from(wish.model_context));
    if context < 2 {
        0
    } else {
        u32::try_from(context).expect("not above the model's context")
    }
}

/// What this process may still take: the smallest of the machine's and every control group's.
pub fn available() -> Available {
    available_from(|path| std::fs::read_to_string(path).ok())
}

/// [`available`] over any way to read a file, so that tests need no kernel.
pub fn available_from(read: impl Fn(&Path) -> Option<String>) -> Available {
    let machine = read(Path::new("/proc/meminfo"))
        .as_deref()
        .and_then(mem_available);
    let mut found = match machine {
        Some(bytes) => Available {
            bytes,
            bound: Bound::Machine,
        },
        None => Available {
            bytes: u64::MAX,
            bound: Bound::Unknown,
        },
    };
    let groups = read(Path::new("/proc/self/cgroup")).unwrap_or_default();
    for (hierarchy, group) in memory_groups(&groups) {
        for directory in hierarchy.directories(group) {
            if let Some((left, limit)) = left_in(hierarchy, &directory, &read)
                && left < found.bytes
            {
                let bound = Bound::Cgroup { directory, limit };
                found = Available { bytes: left, bound };
            }
        }
    }
    found
}

/// `MemAvailable` of `/proc/meminfo`, in bytes.
fn mem_available(meminfo: &str) -> Option<u64> {
    let line = meminfo
        .lines()
        .find_map(|l| l.strip_prefix("MemAvailable:"))?;
    let kib: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    kib.checked_mul(1024)
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Hierarchy {
    V1,
    V2,
}

impl Hierarchy {
    /// Files that hold limit and usage.
    fn files(self) -> (&'static str, &'static str) {
        match self {
            Hierarchy::V1 => ("memory.limit_in_bytes", "memory.usage_in_bytes"),
            Hierarchy::V2 => ("memory.max", "memory.current"),
        }
    }

    /// The line of `memory.stat` that counts page cache which the kernel drops before it kills.
    fn reclaimable(self) -> &'static str {
        match self {
            Hierarchy::V1 => "total_inactive_file",
            Hierarchy::V2 => "inactive_file",
        }
    }

    /// `group` and all that are above it, at every place where the hierarchy is usually mounted.
    /// In a container the group's own path may not be visible: then its root still is.
    fn directories(self, group: &str) -> Vec<String> {
        let mounts: &[&str] = match self {
            Hierarchy::V1 => &["/sys/fs/cgroup/memory"],
            Hierarchy::V2 => &["/sys/fs/cgroup", "/sys/fs/cgroup/unified"],
        };
        let mut found = Vec::new();
        for mount in mounts {
            for ancestor in Path::new(group).ancestors() {
                let below = ancestor.to_string_lossy();
                let directory = format!("{mount}{below}");
                found.push(directory.trim_end_matches('/').to_owned());
            }
        }
        found
    }
}

/// The groups of `/proc/self/cgroup` that account for memory.
fn memory_groups(text: &str) -> impl Iterator<Item = (Hierarchy, &str)> {
    text.lines().filter_map(|line| {
        let mut fields = line.splitn(3, ':');
        let (id, controllers, group) = (fields.next()?, fields.next()?, fields.next()?);
        if !group.starts_with('/') || group.split('/').any(|part| part == "..") {
            return None; // outside of our namespace: there is no such directory to read
        }
        if id == "0" && controllers.is_empty() {
            return Some((Hierarchy::V2, group));
        }
        controllers
            .split(',')
            .any(|c| c == "memory")
            .then_some((Hierarchy::V1, group))
    })
}

/// Bytes left in one group and its limit; `None` where it has no limit.
fn left_in(
    hierarchy: Hierarchy,
    directory: &str,
    read: &impl Fn(&Path) -> Option<String>,
) -> Option<(u64, u64)> {
    let text = |name: &str| read(&Path::new(directory).join(name));
    let (limit, usage) = hierarchy.files();
    let limit: u64 = text(limit)?.trim().parse().ok()?; // "max" is no limit
    let usage: u64 = text(usage)?.trim().parse().ok()?;
    let stat = text("memory.stat").unwrap_or_default();
    let reclaimable = stat
        .lines()
        .find_map(|line| {
            line.strip_prefix(hierarchy.reclaimable())?
                .trim()
                .parse::<u64>()
                .ok()
        })
        .unwrap_or(0);
    Some((
        limit.saturating_sub(usage.saturating_sub(reclaimable)),
        limit,
    ))
}

#[cfg(test)]
#[path = "memory_tests.rs"]
mod tests;
