//! Which worlds a command is about.

use crate::bound::Bound;
use crate::defects::{self, Defect};
use crate::pinned;
use crate::scenario::{ALL, Mode, Scenario, Setup};
use anyhow::bail;

/// A world at a bound in a mode.
pub(super) struct Chosen {
    pub name: String,
    pub about: &'static str,
    pub mode: Mode,
    pub setup: Setup,
    /// Situations that it is there to show.
    pub sees: Vec<&'static str>,
}

/// What the names of worlds begin with in which defects are shown; they have no bound.
const OF_DEFECTS: &str = "defects/";
/// Names that are suggested where none is right.
const NEAREST: usize = 3;

impl Chosen {
    /// `world/mode`.
    pub(super) fn name(&self) -> String {
        format!("{}/{}", self.name, self.mode)
    }

    /// Its name among what is pinned; those of the defects are not.
    pub(super) fn pinned_as(&self, bound: Bound) -> Option<String> {
        let pinned = !self.name.starts_with(OF_DEFECTS);
        pinned.then(|| pinned::key(bound, self.mode, &self.name))
    }

    fn of(scenario: &'static Scenario, bound: Bound, mode: Mode) -> Option<Self> {
        Some(Self {
            name: scenario.name.to_owned(),
            about: scenario.about,
            mode,
            setup: scenario.setup(bound, mode)?,
            sees: scenario.must_see(mode).collect(),
        })
    }

    fn of_defects(world: &'static defects::worlds::World, mode: Mode) -> Self {
        Self {
            name: format!("{OF_DEFECTS}{}", world.name),
            about: world.about,
            mode,
            setup: world.setup(mode),
            sees: Vec::new(),
        }
    }
}

/// The worlds of a bound with one of these names (all, if none is given) in this mode (both, if
/// none is given). A world of the defects is there if it is named.
pub(super) fn chosen(
    bound: Bound,
    names: &[String],
    mode: Option<&str>,
) -> anyhow::Result<Vec<Chosen>> {
    let modes = match mode {
        None => vec![Mode::Landing, Mode::Direct],
        Some(name) => vec![parse(name)?],
    };
    let of_defects = |name: &str| {
        let name = name.strip_prefix(OF_DEFECTS)?;
        defects::worlds::ALL.iter().find(|world| world.name == name)
    };
    for name in names {
        if Scenario::named(name).is_none() && of_defects(name).is_none() {
            let worlds = ALL.iter().map(|it| it.name.to_owned());
            let others = defects::worlds::ALL.iter();
            let others = others.map(|it| format!("{OF_DEFECTS}{}", it.name));
            let mut names: Vec<_> = worlds.chain(others).collect();
            let count = names.len();
            let alike = |other: &str| strsim::jaro_winkler(name, other);
            names.sort_by(|a, b| alike(b).total_cmp(&alike(a)));
            names.truncate(NEAREST);
            bail!(
                "no world is called {name:?}; of {count} the nearest are {} (see --list)",
                names.join(", ")
            );
        }
    }
    let mut chosen = Vec::new();
    for mode in modes {
        for scenario in ALL {
            let named = names.is_empty() || names.iter().any(|name| name == scenario.name);
            chosen.extend(Chosen::of(scenario, bound, mode).filter(|_| named));
        }
        let named = names.iter().filter_map(|name| of_defects(name));
        chosen.extend(named.map(|world| Chosen::of_defects(world, mode)));
    }
    Ok(chosen)
}

/// The world in which a defect is known to show.
pub(super) fn shown_in(defect: &Defect) -> Chosen {
    let world = defects::worlds::World::named(defect.shown_in);
    Chosen::of_defects(world, defect.mode)
}

fn parse(mode: &str) -> anyhow::Result<Mode> {
    let modes = [Mode::Landing, Mode::Direct];
    let known = modes.into_iter().find(|known| known.to_string() == mode);
    known.ok_or_else(|| anyhow::anyhow!("no mode is called {mode:?}: landing or direct"))
}
