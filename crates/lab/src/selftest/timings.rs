//! Times to the first token of D-01's engine, for `cofferdam watch`: of prompts that fit, which it
//! computes, and of longer ones, whose prefill it skips.

use super::{ask_all, budget, cases::ALL, endpoints, start_as};
use crate::reproduce::stack::Shape;
use anyhow::Context;
use probe::suites::PromptLengths;
use probe::{Budget, ProbeRun, Question, Tenant};
use serde_json::json;
use std::io::Write;
use std::path::Path;

/// One prompt in so many is over the limit.
const OVER: u64 = 5;
/// Tokens of prefill's pool, the edge: long enough that a prefill takes many times what else does.
const EDGE: u32 = 1024;
/// Tokens of decode's pool and of the context that is advertised.
const CONTEXT: u32 = 1536;

/// Asks for so many, one after the other, and writes a line for each: tokens, milliseconds, and
/// whether it was over the limit.
pub(super) fn write(model: &Path, file: &Path, requests: u64) -> anyhow::Result<()> {
    let shape = Shape {
        page_size: 16,
        prefill_pool: EDGE,
        context: CONTEXT,
        decode_pool: CONTEXT.into(),
    };
    let stack = start_as(model, &ALL[0], shape)?;
    let budget = Budget {
        requests: u64::MAX,
        at_once: 1,
        ..budget()
    };
    let run = ProbeRun::new(endpoints(&stack)?, [99; 32], budget);
    let mut out = std::fs::File::create(file).context("the file of times")?;
    ask_all(async {
        let (tenant, suite, limit) = (Tenant(0), "timings", u64::from(EDGE));
        let lengths = PromptLengths::measure(&run, suite, tenant).await?;
        let base = lengths.base(&run, suite, tenant, limit).await?;
        for n in 0..requests {
            let over = n % OVER == OVER - 1;
            let mut ask = match over {
                // Up to what decode's pool holds, and an answer.
                true => {
                    let room = u64::from(CONTEXT - EDGE) - 8;
                    base.with(limit + 1 + n * 37 % room, 1, tenant)
                }
                // Evenly in the logarithm, 16 to the limit.
                false => {
                    let share = (n * 193 % 997) as f64 / 997.0;
                    let tokens = 16.0 * (limit as f64 / 16.0).powf(share);
                    Question::new(Tenant((n % 2) as u8), lengths.sentences(tokens as u64))
                }
            };
            (ask.max_tokens, ask.stream) = (1, true);
            let answer = run.ask(suite, ask).await?;
            let reply = answer.reply.as_ref().ok();
            let first = reply
                .filter(|it| it.status == 200)
                .and_then(|it| it.first_byte);
            let (Some(first), Some(tokens)) = (first, answer.prompt_tokens()) else {
                continue; // busy, or refused after all
            };
            let ms = first.as_secs_f64() * 1e3;
            writeln!(out, "{}", json!({"tokens": tokens, "ms": ms, "over": over}))?;
        }
        anyhow::Ok(())
    })??;
    // With D-01 inside it may notice something on its way down: that is not the question here.
    let _ = stack.end();
    Ok(())
}
