//! `cofferdam affected`: whose text it may have been.
//!
//! `watch` says who **received** something that was not computed from their prompt. What was in the
//! pages of such an answer had been left there by whoever had them before. [`owners`] reads what the
//! workers wrote down about that, [`joined`] puts both together, and says what is not known.

pub mod args;
mod joined;
mod owners;
mod received;
mod report;
mod requests;

pub use joined::{Source, Victim, join};
pub use owners::Owners;
pub use received::Received;
pub use requests::Requests;

use crate::exit::{Exit, Failure};
use crate::files;
use args::{Affected, Format};

/// Runs it; the exit code is what was found.
pub(crate) fn run(args: &Affected) -> Result<Exit, Failure> {
    let received =
        Received::read(args.received.as_deref(), &args.request).map_err(Failure::usage)?;
    let owners = Owners::read(&args.owners).map_err(Failure::usage)?;
    let requests = Requests::read(&args.log).map_err(Failure::usage)?;
    let victims = join(&received, &owners, &requests);
    let text = match args.format {
        Format::Table => report::table(&received, &owners, &victims),
        Format::Json => report::json(&received, &owners, &victims),
    };
    files::say(&text)?;
    Ok(exit(&received, &victims))
}

/// Somebody else's text may have been received; it cannot be told; nobody's.
pub(crate) fn exit(received: &Received, victims: &[Victim]) -> Exit {
    if victims.iter().any(|it| it.others().next().is_some()) {
        return Exit::Found;
    }
    let unknown = victims.iter().any(|it| !it.unknown.is_empty());
    match unknown || received.could_not_tell.is_some() {
        true => Exit::Unreachable,
        false => Exit::Good,
    }
}
