//! What a run counts.

use crate::ask::{ProbeAnswer, TELLING, is_busy};
use crate::canary::Tenant;
use crate::client::NoReply;
use crate::finding::Kind;
use std::collections::{BTreeMap, BTreeSet};

/// Errors of a server. To be busy is none.
pub(crate) fn is_server_error(status: u16) -> bool {
    status >= 500 && !is_busy(status)
}

/// Counts of a run.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RunCounts {
    /// Requests sent.
    pub requests: u64,
    /// Complete answers with 200.
    pub answered: u64,
    /// Of these, for each tenant, those long enough to show a canary, and those that showed their
    /// own: the positive control.
    pub telling: BTreeMap<Tenant, Telling>,
    /// Tokens, as answers count them.
    pub tokens: u64,
    /// Answers by status.
    pub by_status: BTreeMap<u16, u64>,
    /// Of these, errors of the server (5xx) with which it refused what a sound one refuses.
    pub refusals: u64,
    /// Requests whose client left, as it was told to.
    pub left: u64,
    /// Requests without an answer in time.
    pub hung: u64,
    /// Requests that met a closed or broken connection.
    pub broken: u64,
    /// What the first of them met.
    pub trouble: Option<String>,
    /// Suites that did not end because the budget did.
    pub cut_short: BTreeSet<String>,
    /// Findings by kind and suite, those that were not kept too.
    pub findings: BTreeMap<(Kind, &'static str), u64>,
}

/// Answers that could have shown a canary.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Telling {
    /// All of them.
    pub answers: u64,
    /// With at least five consecutive words of their own.
    pub own: u64,
}

impl RunCounts {
    /// Counts an answer of this tenant's.
    pub(crate) fn take(&mut self, tenant: Tenant, answer: &ProbeAnswer) {
        match &answer.reply {
            Ok(reply) => {
                let status = reply.worth();
                *self.by_status.entry(status).or_default() += 1;
                self.refusals += u64::from(answer.refused && is_server_error(status));
                let said = &reply.said;
                self.tokens +=
                    said.prompt_tokens.unwrap_or(0) + said.completion_tokens.unwrap_or(0);
            }
            Err(NoReply::Left) => self.left += 1,
            Err(NoReply::Hang(_)) => self.hung += 1,
            Err(NoReply::Trouble(_)) => self.broken += 1,
        }
        if answer.text().is_none() {
            return;
        }
        self.answered += 1;
        if answer.max_tokens >= TELLING && !answer.refused {
            let telling = self.telling.entry(tenant).or_default();
            telling.answers += 1;
            telling.own += u64::from(answer.copies());
        }
    }

    /// Answers that were errors of the server and no refusals that were wanted.
    pub fn server_errors(&self) -> u64 {
        let all = self.by_status.iter();
        let failed = all.filter(|(status, _)| is_server_error(**status));
        failed.map(|(_, n)| n).sum::<u64>() - self.refusals
    }

    /// Of all tenants together.
    pub fn telling(&self) -> Telling {
        let all = self.telling.values();
        all.fold(Telling::default(), |sum, it| Telling {
            answers: sum.answers + it.answers,
            own: sum.own + it.own,
        })
    }
}
