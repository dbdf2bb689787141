//! Which worlds a command is about.

use anyhow::bail;
use checker::bound::Bound;
use checker::scenario::{ALL, Mode, Scenario, Setup};

/// A world at a bound in a mode.
pub(super) struct Chosen {
    pub scenario: &'static Scenario,
    pub mode: Mode,
    pub setup: Setup,
}

impl Chosen {
    /// `world/mode`.
    pub fn name(&self) -> String {
        format!("{}/{}", self.scenario.name, self.mode)
    }
}

/// The worlds of a bound with one of these names (all, if none is given) in this mode (both, if
/// none is given).
pub(super) fn chosen(
    bound: Bound,
    names: &[String],
    mode: Option<&str>,
) -> anyhow::Result<Vec<Chosen>> {
    let modes = match mode {
        None => vec![Mode::Landing, Mode::Direct],
        Some(name) => vec![parse(name)?],
    };
    for name in names {
        if Scenario::named(name).is_none() {
            bail!("no world is called {name:?}; see --list");
        }
    }
    let mut chosen = Vec::new();
    for mode in modes {
        for scenario in ALL {
            let named = names.is_empty() || names.iter().any(|name| name == scenario.name);
            if let Some(setup) = scenario.setup(bound, mode).filter(|_| named) {
                chosen.push(Chosen {
                    scenario,
                    mode,
                    setup,
                });
            }
        }
    }
    Ok(chosen)
}

fn parse(mode: &str) -> anyhow::Result<Mode> {
    let modes = [Mode::Landing, Mode::Direct];
    let known = modes.into_iter().find(|known| known.to_string() == mode);
    known.ok_or_else(|| anyhow::anyhow!("no mode is called {mode:?}: landing or direct"))
}
