use super::*;
use std::collections::BTreeMap;

const SMOLLM2: u64 = 23_040;

fn wish() -> Wish {
    Wish {
        page_size: 16,
        bytes_per_token: SMOLLM2,
        model_context: 8192,
        max_context: None,
        pool_tokens: None,
        share: Share::of(Role::Decode),
        beside_bytes: 64 << 20,
    }
}

fn machine(bytes: u64) -> Available {
    Available {
        bytes,
        bound: Bound::Machine,
    }
}

fn read_from(files: &[(&str, &str)]) -> Available {
    let files: BTreeMap<&str, &str> = files.iter().copied().collect();
    available_from(|path| files.get(path.to_str().unwrap()).map(|s| s.to_string()))
}

const MEMINFO: &str =
    "MemTotal:       24684880 kB\nMemFree:        22688000 kB\nMemAvailable:    1000000 kB\n";

#[test]
fn the_default_pool_is_a_share_of_what_is_available_within_bounds() {
    let of = |role, available| {
        let share = Share::of(role);
        size_pool(&Wish { share, ..wish() }, &available).unwrap()
    };
    let size = of(Role::Decode, machine(4 << 30));
    assert_eq!(size.max_context, 8192);
    // (4 GiB - 64 MiB) / 4 / 23,040 bytes, in whole pages of 16.
    assert_eq!(size.tokens(), 45_888);
    assert_eq!(size.bytes, 45_888 * SMOLLM2);
    assert_eq!(
        of(Role::Decode, machine(64 << 30)).tokens(),
        8 * 8192,
        "at most"
    );
    assert_eq!(of(Role::Prefill, machine(64 << 30)).tokens(), 2 * 8192);
    assert_eq!(
        of(Role::Decode, machine(512 << 20)).tokens(),
        10_240,
        "at least"
    );
    let unknown = Available {
        bytes: u64::MAX,
        bound: Bound::Unknown,
    };
    assert_eq!(of(Role::Decode, unknown).tokens(), 10_240);
    for context in 2..=8192u32 {
        let size = size_pool(
            &Wish {
                max_context: Some(context),
                ..wish()
            },
            &machine(8 << 30),
        );
        let tokens = size.unwrap().tokens();
        assert!(
            tokens * 4 >= u64::from(context) * 5 && tokens.is_multiple_of(16),
            "{context}"
        );
    }
}

#[test]
fn small_pool_refuses_and_the_named_context_is_the_largest_accepted() {
    let small = Wish {
        pool_tokens: Some(1000),
        ..wish()
    };
    let refusal = size_pool(&small, &machine(8 << 30)).unwrap_err();
    assert_eq!(
        refusal.to_string(),
        "a pool of 992 tokens cannot hold one sequence of --max-context 8192: the largest \
         --max-context that fits is 992; 8192 would need --pool-tokens 8192 (180.0 MiB)"
    );
    for tokens in [0, 1, 10, 15] {
        let none = Wish {
            pool_tokens: Some(tokens),
            ..wish()
        };
        assert_eq!(
            size_pool(&none, &machine(8 << 30)).unwrap_err().to_string(),
            format!(
                "--pool-tokens {tokens} is less than one page of 16 tokens: --max-context 8192 \
                 needs --pool-tokens 8192 (180.0 MiB) or more"
            )
        );
    }
    let with = |n| {
        size_pool(
            &Wish {
                max_context: Some(n),
                ..small.clone()
            },
            &machine(8 << 30),
        )
    };
    assert_eq!(with(992).unwrap().max_context, 992);
    assert!(with(993).is_err());
}

#[test]
fn small_memory_refuses_and_the_named_context_is_the_largest_accepted() {
    for mib in [65, 70, 96, 100, 200, 250] {
        let memory = machine((mib << 20) + 12_345);
        let Refusal::MemoryTooSmall { largest, .. } = size_pool(&wish(), &memory).unwrap_err()
        else {
            panic!("{mib} MiB: wrong refusal")
        };
        assert!(largest > 0, "{mib} MiB");
        let with = |n| {
            size_pool(
                &Wish {
                    max_context: Some(n),
                    ..wish()
                },
                &memory,
            )
        };
        assert!(with(largest).is_ok(), "{mib} MiB carry {largest}");
        assert!(
            with(largest + 1).is_err(),
            "{mib} MiB do not carry more than {largest}"
        );
    }
    let text = size_pool(&wish(), &machine(1 << 20))
        .unwrap_err()
        .to_string();
    assert!(text.contains("needs 289.0 MiB of memory"), "{text}");
    assert!(text.contains("1.0 MiB available on this machine"), "{text}");
    assert!(
        text.contains("not even a context of one page fits"),
        "{text}"
    );
}

