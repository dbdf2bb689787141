//! Test helpers: a small random GGUF with the real tokenizer, real processes.
