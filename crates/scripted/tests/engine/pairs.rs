//! SGLang's pairs: rooms, leaving, and the incident.

use scripted::{Act, Engine, Fleet, Rule, Stage, What, Whose, expected, whose};
use serde_json::json;

use crate::leg;
use crate::talk::{A_WHILE, SOON, post, read, send};

const PROMPT: [u32; 5] = [1, 2, 3, 4, 5];

#[tokio::test]
async fn decode_says_what_prefill_handed_over() {
    let fleet = Fleet::start(Engine::sglang_pair()).await.unwrap();
    let (prefill, decode) = (fleet.address("prefill"), fleet.address("decode"));
    let body = leg(&PROMPT, 77, "r");
    let (p, d) = tokio::join!(
        post(prefill, "/generate", &body),
        post(decode, "/generate", &body)
    );
    let (p, d) = (p.json(), d.json());
    assert_eq!(p["output_ids"], json!(expected(&PROMPT, 1)));
    assert_eq!(
        p["meta_info"]["finish_reason"],
        json!({"type": "length", "length": 0})
    );
    assert_eq!(d["output_ids"], json!(expected(&PROMPT, 4)));
    assert_eq!(
        (
            &p["meta_info"]["prompt_tokens"],
            &d["meta_info"]["prompt_tokens"]
        ),
        (&json!(5), &json!(5))
    );
    // Mispaired: the words are those of prefill's prompt.
    let (p, d) = (leg(&PROMPT, 78, "p"), leg(&[9], 78, "d"));
    let (_, d) = tokio::join!(
        post(prefill, "/generate", &p),
        post(decode, "/generate", &d)
    );
    assert_eq!(d.json()["output_ids"], json!(expected(&PROMPT, 4)));
    assert_eq!(
        (
            fleet.all().broken,
            fleet.all().orphans,
            fleet.all().in_flight
        ),
        (0, 0, 0)
    );
}

#[tokio::test]
async fn without_a_room_a_leg_is_refused_and_a_room_is_no_others() {
    let fleet = Fleet::start(Engine::sglang_pair()).await.unwrap();
    let (prefill, decode) = (fleet.address("prefill"), fleet.address("decode"));
    let got = post(decode, "/generate", &crate::tokens(&PROMPT, 4)).await;
    assert_eq!(got.status, 400);
    let body = leg(&PROMPT, 5, "r");
    for _ in 0..2 {
        let (_, d) = tokio::join!(
            post(prefill, "/generate", &body),
            post(decode, "/generate", &body)
        );
        assert_eq!(d.status, 200);
    }
    assert_eq!(fleet.counts("decode").rooms_again, 1);
    assert_eq!(fleet.counts("prefill").rooms_again, 1);
}

#[tokio::test]
async fn a_decode_whose_prefill_never_comes_fails_by_its_own_time_and_is_an_orphan() {
    let [prefill, mut decode] = Engine::sglang_pair();
    decode.wait_ms = 60;
    let fleet = Fleet::start([prefill, decode]).await.unwrap();
    let got = post(fleet.address("decode"), "/generate", &leg(&PROMPT, 1, "r")).await;
    assert_eq!(got.status, 500);
    assert!(
        got.body.contains("KVTransferError(bootstrap_room=1)"),
        "{}",
        got.body
    );
    assert_eq!(fleet.counts("decode").orphans, 1);
    assert_eq!(fleet.all().broken, 0);
}

#[tokio::test]
async fn a_refused_prefill_tells_decode_nothing() {
    let fleet = Fleet::start(Engine::sglang_pair()).await.unwrap();
    fleet.rule(
        Rule::new(Act::Refuse {
            status: 400,
            message: None,
        })
        .on("prefill"),
    );
    let body = leg(&PROMPT, 1, "r");
    let mut waiting = send(fleet.address("decode"), "/generate", &body).await;
    assert_eq!(
        post(fleet.address("prefill"), "/generate", &body)
            .await
            .status,
        400
    );
    assert!(
        tokio::time::timeout(A_WHILE, read(&mut waiting))
            .await
            .is_err()
    );
    drop(waiting);
    assert!(fleet.quiet(SOON).await);
    let decode = fleet.counts("decode");
    assert_eq!(
        (decode.disconnected, decode.orphans, decode.broken),
        (1, 0, 0)
    );
}

