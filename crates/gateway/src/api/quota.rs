//! What a tenant may ask for in a minute.
//!
//! A bucket holds a minute's worth and fills evenly. A request takes one from the bucket of requests
//! when it comes, whatever becomes of it. From that of tokens it takes its prompt, and the answer's
//! maximum where the client has named one, before an engine hears of it; what it has used is known at
//! its end, and then the rest is given back or the excess taken. So a bucket can be in debt, and lets
//! nobody through until that is paid. A request that wants more than a minute's worth is let through by
//! a full bucket.

use std::collections::BTreeMap;
use std::num::NonZero;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use http::{HeaderMap, HeaderName, HeaderValue};

use crate::engine::{Code, Fault, TenantId};

/// So many in a minute.
pub type Rate = NonZero<u32>;

/// A tenant's limits; none: as much as it likes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Rates<R = Option<Rate>> {
    /// Generations that may begin.
    pub requests: R,
    /// Tokens of prompts and answers.
    pub tokens: R,
}

/// What a line of a key file says; none: nothing, `Some(None)`: no limit.
type Own = Rates<Option<Option<Rate>>>;

impl Own {
    /// Reads `rpm=N` and `tpm=N`, each at most once.
    pub(super) fn parse(words: &[&str]) -> Option<Self> {
        let mut own = Self::default();
        for word in words {
            let (name, value) = word.split_once('=')?;
            let value = match value {
                "none" => None,
                number => Some(number.parse().ok()?),
            };
            let place = match name {
                "rpm" => &mut own.requests,
                "tpm" => &mut own.tokens,
                _ => return None,
            };
            if place.replace(value).is_some() {
                return None;
            }
        }
        Some(own)
    }

    /// Both, unless they contradict each other.
    pub(super) fn with(self, other: Self) -> Option<Self> {
        let both = |a: Option<Option<Rate>>, b: Option<Option<Rate>>| match (a, b) {
            (Some(a), Some(b)) if a != b => None,
            _ => Some(a.or(b)),
        };
        Some(Self {
            requests: both(self.requests, other.requests)?,
            tokens: both(self.tokens, other.tokens)?,
        })
    }
}

/// Tenants that are remembered, and for how long the others are: names come and go with the key file.
const TENANTS_MAX: usize = 10_000;
const REMEMBERED: Duration = Duration::from_secs(3600);

/// The buckets of all tenants.
#[derive(Default)]
pub(super) struct Quotas(Mutex<BTreeMap<TenantId, Arc<Mutex<Buckets>>>>);

#[derive(Default)]
struct Buckets {
    requests: Bucket,
    tokens: Bucket,
}

/// How much of a minute's worth is gone; more than all of it is debt.
#[derive(Default)]
struct Bucket {
    gone: f64,
    at: Option<Instant>,
}

impl Bucket {
    /// What is there now.
    fn left(&mut self, rate: Rate, now: Instant) -> f64 {
        let rate = f64::from(rate.get());
        let since = self.at.replace(now).unwrap_or(now);
        let filled = now.saturating_duration_since(since).as_secs_f64() * rate / 60.0;
        self.gone = (self.gone - filled).max(0.0);
        rate - self.gone
    }

    /// Takes so many.
    ///
    /// # Errors
    /// For how long it has fewer.
    fn take(&mut self, wanted: u64, rate: Rate, now: Instant) -> Result<(), Duration> {
        let most = f64::from(rate.get());
        let lacking = (wanted as f64).min(most) - self.left(rate, now);
        // A thousandth is the rounding of times.
        if lacking > 1e-3 {
            return Err(Duration::from_secs_f64(lacking * 60.0 / most));
        }
        self.gone += wanted as f64;
        Ok(())
    }
}

/// A tenant that has limits, and what it has left.
#[derive(Clone)]
pub(super) struct Account {
    rates: Rates,
    buckets: Arc<Mutex<Buckets>>,
}

impl Quotas {
    /// The account of a tenant with these limits; none if it has none.
    pub(super) fn account(&self, tenant: &TenantId, rates: Rates) -> Option<Account> {
        if rates == Rates::default() {
            return None;
        }
        let mut tenants = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if tenants.len() >= TENANTS_MAX {
            let now = Instant::now();
            tenants.retain(|_, buckets| {
                let buckets = buckets.lock().unwrap_or_else(PoisonError::into_inner);
                let used = [&buckets.requests, &buckets.tokens].map(|bucket| bucket.at);
                let fresh = |at: Instant| now.saturating_duration_since(at) < REMEMBERED;
                used.into_iter().flatten().any(fresh)
            });
        }
        let buckets = tenants.entry(tenant.clone()).or_default().clone();
        Some(Account { rates, buckets })
    }
}

/// Why a request is not let through.
pub(super) struct Refused {
    /// Which limit it was, in logs and metrics.
    pub limit: &'static str,
    pub fault: Fault,
}

impl Account {
    /// A request has come.
    ///
    /// # Errors
    /// One too many.
    pub(super) fn request(&self) -> Result<(), Refused> {
        let Some(rate) = self.rates.requests else {
            return Ok(());
        };
        let taken = self.buckets().requests.take(1, rate, Instant::now());
        taken.map_err(|wait| {
            let message = format!("this tenant's limit is {rate} requests a minute");
            refused("requests", message, wait)
        })
    }

