//! Tokenizer and chat template of a GGUF; incremental detokenization and stop strings.
