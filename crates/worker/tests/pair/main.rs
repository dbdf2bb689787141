//! Prefill and decode as they are shipped, with control connections, certificates and shared
//! memory between them. The gateway is played by its real machine.

mod audits;
mod cut;
mod edge;
mod fabric_fails;
mod golden_answers;
mod held;
mod liar;
mod processes;
mod stages;

use edge::{Answer, Edge, Pair};
use handoff::gateway::{Event, Outcome};
use handoff::{
    AttemptId, DecodeToGateway, Ending, GatewayToDecode, GatewayToPrefill, PrefillToGateway,
    Rejection, Role, Spec, codec,
};
use pages::{Domain, Epoch};
use std::path::Path;
use std::time::{Duration, Instant};
use wire::trace::Header;
use wire::{Ask, Sampling};
use worker::EngineConfig;
use worker::local::{self, Local};

fn endless() -> Ask {
    Ask {
        ignore_eos: true,
        ..Ask::greedy()
    }
}

fn sampled(seed: u64) -> Ask {
    let sampling = Sampling {
        seed,
        temperature: 0.9,
        top_p: 0.95,
        presence_penalty: 0.3,
        logprobs: Some(2),
        ..Sampling::default()
    };
    Ask {
        sampling,
        ..endless()
    }
}

fn prompt(seed: u32, n: u32) -> Vec<u32> {
    (0..n)
        .map(|i| 1000 + (seed * 7919 + i * 31) % 20_000)
        .collect()
}

fn spec(domain: u64, tokens: Vec<u32>, max_new: u32, choices: u16, ask: &Ask) -> Spec {
    let sampling = ask.encode();
    Spec {
        choices,
        cache: true,
        sampling,
        ..Spec::new(Domain::new(domain), tokens, max_new)
    }
}

fn probe() -> Spec {
    spec(99, vec![7], 1, 1, &endless())
}

/// The same requests to the engine in one process.
fn reference(pair: &Pair, specs: &[Spec]) -> Vec<Vec<Vec<wire::TokenOut>>> {
    reference_of(&pair.model, 256, specs)
}

fn reference_of(model: &Path, context: u32, specs: &[Spec]) -> Vec<Vec<Vec<wire::TokenOut>>> {
    let (threads, max_context) = (1, Some(context));
    let config = EngineConfig {
        threads,
        max_context,
        ..EngineConfig::new(model)
    };
    let local = Local::start(&config).unwrap();
    let deadline = Instant::now() + Duration::from_secs(600);
    let running: Vec<_> = specs
        .iter()
        .map(|spec| local.submit(spec.clone(), deadline).unwrap())
        .collect();
    running
        .into_iter()
        .map(|mut running| {
            let mut tokens = Vec::new();
            while let Some(event) = running.events.blocking_recv() {
                if let local::Event::Token { choice, token, .. } = event {
                    let choice = usize::from(choice);
                    tokens.resize(tokens.len().max(choice + 1), Vec::new());
                    tokens[choice].push(token);
                }
            }
            tokens
        })
        .collect()
}

/// A crowd of prompts from one token to the limit, of four tenants. Prompts return in the same
/// tenant (another length, the same beginning), which caches serve, and in others, which they must
/// not (H-13).
fn crowd(n: u32) -> Vec<Spec> {
    (0..n)
        .map(|i| {
            let ask = if i % 2 == 0 {
                endless()
            } else {
                sampled(u64::from(i))
            };
            let choices = if i % 5 == 4 { 3 } else { 1 };
            let length = [1, 15, 16, 17, 33, 64, 100, 200, 236][i as usize % 9];
            let length = if choices == 1 {
                length
            } else {
                length.min(200)
            };
            spec(u64::from(i % 4), prompt(i / 32, length), 20, choices, &ask)
        })
        .collect()
}

