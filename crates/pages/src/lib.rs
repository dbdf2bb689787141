//! Page ledger: pool, grants, tags, seals, quarantine, verified block tables. No I/O, no clock, no randomness.
