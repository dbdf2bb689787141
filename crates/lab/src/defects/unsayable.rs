//! What this design makes unsayable: defects that real systems had and that, written here, do not
//! compile. Each of these is a test that it does not.
//!
//! **Releasing without a proof** (the other way to write D-04, D-05, D-19 and D-26). A page with
//! open writers becomes free by a value that only the holder of the mint can make; there is no
//! `release_anyway`.
//!
//! ```compile_fail,E0451
//! fn timed_out(pool: &mut pages::Pool, writer: pages::WriterLife) {
//!     let scope = pages::ProofScope::Life;
//!     pool.writer_gone(pages::WriterGone { writer, scope });
//! }
//! ```
//!
//! **A second use of a grant** (D-16, page references that a retry takes along). A grant is given
//! back once; there is no copy to give back again, or to write with afterwards.
//!
//! ```compile_fail,E0382
//! fn retry(pool: &mut pages::Pool, grant: pages::Grant) {
//!     let _ = pool.release(grant);
//!     let _ = pool.release(grant);
//! }
//! ```
//!
//! **One proof for two pools or two writers** (D-07 at the level of proofs). A proof is consumed by
//! whoever is released on the strength of it.
//!
//! ```compile_fail,E0382
//! fn both(first: &mut pages::Pool, second: &mut pages::Pool, proof: pages::WriterGone) {
//!     first.writer_gone(proof);
//!     second.writer_gone(proof);
//! }
//! ```
//!
//! **Changing the ledger under a step** (D-25 inside one process). While the verified tables live
//! nothing can be released.
//!
//! ```compile_fail,E0502
//! fn under_a_step(pool: &mut pages::Pool, grant: pages::Grant) {
//!     let verified = pool.verify(Vec::new()).unwrap();
//!     let _ = pool.release(grant);
//!     assert!(verified.sequences().is_empty());
//! }
//! ```
//!
//! **Attention over tables that nobody verified** (D-03 at its very end). There is no way to a
//! `Verified` but through the check.
//!
//! ```compile_fail
//! fn unchecked(pool: &pages::Pool) -> pages::Verified<'_> {
//!     pages::Verified { sequences: Vec::new(), page_size: pool.page_size() }
//! }
//! ```
//!
//! **An answer on prefill's status** (D-15). What lets a token reach a client is made by decode's
//! commit alone, inside the gateway's machine.
//!
//! ```compile_fail,E0423
//! fn status_is_200() -> handoff::gateway::PrefillJudged {
//!     handoff::gateway::PrefillJudged(())
//! }
//! ```
//!
//! **A tag that somebody else gave** (D-10 for pages). What a peer or a client says is a
//! `StatedTag`, which can be compared and nothing else.
//!
//! ```compile_fail,E0423
//! fn from_a_client(said: u64) -> pages::Tag {
//!     pages::Tag(std::num::NonZeroU64::new(said).unwrap())
//! }
//! ```
//!
//! **D-24 in its own words**, a stale endpoint that writes into the *next life* of decode, cannot be
//! said either: prefill keeps its endpoints under the epoch of the life that they belong to, and an
//! arena's name contains that epoch. What is left of it, an endpoint that outlives its arena inside
//! one life, is the row in the table.
