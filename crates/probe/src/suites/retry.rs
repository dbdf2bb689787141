//! The same ids from two tenants at the same time, and fields that only engines should set. Nothing
//! may be keyed on what a client chose.

use super::{Known, Stopped, Suite, alive, find, patience};
use crate::ask::{ProbeAnswer, Question};
use crate::canary::Tenant;
use crate::finding::Kind;
use crate::run::{ProbeRun, Spent};
use futures::future::join;
use serde_json::{Value, json};

const NAME: &str = "retry";
/// Pairs of each kind.
const PAIRS: usize = 3;
/// The field of engines.
const TRANSFER: &str = "kv_transfer_params";

pub(super) async fn run(run: &ProbeRun, _: &Known) -> Result<(), Stopped> {
    let tenants = run.tenants();
    let (a, b) = (tenants[0], tenants[tenants.len() - 1]);
    let control = control(run, a).await?;
    for (name, value) in injected() {
        for n in 0..PAIRS {
            let mut one = Question::new(a, 6 + n);
            let mut two = Question::new(b, 5 + n);
            for ask in [&mut one, &mut two] {
                ask.max_tokens = 32;
                ask.refused = name == TRANSFER;
                match name {
                    "X-Request-Id" => {
                        let id = value.as_str().unwrap_or_default().to_owned();
                        ask.headers.push((name.to_owned(), id));
                    }
                    name => {
                        ask.fields.insert(name.to_owned(), value.clone());
                    }
                }
            }
            let (first, second) = join(run.ask(NAME, one), run.ask(NAME, two)).await;
            let answers = [first?, second?];
            if name == TRANSFER {
                answers.iter().for_each(|it| taken(run, &control, it));
                let shows = answers.map(|it| it.sent);
                let endpoint = run.endpoint(a);
                alive::check(run, Suite::Retry, endpoint, a, control.lives, &shows).await?;
            }
        }
    }
    Ok(())
}

/// What the server does with a field that nobody knows.
struct Control {
    /// It answers what has no such field.
    lives: bool,
    /// It leaves it aside, and answers.
    ignores: bool,
    /// And goes on with the prompt.
    copies: bool,
}

async fn control(run: &ProbeRun, tenant: Tenant) -> Result<Control, Spent> {
    let lives = alive::answers(run, run.endpoint(tenant), tenant).await?;
    let mut ask = Question::new(tenant, 6);
    ask.refused = true;
    let value = json!({"made_up": true, "by": "cofferdam probe"});
    ask.fields.insert("cofferdam_made_up".to_owned(), value);
    let answer = patience::ask(run, NAME, ask).await?;
    Ok(Control {
        lives,
        ignores: answer.status() == Some(200),
        copies: answer.copies(),
    })
}

/// Whether a client's field of engines did something: 200 alone says that only of a server that refuses
/// what it does not know.
fn taken(run: &ProbeRun, control: &Control, answer: &ProbeAnswer) {
    let Ok(reply) = &answer.reply else { return };
    if reply.status != 200 {
        return;
    }
    let why = if reply.said.transfer.is_some() {
        "references to blocks are given out"
    } else if !control.ignores {
        "fields that are not known are refused, and these are not"
    } else if control.copies && answer.text().is_some() && !answer.copies() {
        "the answer does not go on with its prompt any more, and with a field that nobody knows it does"
    } else {
        return; // left aside like every field that it does not know
    };
    let says = format!(
        "a client's {TRANSFER} were accepted ({why}): whoever reaches this port can name other \
         requests' blocks"
    );
    find(
        run,
        Suite::Retry,
        Kind::OpenControl,
        says,
        vec![answer.sent.clone()],
    );
}

/// What a client may try to set.
fn injected() -> Vec<(&'static str, Value)> {
    vec![
        ("X-Request-Id", json!("probe-same-id")),
        ("rid", json!("probe-same-rid")),
        ("cache_salt", json!("probe-same-salt")),
        ("bootstrap_room", json!(424_242)),
        (
            TRANSFER,
            json!({"do_remote_prefill": false, "do_remote_decode": true,
                   "remote_engine_id": null, "remote_block_ids": null, "remote_host": null,
                   "remote_port": null}),
        ),
        (
            TRANSFER,
            json!({"do_remote_prefill": true, "do_remote_decode": false,
                   "remote_engine_id": "probe", "remote_request_id": "probe",
                   "remote_block_ids": [[1, 2, 3]], "remote_host": "127.0.0.1", "remote_port": 1}),
        ),
    ]
}
