//! A trace gives the same effects again, and a difference is found.

use handoff::decode::{Config, Decode, Effect, Event};
use handoff::{
    AttemptId, Broken, Conn, GatewayToDecode, Hello, LinkId, PrefillToDecode, Role, Spec,
};
use pages::{Domain, Epoch, Pool};
use std::path::Path;
use wire::trace::{DecodeInput, Header, PoolShape, TraceError, Writer, replay};

const POOL: PoolShape = PoolShape {
    pages: 8,
    page_size: 4,
    scrub: true,
};

fn hello(role: Role, epoch: u128) -> Hello {
    let capacity = handoff::Capacity {
        role,
        pages: 8,
        page_size: 4,
        context: 32,
    };
    let capacity = (role != Role::Gateway).then_some(capacity);
    Hello {
        epoch: Epoch::new(epoch),
        role,
        model: [1; 32],
        layout: [2; 32],
        capacity,
        ranks: 1,
    }
}

fn events() -> Vec<Event> {
    let attempt = AttemptId {
        epoch: Epoch::new(3),
        n: 1,
    };
    let spec = Spec {
        cache: true,
        ..Spec::new(Domain::new(1), vec![5; 6], 2)
    };
    let (p, g) = (Conn(1), Conn(2));
    vec![
        Event::FromPrefill(p, PrefillToDecode::Hello(hello(Role::Prefill, 2))),
        Event::FromPrefill(
            p,
            PrefillToDecode::Sync {
                under: LinkId {
                    epoch: Epoch::new(2),
                    conn: Conn(7),
                },
                tickets: vec![],
                offers: vec![],
            },
        ),
        Event::FromGateway(g, GatewayToDecode::Hello(hello(Role::Gateway, 3))),
        Event::FromGateway(
            g,
            GatewayToDecode::Expect {
                attempt,
                spec,
                prefill: Epoch::new(2),
                deadline_ms: 9,
            },
        ),
        Event::Disconnected(g),
        Event::Drain,
    ]
}

/// Writes a trace of the machine; `forge` may change what is recorded of an event's effects.
fn record(path: &Path, forge: impl Fn(usize, &mut Vec<Effect>)) {
    let config = Config::for_pool(8, 32, [7; 32]);
    let hello = hello(Role::Decode, 1);
    let header = Header::Decode {
        config: config.clone(),
        hello: hello.clone(),
        pool: POOL,
    };
    let (pool, mint) = Pool::new(POOL.into());
    let fabric = mint.lend();
    let mut machine = Decode::new(config, hello, pool, mint);
    let mut writer = Writer::create(path, &header).unwrap();
    for (index, event) in events().into_iter().enumerate() {
        writer.input(&DecodeInput::Event(event.clone()));
        let mut effects = machine.handle(event);
        forge(index, &mut effects);
        writer.effects(&effects).unwrap();
        for effect in effects {
            let Effect::OpenArena {
                arena,
                writer: life,
            } = effect
            else {
                continue;
            };
            let opened = Event::ArenaOpened {
                arena,
                slots: 8,
                address: vec![1],
            };
            writer.input(&DecodeInput::Event(opened.clone()));
            writer.effects(&machine.handle(opened)).unwrap();
            writer.input(&DecodeInput::Fenced(arena, life));
            writer
                .effects(&machine.handle_fenced(arena, fabric.fenced(life)))
                .unwrap();
        }
    }
    writer.flush().unwrap();
}

#[test]
fn a_trace_with_a_fence_replays_byte_for_byte() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("trace");
    record(&path, |_, _| {});
    let replayed = replay(&path).unwrap();
    assert!(replayed.inputs >= events().len() as u64 + 2, "{replayed:?}");
    assert!(replayed.at_rest && !replayed.torn && replayed.effect_bytes > 100);
    assert!(matches!(replayed.header, Header::Decode { pool: POOL, .. }));
    let again = Writer::create(&path, &replayed.header).unwrap_err();
    assert!(
        again.to_string().contains("exists"),
        "evidence is not overwritten: {again}"
    );
}

#[test]
fn one_effect_more_or_less_is_found_where_it_is() {
    let dir = tempfile::tempdir().unwrap();
    for (name, forge) in [
        (
            "less",
            (|index, effects| {
                if index == 3 {
                    effects.pop();
                }
            }) as fn(usize, &mut Vec<Effect>),
        ),
        ("more", |index, effects| {
            if index == 3 {
                effects.push(Effect::FailStop(Broken::StepNotBegun));
            }
        }),
    ] {
        let path = dir.path().join(name);
        record(&path, forge);
        let error = replay(&path).unwrap_err();
        assert!(matches!(&error, TraceError::Differs { input, .. } if input.contains("Expect")));
    }
}

#[test]
fn a_torn_end_is_told_and_damage_is_an_error() {
    let dir = tempfile::tempdir().unwrap();
    let whole = dir.path().join("whole");
    record(&whole, |_, _| {});
    let bytes = std::fs::read(&whole).unwrap();
    let with = |name: &str, bytes: &[u8]| {
        let path = dir.path().join(name);
        std::fs::write(&path, bytes).unwrap();
        replay(&path)
    };
    let torn = with("torn", &bytes[..bytes.len() - 3]).unwrap();
    assert!(torn.torn);
    assert!(matches!(
        with("other", b"something else"),
        Err(TraceError::NoTrace(_))
    ));
    let mut large = bytes.clone();
    large.extend(u32::MAX.to_le_bytes());
    large.push(0);
    assert!(matches!(
        with("large", &large),
        Err(TraceError::Damaged { .. })
    ));
    // Any cut is the end of a trace, a damaged one, or none at all: never a panic.
    for cut in 0..bytes.len() {
        let _ = with("cut", &bytes[..cut]);
    }
}
