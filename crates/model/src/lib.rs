//! Llama-architecture transformer on verified pages, and sampling.