#[test]
fn answers_equal_those_of_the_engine_in_one_process() {
    let pair = Pair::start(|_| {});
    let specs = crowd(18);
    let expected = reference(&pair, &specs);
    let mut edge = pair.edge(1);
    edge.ready(&probe());
    let requests: Vec<_> = specs.iter().map(|spec| edge.submit(spec.clone())).collect();
    let answers = edge.answers(&requests);
    for ((spec, answer), expected) in specs.iter().zip(&answers).zip(&expected) {
        assert_eq!(answer.outcome, Some(Outcome::Answered));
        assert_eq!(
            answer.tokens,
            *expected,
            "prompt of {} tokens",
            spec.tokens.len()
        );
    }
    let decode = edge.at_rest(edge.decode, pair.decode.ready.pool_tokens, 16);
    let prefill = edge.at_rest(edge.prefill, pair.prefill.ready.pool_tokens, 16);
    assert_eq!(decode.counters.integrity_faults + decode.counters.fences, 0);
    assert!(decode.counters.batch_pages > 0 && prefill.counters.batch_pages > 0);
    let scrubbed = (
        decode.counters.pages_scrubbed,
        prefill.counters.pages_scrubbed,
    );
    assert_eq!(scrubbed, (0, 0), "nobody asked for it");
    assert_eq!(
        (
            decode.counters.dropped_grants,
            prefill.counters.dropped_grants
        ),
        (0, 0)
    );
}

#[test]
fn workers_that_scrub_and_have_several_threads_answer_the_same() {
    let pair = Pair::start(|shape| {
        for engine in [&mut shape.prefill, &mut shape.decode] {
            (engine.scrub, engine.threads, engine.max_batch) = (true, 2, 5);
        }
    });
    let specs = crowd(12);
    let expected = reference(&pair, &specs);
    let mut edge = pair.edge(1);
    edge.ready(&probe());
    let requests: Vec<_> = specs.iter().map(|spec| edge.submit(spec.clone())).collect();
    for (answer, expected) in edge.answers(&requests).iter().zip(&expected) {
        assert_eq!(
            (&answer.outcome, &answer.tokens),
            (&Some(Outcome::Answered), expected)
        );
    }
    for (conn, ready) in [
        (edge.prefill, &pair.prefill.ready),
        (edge.decode, &pair.decode.ready),
    ] {
        let rest = edge.at_rest(conn, ready.pool_tokens, 16);
        // Every page was free at first, and who leaves gives back what is not cached.
        assert!(rest.counters.pages_scrubbed > 0, "{rest:?}");
    }
}

#[test]
fn a_cached_prefix_changes_no_answer_and_stays_in_its_domain() {
    let pair = Pair::start(|_| {});
    let one = spec(1, prompt(3, 100), 12, 1, &endless());
    let other = Spec {
        domain: Domain::new(2),
        ..one.clone()
    };
    let expected = reference(&pair, std::slice::from_ref(&one)).remove(0);
    let mut edge = pair.edge(1);
    edge.ready(&probe());
    let first = edge.ask(one.clone());
    let again = edge.ask(one);
    let foreign = edge.ask(other);
    for answer in [&first, &again, &foreign] {
        assert_eq!(answer.tokens, expected);
    }
    assert_eq!(
        (
            first.cached_tokens,
            again.cached_tokens,
            foreign.cached_tokens
        ),
        (0, 96, 0)
    );
}

/// The lifetime of cached pages, with workers as they ship: before it has passed they are of use,
/// afterwards neither worker has one, and the answer is the same.
#[test]
fn cached_pages_that_nobody_uses_are_given_up_after_their_lifetime() {
    let asked = spec(1, prompt(3, 100), 12, 1, &endless());
    let mut answers = Vec::new();
    for lifetime in [Duration::from_secs(3600), Duration::from_millis(200)] {
        let pair = Pair::start(|shape| {
            (shape.prefill.scrub, shape.decode.scrub) = (true, true);
            shape.deadlines.cache = Some(lifetime);
            shape.decode_deadlines.cache = Some(lifetime);
        });
        let mut edge = pair.edge(1);
        edge.ready(&probe());
        answers.push(edge.ask(asked.clone()));
        let ends = lifetime < Duration::from_secs(1);
        let patience = Instant::now() + edge.patience;
        for conn in [edge.prefill, edge.decode] {
            let pages = if ends { 6 } else { 0 };
            // A worker may say what it has before the last of them are cached.
            let counters = loop {
                let facts = edge.facts(conn);
                if !ends
                    || (facts.pages.cached == 0 && facts.counters.cached_pages_expired >= pages)
                {
                    break facts.counters;
                }
                assert!(
                    Instant::now() < patience,
                    "they are never given up: {facts:?}"
                );
            };
            assert_eq!(counters.cached_pages_expired, pages);
            assert!(counters.pages_scrubbed >= pages, "{counters:?}");
        }
        let again = edge.ask(asked.clone());
        assert_eq!(again.cached_tokens, if ends { 0 } else { 96 });
        answers.push(again);
    }
    for answer in &answers {
        assert_eq!(answer.tokens, answers[0].tokens);
    }
}