#[test]
fn senseless_wishes_are_refused_without_overflow() {
    let on = |w: Wish| size_pool(&w, &machine(8 << 30)).unwrap_err().to_string();
    assert_eq!(
        on(Wish {
            page_size: 0,
            ..wish()
        }),
        "--page-size is 0; it must be at least 1"
    );
    let one = on(Wish {
        max_context: Some(1),
        ..wish()
    });
    assert_eq!(one, "--max-context is 1; it must be at least 2");
    let over = on(Wish {
        max_context: Some(9000),
        ..wish()
    });
    assert!(
        over.contains("9000 is more than the model's context of 8192"),
        "{over}"
    );
    let huge = on(Wish {
        pool_tokens: Some(u64::MAX),
        ..wish()
    });
    assert!(huge.contains("needs"), "{huge}");
}

#[test]
fn machine_bounds_where_no_group_has_a_limit() {
    let found = read_from(&[
        ("/proc/meminfo", MEMINFO),
        ("/proc/self/cgroup", "0::/user.slice/a.scope\n"),
        ("/sys/fs/cgroup/user.slice/a.scope/memory.max", "max\n"),
        ("/sys/fs/cgroup/user.slice/a.scope/memory.current", "4096\n"),
    ]);
    assert_eq!(found, machine(1_024_000_000));
}

#[test]
fn version_2_parent_group_bounds_its_children() {
    let found = read_from(&[
        ("/proc/meminfo", MEMINFO),
        ("/proc/self/cgroup", "0::/pod/box\n"),
        ("/sys/fs/cgroup/pod/box/memory.max", "max\n"),
        ("/sys/fs/cgroup/pod/box/memory.current", "4096\n"),
        ("/sys/fs/cgroup/pod/memory.max", "300000000\n"),
        ("/sys/fs/cgroup/pod/memory.current", "120000000\n"),
        (
            "/sys/fs/cgroup/pod/memory.stat",
            "anon 100000000\ninactive_file 20000000\n",
        ),
    ]);
    assert_eq!(found.bytes, 200_000_000);
    let directory = "/sys/fs/cgroup/pod".to_owned();
    assert_eq!(
        found.bound,
        Bound::Cgroup {
            directory,
            limit: 300_000_000
        }
    );
}

#[test]
fn version_1_group_bounds_and_an_invisible_path_falls_back_to_the_root() {
    let found = read_from(&[
        ("/proc/meminfo", MEMINFO),
        (
            "/proc/self/cgroup",
            "9:name=systemd:/x\n4:cpu,memory:/not/visible\n0::/\n",
        ),
        ("/sys/fs/cgroup/memory/memory.limit_in_bytes", "536870912\n"),
        ("/sys/fs/cgroup/memory/memory.usage_in_bytes", "536870912\n"),
        (
            "/sys/fs/cgroup/memory/memory.stat",
            "inactive_file 1\ntotal_inactive_file 4096\n",
        ),
    ]);
    assert_eq!(found.bytes, 4096);
    assert_eq!(
        found.to_string(),
        "4096 bytes left of the control group's 512.0 MiB (/sys/fs/cgroup/memory)"
    );
}

#[test]
fn unreadable_figures_refuse_nothing_and_damaged_ones_do_not_panic() {
    let found = read_from(&[]);
    assert_eq!(found.bound, Bound::Unknown);
    assert!(size_pool(&wish(), &found).is_ok());
    let damaged = read_from(&[
        ("/proc/meminfo", "MemAvailable: many kB\n"),
        (
            "/proc/self/cgroup",
            "0::/../../up\nfive\n::\n:memory:relative\n",
        ),
    ]);
    assert_eq!(damaged.bound, Bound::Unknown);
}

#[test]
fn this_machine_has_a_bound() {
    let found = available();
    assert!(found.bytes > 0);
    assert_ne!(
        found.bound,
        Bound::Unknown,
        "this test runs on Linux with /proc"
    );
}
