//! The three machines, each driven directly: what it is told goes in, what it answers is asserted
//! by content. Nothing stands in for a machine; where two are needed both are the shipped ones.
//!
//! One binary, because the machines are small and linking is not.

mod credits;
mod decisions;
mod decode_edges;
mod decode_rig;
mod direct;
mod fences;
mod gateway;
mod gateway_edge;
mod gateway_rig;
mod integrity;
mod limits;
mod lives;
mod order;
mod prefill;
mod prefill_between;
mod prefill_edges;
mod prefill_peers;
mod prefill_rig;
mod prefill_writes;
mod ranks;
mod refusals;
mod rig;
mod sync;
