//! Clients leave at some moment of prefill, transfer or decode; others follow at once and get the
//! pages that have just become free, or should not have.

use super::{Known, Stopped};
use crate::ask::Question;
use crate::client::Leave;
use crate::run::ProbeRun;
use futures::future::join;
use std::time::Duration;

const NAME: &str = "abort";
/// Pairs of one who leaves and one who follows.
const PAIRS: usize = 24;
/// Sentences of the prompt that is left.
const LONG: usize = 48;
/// Tokens of the answer that is left.
const LEFT: u32 = 64;

pub(super) async fn run(run: &ProbeRun, known: &Known) -> Result<(), Stopped> {
    let tenants = run.tenants();
    let (a, b) = (tenants[0], tenants[tenants.len() - 1]);
    // How long an answer takes here decides when leaving hits something.
    let mut ask = Question::new(a, known.sentences(LONG, LEFT));
    ask.stream = true;
    let answer = run.ask(NAME, ask.clone()).await?;
    let (first, total) = match &answer.reply {
        Ok(reply) if reply.status == 200 => (reply.first_byte.unwrap_or(reply.total), reply.total),
        _ => {
            let status = answer.status().unwrap_or(0);
            let why = format!("a prompt of {LONG} sentences is not answered (status {status})");
            return Err(Stopped::Needs(why));
        }
    };
    for n in 0..PAIRS {
        let mut leaves = ask.clone();
        leaves.max_tokens = LEFT;
        leaves.leave = match n % 4 {
            3 => Leave::AtFirstByte,
            // From the very beginning to after the last token, evenly.
            _ => Leave::After(moment(first, total, n)),
        };
        let mut follows = Question::new(b, 3 + n % 7);
        follows.max_tokens = 32;
        run.ask(NAME, leaves).await?;
        let mut detailed = follows.clone();
        detailed.details = n % 2 == 1;
        let (one, two) = join(run.ask(NAME, follows), run.ask(NAME, detailed)).await;
        one?;
        two?;
    }
    Ok(())
}

/// The n-th of [`PAIRS`] moments between the request and the end of its answer.
fn moment(first: Duration, total: Duration, n: usize) -> Duration {
    // Half of them before the first token: that is prefill and transfer.
    let half = PAIRS / 2;
    let share = |n: usize| (n as f64 + 0.5) / half as f64;
    match n < half {
        true => first.mul_f64(share(n)),
        false => first + total.saturating_sub(first).mul_f64(share(n - half)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn moments_go_from_the_beginning_to_the_end() {
        let (first, total) = (Duration::from_secs(12), Duration::from_secs(24));
        let moments: Vec<_> = (0..PAIRS).map(|n| moment(first, total, n)).collect();
        assert!(moments.is_sorted());
        assert!(moments[0] < Duration::from_secs(1));
        assert!(moments[PAIRS / 2 - 1] < first && moments[PAIRS / 2] > first);
        assert!(*moments.last().unwrap() > Duration::from_secs(23));
    }
}
