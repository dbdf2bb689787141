//! Judgements about a fleet: is it safe to promote?
#![forbid(unsafe_code)]
