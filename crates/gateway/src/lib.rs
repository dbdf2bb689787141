//! OpenAI-compatible gateway.