#[tokio::test]
async fn who_leaves_in_mid_transfer_breaks_it_and_the_other_leg_fails() {
    for (leaver, other) in [("prefill", "decode"), ("decode", "prefill")] {
        let [prefill, decode] = Engine::sglang_pair();
        let fleet = Fleet::start([prefill.paced(0, 60_000, 0), decode])
            .await
            .unwrap();
        let body = leg(&PROMPT, 1, "r");
        let leaving = send(fleet.address(leaver), "/generate", &body).await;
        let mut staying = send(fleet.address(other), "/generate", &body).await;
        assert!(fleet.until(SOON, |it| it.transfers_begun == 1).await);
        drop(leaving);
        let got = read(&mut staying).await.unwrap();
        assert_eq!(got.status, 500);
        assert_eq!(
            (
                fleet.counts(leaver).broken,
                fleet.counts(leaver).disconnected
            ),
            (1, 1)
        );
        assert_eq!((fleet.counts(other).broken, fleet.all().orphans), (0, 0));
        let left = fleet
            .log()
            .into_iter()
            .any(|it| matches!(it.what, What::Disconnected { .. }) && &*it.engine == leaver);
        assert!(left);
    }
}

#[tokio::test]
async fn leaving_after_the_transfer_breaks_nothing() {
    let [prefill, decode] = Engine::sglang_pair();
    let fleet = Fleet::start([prefill, decode.paced(0, 0, 60_000)])
        .await
        .unwrap();
    let body = leg(&PROMPT, 1, "r");
    let leaving = send(fleet.address("decode"), "/generate", &body).await;
    assert_eq!(
        post(fleet.address("prefill"), "/generate", &body)
            .await
            .status,
        200
    );
    assert!(fleet.until(SOON, |it| it.transferred == 2).await);
    drop(leaving);
    assert!(fleet.quiet(SOON).await);
    let decode = fleet.counts("decode");
    assert_eq!(
        (decode.disconnected, decode.broken, decode.orphans),
        (1, 0, 0)
    );
    let stage = fleet.log().into_iter().find_map(|it| match it.what {
        What::Disconnected { stage } => Some(stage),
        _ => None,
    });
    assert_eq!(stage, Some(Stage::Answering));
}

#[tokio::test]
async fn the_incident() {
    let [prefill, decode] = Engine::sglang_pair();
    let mut prefill = prefill.sized(4096, 2000);
    prefill.leaks = true;
    let fleet = Fleet::start([prefill, decode]).await.unwrap();
    for (n, right) in [(1993, true), (1994, false), (2500, false)] {
        let prompt = vec![256; n];
        let body = leg(&prompt, n as u64, "r");
        let (p, d) = tokio::join!(
            post(fleet.address("prefill"), "/generate", &body),
            post(fleet.address("decode"), "/generate", &body)
        );
        assert_eq!((p.status, d.status), (200, 200));
        let (p, d) = (p.json(), d.json());
        let counts = (
            &p["meta_info"]["prompt_tokens"],
            &d["meta_info"]["prompt_tokens"],
        );
        assert_eq!(counts, (&json!(if right { n } else { 1 }), &json!(n)));
        let whose = whose(&prompt, d["text"].as_str().unwrap());
        assert_eq!(whose, if right { Whose::Right } else { Whose::Garbage });
    }
}

#[tokio::test]
async fn a_killed_prefill_refuses_and_comes_back() {
    let fleet = Fleet::start(Engine::sglang_pair()).await.unwrap();
    let at = fleet.address("prefill");
    fleet.rule(Rule::new(Act::Hang).nth(1));
    let mut hanging = send(at, "/generate", &leg(&PROMPT, 1, "r")).await;
    assert!(fleet.until(SOON, |it| it.in_flight == 1).await);
    fleet.kill("prefill").await;
    assert!(read(&mut hanging).await.is_none());
    assert!(fleet.quiet(SOON).await);
    assert_eq!((fleet.all().disconnected, fleet.all().broken), (0, 0));
    assert!(tokio::net::TcpStream::connect(at).await.is_err());
    fleet.revive("prefill").await.unwrap();
    assert_eq!(crate::talk::get(at, "/health").await.status, 200);
}
