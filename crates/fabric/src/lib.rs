//! How bytes reach a landing arena: one trait, one conformance suite, shared memory.