#[test]
fn what_is_over_decodes_limit_is_rejected_past_the_gateway_too() {
    let pair = Pair::start(|shape| {
        (shape.prefill.max_context, shape.prefill.pool_tokens) = (Some(128), Some(128));
        (shape.decode.max_context, shape.decode.pool_tokens) = (Some(96), Some(96));
    });
    let mut edge = pair.edge(1);
    assert_eq!(limits_at_the_edge(&mut edge, 95), (95, 96));
    let too_long = |tokens, limit, by| Rejection::PromptTooLong { tokens, limit, by };
    let (prefill, decode) = (Role::Prefill, Role::Decode);
    let sum = Rejection::ContextTooLong {
        prompt: 94,
        max_new: 3,
        limit: 96,
        by: decode,
    };
    rejected_past_the_gateway(
        &pair,
        edge,
        // P checks D's limit again.
        &[
            (129, 1, too_long(129, 127, prefill)),
            (96, 1, too_long(96, 95, decode)),
        ],
        &[(96, 1, too_long(96, 95, decode)), (94, 3, sum)],
    );
}

#[test]
fn what_is_over_prefills_limit_is_rejected_past_the_gateway_too() {
    let pair = Pair::start(|shape| {
        (shape.prefill.max_context, shape.prefill.pool_tokens) = (Some(64), Some(64));
        (shape.decode.max_context, shape.decode.pool_tokens) = (Some(128), Some(128));
    });
    let mut edge = pair.edge(1);
    assert_eq!(limits_at_the_edge(&mut edge, 63), (63, 64));
    let too_long = |tokens, limit, by| Rejection::PromptTooLong { tokens, limit, by };
    let (prefill, decode) = (Role::Prefill, Role::Decode);
    let sum = Rejection::ContextTooLong {
        prompt: 60,
        max_new: 5,
        limit: 64,
        by: prefill,
    };
    rejected_past_the_gateway(
        &pair,
        edge,
        &[(64, 1, too_long(64, 63, prefill)), (60, 5, sum)],
        &[
            (128, 1, too_long(128, 127, decode)),
            (200, 1, too_long(200, 127, decode)),
        ],
    );
}

/// Prompts of one below, at, and one above the limit: exactly the first two are answered. The
/// advertised limits: longest prompt, largest sum.
fn limits_at_the_edge(edge: &mut Edge, limit: u32) -> (u32, u32) {
    edge.ready(&probe());
    for (length, fits) in [(limit - 1, true), (limit, true), (limit + 1, false)] {
        let answer = edge.ask(spec(1, prompt(length, length), 1, 1, &endless()));
        let rejected = matches!(answer.outcome, Some(Outcome::Rejected(_)));
        assert_eq!(
            (answer.outcome == Some(Outcome::Answered), rejected),
            (fits, !fits)
        );
    }
    let advertised = edge.machine.limits()[0];
    (advertised.max_prompt(), advertised.max_model_len())
}

/// Prompt length, maximum of new tokens, and the error that both must give.
type Over = (u32, u32, Rejection);

