//! What `/metrics` says of canaries, doors, incidents and their journal.

use super::{OnCall, locked};
use gateway::api::figures::{Figures, Gauged, Labels};
use oncall::SignalKind;

/// Doors that have a series of their own.
const DOORS_MAX: usize = 200;

impl Figures for OnCall {
    fn figures(&self) -> Vec<Gauged> {
        let mut figures = Vec::from(self.of_incidents());
        figures.extend(self.of_journal());
        if self.settings.canaries {
            figures.extend(self.of_canaries());
        }
        figures
    }
}

impl OnCall {
    fn of_incidents(&self) -> [Gauged; 3] {
        let duty = self.duty();
        let book = duty.book();
        let open = book
            .incidents()
            .iter()
            .filter(|it| it.closed.is_none())
            .count();
        let door = |(scope, it): (&oncall::Scope, &oncall::Restriction)| {
            let access = it.access.as_str().to_owned();
            (vec![("scope", scope.to_string()), ("access", access)], 1)
        };
        let doors = book.restrictions().take(DOORS_MAX).map(door).collect();
        drop(duty);
        let seen = locked(&self.seen);
        let signal = |kind: SignalKind| {
            let count = seen.signals.get(&kind).copied().unwrap_or(0);
            (vec![("signal", kind.as_str().to_owned())], count)
        };
        [
            one(
                "incidents_open",
                "Incidents that nobody has closed",
                open as u64,
            ),
            Gauged {
                name: "restricted",
                help: "What is not open to everybody, and how far it is",
                grows: false,
                samples: doors,
            },
            Gauged {
                name: "signals",
                help: "Signals that this process has found or heard of",
                grows: true,
                samples: SignalKind::ALL.into_iter().map(signal).collect(),
            },
        ]
    }

    fn of_journal(&self) -> [Gauged; 3] {
        let status = self.recorder.status();
        let help = "Whether the journal of incidents cannot be written";
        [
            one(
                "journal_in_trouble",
                help,
                u64::from(status.trouble.is_some()),
            ),
            one(
                "journal_entries_pending",
                "Entries that are not on disk yet",
                status.pending,
            ),
            Gauged {
                name: "journal_lost",
                help: "Entries, and requests of which it is not known who answered them, that were lost",
                grows: true,
                samples: vec![
                    (labels("of", "entries"), status.lost),
                    (labels("of", "requests"), status.served_lost),
                ],
            },
        ]
    }

    fn of_canaries(&self) -> [Gauged; 4] {
        let minute = oncall::times::now() / 60_000;
        let counted = locked(&self.canaried);
        let total = counted.total;
        let help = "Canaries: requests sent, answers that could have shown one, those that showed their own, \
                    findings";
        let series = [
            ("sent", total.sent),
            ("telling", total.telling),
            ("own", total.seen),
            ("found", total.found),
        ];
        let power = [("hour", 60), ("day", 24 * 60)].map(|(window, minutes)| {
            let sums = counted.all.since(minute.saturating_sub(minutes - 1));
            (labels("window", window), sums.one_in().unwrap_or(0))
        });
        let help_power = "A leak in more than one of so many answers would have been seen with 95 %; 0: none \
                          would";
        [
            Gauged {
                name: "canaries",
                help,
                grows: true,
                samples: series.map(|(of, count)| (labels("of", of), count)).into(),
            },
            Gauged {
                name: "canary_tokens",
                help: "Tokens that canaries have taken",
                grows: true,
                samples: vec![(vec![], total.tokens)],
            },
            Gauged {
                name: "canaries_exclude_one_in",
                help: help_power,
                grows: false,
                samples: power.into(),
            },
            one(
                "canaries_paused",
                "Whether no canaries are sent now",
                u64::from(counted.paused.is_some()),
            ),
        ]
    }
}

fn labels(name: &'static str, value: &str) -> Labels {
    vec![(name, value.to_owned())]
}

fn one(name: &'static str, help: &'static str, value: u64) -> Gauged {
    Gauged {
        name,
        help,
        grows: false,
        samples: vec![(vec![], value)],
    }
}
