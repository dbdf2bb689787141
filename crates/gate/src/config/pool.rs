//! The `[[pool]]` entries: where size and largest request of a shared pool stand.

use super::{Access, Factor, Secret};
use crate::shared_pool::{AMOUNT_MAX, Attestation};
use serde::Deserialize;
use serde::de::{Deserializer, Error as _};

/// One shared pool of any service.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PoolEntry {
    /// In reports.
    pub name: String,
    /// What it is counted in.
    pub unit: String,
    /// How much more than the largest request it must hold [default: 1.25].
    pub headroom: Option<Factor>,
    /// How much it holds.
    pub size: AmountEntry,
    /// The largest request that is accepted.
    pub largest: AmountEntry,
    /// What no endpoint reports.
    #[serde(default)]
    pub attested: AttestedEntry,
}

/// Two questions that somebody answers in person.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct AttestedEntry {
    /// Whether a rejected request ends before it allocates.
    pub reject_ends_first: Option<Attestation>,
    /// Whether the receiver compares what arrived with what was reserved.
    pub receiver_compares: Option<Attestation>,
}

/// Where a figure of a pool stands.
#[derive(Clone, Debug, PartialEq)]
pub enum AmountEntry {
    /// A field of a JSON answer: `data[0].slots`.
    Json {
        /// What is asked.
        url: String,
        /// The field.
        field: String,
        /// How it is asked.
        access: Box<Access>,
    },
    /// A metric, with labels if there are several: `pool_slots{pool="a"}`.
    Metric {
        /// What is asked.
        url: String,
        /// The metric.
        metric: String,
        /// How it is asked.
        access: Box<Access>,
    },
    /// A number in a log: `pool holds {} slots`; the last such line counts.
    Log {
        /// The file.
        file: String,
        /// With `{}` where the number stands.
        pattern: String,
    },
    /// Nobody measured it: somebody answers for it.
    Constant {
        /// The figure.
        value: u64,
        /// Who says so.
        by: Attestation,
    },
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
struct RawAmount {
    url: Option<String>,
    json: Option<String>,
    metric: Option<String>,
    key: Option<Secret>,
    ca: Option<String>,
    cert: Option<String>,
    cert_key: Option<String>,
    log: Option<String>,
    pattern: Option<String>,
    constant: Option<u64>,
    owner: Option<String>,
    date: Option<crate::date::Date>,
    expires: Option<crate::date::Date>,
}

impl<'de> Deserialize<'de> for AmountEntry {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<AmountEntry, D::Error> {
        RawAmount::deserialize(from)?
            .checked()
            .map_err(D::Error::custom)
    }
}

impl RawAmount {
    fn checked(self) -> Result<AmountEntry, &'static str> {
        let access = Box::new(Access {
            key: self.key,
            ca: self.ca,
            cert: self.cert,
            cert_key: self.cert_key,
        });
        let asked = access != Box::default();
        let by = (self.owner, self.date, self.expires);
        match (
            self.url,
            self.json,
            self.metric,
            self.log,
            self.pattern,
            self.constant,
            by,
        ) {
            (Some(url), Some(field), None, None, None, None, (None, None, None)) => {
                Ok(AmountEntry::Json { url, field, access })
            }
            (Some(url), None, Some(metric), None, None, None, (None, None, None)) => {
                Ok(AmountEntry::Metric {
                    url,
                    metric,
                    access,
                })
            }
            (None, None, None, Some(file), Some(pattern), None, (None, None, None)) if !asked => {
                match pattern.matches("{}").count() == 1 {
                    true => Ok(AmountEntry::Log { file, pattern }),
                    false => Err("`pattern` has `{}` once, where the number stands"),
                }
            }
            (None, None, None, None, None, Some(value), (Some(owner), Some(date), expires))
                if !asked =>
            {
                let by = Attestation {
                    answer: true,
                    owner,
                    date,
                    expires,
                };
                match (1..=AMOUNT_MAX).contains(&value) {
                    true => Ok(AmountEntry::Constant { value, by }),
                    false => Err("`constant` is from 1 to 2^60"),
                }
            }
            _ => Err(
                "is one of: url and json; url and metric; log and pattern; constant, owner and \
                 date (somebody answers for a figure that is not measured)",
            ),
        }
    }
}