/// Sends what is over a limit straight to the workers: rejected there too, before a ticket, and
/// with every page free again (H-5).
fn rejected_past_the_gateway(pair: &Pair, mut edge: Edge, at_p: &[Over; 2], at_d: &[Over; 2]) {
    let (p_pool, d_pool) = (
        pair.prefill.ready.pool_tokens,
        pair.decode.ready.pool_tokens,
    );
    let p_before = edge.at_rest(edge.prefill, p_pool, 16).counters;
    let d_before = edge.at_rest(edge.decode, d_pool, 16).counters;
    edge.go_raw();
    let attempt = |n: usize| AttemptId {
        epoch: Epoch::new(77),
        n: n as u64,
    };
    let hello = handoff::Hello {
        epoch: Epoch::new(77),
        ..edge.hello.clone()
    };
    let p = edge.dial_raw(&pair.prefill.addr(), wire::control::Role::Prefill);
    edge.say(p, &GatewayToPrefill::Hello(hello.clone()));
    let d = edge.dial_raw(&pair.decode.addr(), wire::control::Role::Decode);
    edge.say(d, &GatewayToDecode::Hello(hello));
    let (prefill, decode) = (pair.prefill.ready.epoch, pair.decode.ready.epoch);
    let deadline_ms = 60_000;
    let over = |(n, max_new, _): &Over| spec(1, prompt(*n, *n), *max_new, 1, &endless());
    for (n, case) in at_p.iter().enumerate() {
        let (attempt, spec) = (attempt(n + 1), over(case));
        edge.say(
            p,
            &GatewayToPrefill::Attempt {
                attempt,
                spec,
                decode,
                deadline_ms,
            },
        );
    }
    for (n, case) in at_d.iter().enumerate() {
        let (attempt, spec) = (attempt(n + 1), over(case));
        edge.say(
            d,
            &GatewayToDecode::Expect {
                attempt,
                spec,
                prefill,
                deadline_ms,
            },
        );
    }
    edge.until("a Hello and two answers on each connection", |edge| {
        [p, d]
            .iter()
            .all(|conn| edge.raw.get(conn).is_some_and(|raw| raw.len() == 3))
    });
    for (n, (_, _, why)) in at_p.iter().enumerate() {
        let (attempt, ending) = (attempt(n + 1), Ending::Rejected(why.clone()));
        let said: PrefillToGateway = codec::decode(&edge.raw[&p][n + 1]).unwrap();
        assert_eq!(said, PrefillToGateway::Ended { attempt, ending });
    }
    for (n, (_, _, why)) in at_d.iter().enumerate() {
        let (attempt, ending) = (attempt(n + 1), Ending::Rejected(why.clone()));
        let said: DecodeToGateway = codec::decode(&edge.raw[&d][n + 1]).unwrap();
        assert_eq!(said, DecodeToGateway::Ended { attempt, ending });
    }
    for (conn, before, pool) in [(p, p_before, p_pool), (d, d_before, d_pool)] {
        let after = edge.at_rest(conn, pool, 16).counters;
        assert_eq!(after.attempts_rejected, before.attempts_rejected + 2);
        let work =
            |counters: wire::Counters| (counters.steps, counters.batches, counters.prompt_tokens);
        assert_eq!(
            work(after),
            work(before),
            "H-5: nothing is granted, written or computed"
        );
    }
}

#[test]
fn garbage_costs_its_connection_and_nothing_else() {
    let pair = Pair::start(|_| {});
    let mut edge = pair.edge(1);
    edge.ready(&probe());
    let garbage: [&[u8]; 6] = [
        &[],
        &[9],
        &[0],
        &[0, 1, 250, 250],
        &[0, 7, 1],
        &[2, 1, 255, 255, 255],
    ];
    for (role, addr) in [
        (wire::control::Role::Prefill, pair.prefill.addr()),
        (wire::control::Role::Decode, pair.decode.addr()),
    ] {
        for bytes in garbage {
            let conn = edge.dial_raw(&addr, role);
            edge.say_bytes(conn, bytes.to_vec());
            edge.until("the connection is closed", |edge| edge.gone.contains(&conn));
        }
    }
    // A message that can be read, and that the machine hangs up on: the driver does.
    let other = handoff::Hello {
        model: [9; 32],
        ..edge.hello.clone()
    };
    let conn = edge.dial_raw(&pair.prefill.addr(), wire::control::Role::Prefill);
    edge.say(conn, &handoff::GatewayToPrefill::Hello(other.clone()));
    edge.until("prefill hangs up", |edge| edge.gone.contains(&conn));
    let conn = edge.dial_raw(&pair.decode.addr(), wire::control::Role::Decode);
    edge.say(conn, &handoff::GatewayToDecode::Hello(other));
    edge.until("decode hangs up", |edge| edge.gone.contains(&conn));
    for conn in [edge.prefill, edge.decode] {
        assert_eq!(
            edge.facts(conn).counters.malformed_messages,
            garbage.len() as u64
        );
    }
    let answer = edge.ask(spec(1, prompt(1, 40), 4, 1, &endless()));
    assert_eq!(answer.outcome, Some(Outcome::Answered));
}

