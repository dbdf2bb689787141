//! Everything that was seen, as JSON.

use super::incident::Story;
use super::pool::Footprint;
use super::run::{Answer, Leak, Outcome};
use super::scenario::{Ask, SECRET, SENTENCE};
use super::table::Verdict;
use super::timeline::Moment;
use serde_json::{Value, json};

pub(super) fn of(story: &Story) -> Value {
    let shape = story.scenario.size.shape();
    let alone = story.alone.iter().map(|(guard, outcome)| {
        let mut row = outcome_of(outcome);
        row["safeguard"] = json!(guard.id());
        row["title"] = json!(guard.title());
        row["clause"] = json!(guard.clause());
        row["why"] = json!(guard.why());
        row
    });
    json!({
        "size": story.scenario.size.name(),
        "model": story.model,
        "prefill_pool_tokens": shape.prefill_pool,
        "decode_pool_tokens": shape.decode_pool,
        "context": shape.context,
        "page_size": shape.page_size,
        "sentence": SENTENCE,
        "secret": SECRET,
        "asks": {
            "control": ask_of(&story.scenario.control),
            "fill": ask_of(&story.scenario.fill),
            "over": story.scenario.over.iter().map(ask_of).collect::<Vec<_>>(),
        },
        "none": outcome_of(&story.none),
        "alone": alone.collect::<Vec<_>>(),
        "all_but_start": outcome_of(&story.all),
    })
}

fn ask_of(ask: &Ask) -> Value {
    json!({"path": ask.path, "tokens": ask.tokens, "body": ask.body})
}

fn outcome_of(outcome: &Outcome) -> Value {
    let (sentence, secret) = outcome.leaked();
    json!({
        "stops_it": Verdict::of(outcome) != Verdict::Leaks,
        "refused_to_start": outcome.refused,
        "asked": outcome.over.len(),
        "leaked_sentence": sentence,
        "leaked_secret": secret,
        "control": outcome.control.as_ref().map(answer_of),
        "fill": outcome.fill.as_ref().map(answer_of),
        "over": outcome.over.iter().map(answer_of).collect::<Vec<_>>(),
        "pool": outcome.footprint.as_ref().map(pool_of),
        "steps": outcome.moments.iter().map(step_of).collect::<Vec<_>>(),
    })
}

fn answer_of(answer: &Answer) -> Value {
    let leak = match answer.leak() {
        Leak::None => Value::Null,
        Leak::Secret => json!("secret"),
        Leak::Sentence => json!("sentence"),
    };
    json!({
        "status": answer.status,
        "code": answer.error.as_ref().map(|(code, _)| code),
        "message": answer.error.as_ref().map(|(_, message)| message),
        "text": answer.text,
        "prompt_tokens": answer.prompt_tokens,
        "completion_tokens": answer.completion_tokens,
        "leak": leak,
    })
}

fn pool_of(found: &Footprint) -> Value {
    json!({
        "reserved_pages": found.reserved,
        "prompt_tokens": found.count,
        "attended": found.attended().map(|it| {
            json!({"written_for_b": it.of_b, "written_for_a": it.of_a, "never_written": it.of_nobody})
        }),
    })
}

fn step_of(moment: &Moment) -> Value {
    json!({
        "who": moment.who,
        "what": moment.what,
        "safeguard": moment.guard.map(|(guard, _)| guard.id()),
        "on": moment.guard.map(|(_, on)| on),
    })
}
