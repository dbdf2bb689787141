//! Every so often a worker checks its block tables without trusting any earlier check.

use crate::edge::Pair;
use crate::{endless, prompt, spec};
use handoff::gateway::Outcome;
use handoff::{Failure, Fault};
use pages::TableFault;
use testkit::{SmallSpec, small_gguf};

/// A ledger whose check before a step looks at nothing that was there before, and where whatever is
/// looked at is wrong.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
enum Looks {
    AtAll,
    Nowhere,
}

impl pages::Decisions for Looks {
    fn looks_again(self, _: bool) -> bool {
        self == Self::AtAll
    }

    fn entry_verdict(self, found: Result<(), TableFault>) -> Result<(), TableFault> {
        match self {
            Self::AtAll => found,
            Self::Nowhere => Err(TableFault::OtherOwner),
        }
    }
}

impl handoff::Decisions for Looks {}

/// More steps, and more chunks, than there are between two audits.
#[test]
fn h1_what_the_check_before_a_step_does_not_see_an_audit_finds() {
    for (of_prefill, of_decode) in [
        (Looks::Nowhere, Looks::AtAll),
        (Looks::AtAll, Looks::Nowhere),
    ] {
        let dir = tempfile::tempdir().unwrap();
        let model = small_gguf(dir.path(), SmallSpec::default());
        let chunk = |shape: &mut crate::edge::Shape| shape.prefill.chunk = 1;
        let mut pair = Pair::start_by(of_prefill, of_decode, dir, model, chunk);
        let mut edge = pair.edge(1);
        edge.ready(&crate::probe());
        let answer = edge.ask(spec(1, prompt(1, 100), 100, 1, &endless()));
        let stopped = Outcome::Failed(Failure::Integrity(Fault::FailStop));
        assert_eq!(
            answer.outcome,
            Some(stopped),
            "{of_prefill:?} {of_decode:?}"
        );
        let (prefill, decode) = (pair.prefill.end(), pair.decode.end());
        let ends = (prefill.is_ok(), decode.is_ok());
        let sound = (of_prefill == Looks::AtAll, of_decode == Looks::AtAll);
        assert_eq!(ends, sound, "{prefill:?} {decode:?}");
    }
}