#[test]
fn traces_of_a_loaded_run_with_cancels_replay_byte_for_byte() {
    let mut pair = Pair::start(|shape| shape.decode.max_batch = 6);
    let mut edge = pair.edge(1);
    edge.ready(&probe());
    let specs = crowd(200);
    let expected = reference(&pair, &specs);
    let requests: Vec<_> = specs.iter().map(|spec| edge.submit(spec.clone())).collect();
    // Some leave at once, some in the middle of their answer, one stops a choice.
    for request in requests.iter().step_by(7) {
        edge.tell(Event::ClientGone(*request));
    }
    let half = |answer: &Answer| {
        answer
            .tokens
            .first()
            .is_some_and(|tokens| tokens.len() >= 5)
    };
    let leaving: Vec<_> = requests.iter().skip(1).step_by(7).copied().collect();
    for request in &leaving {
        edge.until("half an answer", |edge| {
            half(&edge.answers[request]) || edge.answers[request].outcome.is_some()
        });
        edge.tell(Event::ClientGone(*request));
    }
    let answers = edge.answers(&requests);
    let mut answered = 0;
    for (answer, expected) in answers.iter().zip(&expected) {
        match answer.outcome {
            Some(Outcome::Answered) => {
                assert_eq!(answer.tokens, *expected);
                answered += 1;
            }
            Some(Outcome::ClientLeft) => {
                for (tokens, expected) in answer.tokens.iter().zip(expected) {
                    assert!(expected.starts_with(tokens), "what came before was right");
                }
            }
            _ => panic!("{answer:?}"),
        }
    }
    assert!((140..200).contains(&answered), "{answered}");
    let prefill = edge.at_rest(edge.prefill, pair.prefill.ready.pool_tokens, 16);
    let decode = edge.at_rest(edge.decode, pair.decode.ready.pool_tokens, 16);
    assert_eq!(
        decode.counters.integrity_faults + decode.counters.dropped_grants,
        0
    );
    let cached = prefill.counters.cached_tokens + decode.counters.cached_tokens;
    assert!(cached > 0, "the caches were of use");
    drop(edge);
    pair.prefill.end().unwrap();
    pair.decode.end().unwrap();

    for role in ["prefill", "decode"] {
        let judged = lab::traces::of_trace(&pair.trace(role)).unwrap();
        assert_eq!(judged.violation, None, "{role}");
        let clauses: Vec<_> = judged.judged.keys().copied().collect();
        let of_role: &[&str] = match role {
            "prefill" => &["H-10", "H-18", "H-3", "H-5", "H-7", "H-8", "H-9"],
            _ => &["H-10", "H-18", "H-2", "H-5", "H-6", "H-8", "H-9"],
        };
        let judged_all = of_role.iter().all(|clause| clauses.contains(clause));
        assert!(judged_all, "{role}: {clauses:?}");
        let replayed = judged.replayed;
        assert!(replayed.at_rest && !replayed.torn, "{role}");
        assert!(replayed.inputs > 1000, "{role}: {}", replayed.inputs);
        match (role, &replayed.header) {
            ("prefill", Header::Prefill { hello, .. }) => {
                assert_eq!(hello.epoch, pair.prefill.ready.epoch);
            }
            ("decode", Header::Decode { hello, .. }) => {
                assert_eq!(hello.epoch, pair.decode.ready.epoch);
            }
            other => panic!("{other:?}"),
        }
    }
}
