//! Prefill and decode workers: scheduler, control connections, sampling loop.

pub mod memory;
