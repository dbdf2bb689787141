//! GGUF reader: metadata, tensors, dequantization.
