//! What running servers say about themselves, every figure with its source.
#![forbid(unsafe_code)]