    /// Takes what a request may need, before an engine hears of it.
    ///
    /// # Errors
    /// There is less.
    pub(super) fn tokens(&self, wanted: u64) -> Result<Reserved, Refused> {
        if let Some(rate) = self.rates.tokens {
            let taken = self.buckets().tokens.take(wanted, rate, Instant::now());
            taken.map_err(|wait| {
                let message = format!(
                    "this tenant's limit is {rate} tokens a minute, and this request wants {wanted} \
                     (prompt and max_tokens)"
                );
                refused("tokens", message, wait)
            })?;
        }
        let account = self.clone();
        Ok(Reserved {
            account,
            taken: wanted,
        })
    }

    /// Says what is left, as OpenAI's clients read it.
    pub(super) fn sign(&self, headers: &mut HeaderMap) {
        let now = Instant::now();
        let mut buckets = self.buckets();
        let Buckets { requests, tokens } = &mut *buckets;
        let each = [
            ("requests", self.rates.requests, requests),
            ("tokens", self.rates.tokens, tokens),
        ];
        for (what, rate, bucket) in each {
            let Some(rate) = rate else { continue };
            let left = bucket.left(rate, now);
            let reset = Duration::from_secs_f64(bucket.gone * 60.0 / f64::from(rate.get()));
            let said = [
                ("limit", rate.to_string()),
                ("remaining", format!("{:.0}", left.max(0.0).floor())),
                ("reset", shown(reset)),
            ];
            for (name, value) in said {
                let name = HeaderName::try_from(format!("x-ratelimit-{name}-{what}"));
                let value = HeaderValue::try_from(value);
                if let (Ok(name), Ok(value)) = (name, value) {
                    headers.insert(name, value);
                }
            }
        }
    }

    fn buckets(&self) -> MutexGuard<'_, Buckets> {
        self.buckets.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn refused(limit: &'static str, message: String, wait: Duration) -> Refused {
    let message = format!("{message}; try again in {}", shown(wait));
    let fault = Fault::new(Code::RateLimitExceeded, message).retry_after(wait);
    Refused { limit, fault }
}

/// Tokens that were taken for a request under way.
pub(super) struct Reserved {
    account: Account,
    taken: u64,
}

impl Reserved {
    /// It has ended and used so many.
    pub(super) fn used(self, used: u64) {
        if let Some(rate) = self.account.rates.tokens {
            let mut buckets = self.account.buckets();
            // What has come back meanwhile is not given back a second time.
            buckets.tokens.left(rate, Instant::now());
            let gone = buckets.tokens.gone + used as f64 - self.taken as f64;
            buckets.tokens.gone = gone.max(0.0);
        }
    }
}

/// `1m4s`, `1.5s`, `20ms`: as OpenAI says it.
fn shown(time: Duration) -> String {
    let ms = time.as_millis();
    let (minutes, ms) = (ms / 60_000, ms % 60_000);
    let seconds = ms as f64 / 1000.0;
    match minutes {
        0 if ms < 1000 => format!("{ms}ms"),
        0 => format!("{seconds}s"),
        _ => format!("{minutes}m{seconds}s"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bucket_fills_evenly_and_pays_its_debt_first() {
        let rate = Rate::new(60).unwrap();
        let start = Instant::now();
        let at = |s: u64| start + Duration::from_secs(s);
        let mut bucket = Bucket::default();
        for _ in 0..60 {
            bucket.take(1, rate, at(0)).unwrap();
        }
        assert_eq!(bucket.take(1, rate, at(0)), Err(Duration::from_secs(1)));
        assert_eq!(bucket.take(5, rate, at(3)), Err(Duration::from_secs(2)));
        bucket.take(3, rate, at(3)).unwrap();
        bucket.gone += 30.0; // an answer was longer than what was taken for it
        assert_eq!(bucket.take(1, rate, at(3)), Err(Duration::from_secs(31)));
        // More than a minute's worth: when it is full, and then long nothing.
        assert!(bucket.take(120, rate, at(92)).is_err());
        bucket.take(120, rate, at(93)).unwrap();
        assert_eq!(bucket.take(1, rate, at(93)), Err(Duration::from_secs(61)));
        bucket.take(60, rate, at(1000)).unwrap();
        assert!(
            bucket.take(1, rate, at(1000)).is_err(),
            "never more than full"
        );
    }

    #[test]
    fn what_was_not_used_comes_back_and_what_was_used_besides_is_taken() {
        let rates = Rates {
            requests: None,
            tokens: Rate::new(1000),
        };
        let account = Quotas::default()
            .account(&TenantId::new("a"), rates)
            .unwrap();
        let left = || {
            account
                .buckets()
                .tokens
                .left(rates.tokens.unwrap(), Instant::now())
        };
        let near = |expected: f64| {
            let left = left();
            assert!(
                (expected..expected + 100.0).contains(&left),
                "{left} for {expected}"
            );
        };
        let (first, second) = (account.tokens(300).ok(), account.tokens(600).ok());
        near(100.0);
        assert!(account.tokens(300).is_err());
        first.unwrap().used(10);
        near(390.0);
        second.unwrap().used(1800);
        near(-810.0);
        let mut headers = HeaderMap::new();
        account.sign(&mut headers);
        assert_eq!(headers["x-ratelimit-remaining-tokens"], "0");
        assert_eq!(headers["x-ratelimit-limit-tokens"], "1000");
        assert!(headers.get("x-ratelimit-limit-requests").is_none());
    }

    #[test]
    fn times_read_as_clients_know_them() {
        let shown = |ms| shown(Duration::from_millis(ms));
        assert_eq!(
            [0, 20, 1500, 60_000, 86_400].map(shown),
            ["0ms", "20ms", "1.5s", "1m0s", "1m26.4s"]
        );
    }
}
