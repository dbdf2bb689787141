//! The HTTP half. See `docs/api.md` for what it speaks and `docs/errors.md` for how it refuses.

pub mod errors;
