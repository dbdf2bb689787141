//! SIMD kernels: quantized matrix products and attention primitives, with run-time dispatch.
