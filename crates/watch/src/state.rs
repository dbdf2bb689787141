//! What was learned, on disk.

use crate::series::Series;
use crate::settings::Settings;
use crate::watching::{Detector, Key};
use serde::{Deserialize, Serialize};

/// Of the format: a state of another version is not read.
const VERSION: u32 = 1;
/// A state file larger than this is not read, in bytes: more than all series that are kept take.
pub const STATE_MAX: u64 = 2 << 30;

#[derive(Serialize, Deserialize)]
struct Saved {
    version: u32,
    /// Bins of another accuracy cannot be merged with ours.
    series: Vec<(Key, Series)>,
}

/// Why a state was not read. To begin anew is the operator's decision: it means to learn again.
#[derive(Debug, thiserror::Error)]
pub enum StateError {
    /// It is damaged, or no state at all.
    #[error("not a state of watch: {0}; remove the file to learn anew")]
    Damaged(#[from] serde_json::Error),
    /// It was written by another version.
    #[error("a state of format {got}, this version reads {VERSION}; remove the file to learn anew")]
    Version {
        /// Its format.
        got: u32,
    },
}

impl Detector {
    /// Everything that was learned.
    pub fn save(&self) -> String {
        let series = self.series.iter();
        let saved = Saved {
            version: VERSION,
            series: series.map(|(key, it)| (key.clone(), it.clone())).collect(),
        };
        serde_json::to_string(&saved).expect("numbers, names and lists")
    }

    /// Goes on where [`Detector::save`] was called.
    ///
    /// # Errors
    /// See [`StateError`].
    pub fn restore(settings: Settings, text: &str) -> Result<Self, StateError> {
        #[derive(Deserialize)]
        struct Version {
            version: u32,
        }
        let Version { version } = serde_json::from_str(text)?;
        if version != VERSION {
            return Err(StateError::Version { got: version });
        }
        let saved: Saved = serde_json::from_str(text)?;
        let mut watch = Self::new(settings);
        watch.series = saved.series.into_iter().collect();
        Ok(watch)
    }
}
