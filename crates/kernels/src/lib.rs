//! SIMD kernels of the engine: matrix products over packed weights, attention over paged f16 K/V,
//! and the element-wise steps between them.
//!
//! This is the only crate of the engine that contains `unsafe` code. Its public API is safe: every
//! entry point checks the lengths that its loops rely on, and [`Kernels`] can be built only for an
//! instruction set that this CPU has.
//!
//! # Batch invariance
//! Every floating-point reduction has an order that is a function of the row alone. There are three
//! of them, and they are the same for every instruction set:
//!
//! * **matrix product**: one output element lives in one lane and sums over the columns from first
//!   to last (f32: in blocks of [`F32_BLOCK`] columns, then over the blocks; int8: exact integers
//!   inside half a block of 32, then over the blocks). How many rows or tokens share a register tile
//!   cannot show.
//! * **attention**: a score is one lane's sum over even and odd dimensions; the maximum is exact;
//!   the sum of exponentials runs in 16 lanes by *absolute position modulo 16* and ends in a fixed
//!   tree; values are added in order of absolute position. Page size, chunk size and neighbours
//!   cannot show.
//! * **RMS norm**: 16 lanes by column modulo 16 and the same fixed tree.
//!
//! Results differ *between* instruction sets (fused or separate multiply-add), never within one.

// The tiles index several arrays by the same small constant; iterators would hide that.
#![allow(clippy::needless_range_loop)]

#[cfg(target_endian = "big")]
compile_error!("packed weights and pages are little-endian in memory and on the wire");

mod arena;
mod attention;
mod elementwise;
mod isa;
mod lanes;
mod layout;
mod matmul;
mod matrix;
mod quantize;

pub use arena::{Arena, Element, OutOfMemory, Piece};
pub use attention::{AttendPart, AttendScratch, Attended, Attention};
pub use elementwise::{decode_f16, encode_f16};
pub use isa::{Isa, Kernels, UnsupportedIsa};
pub use matmul::Target;
pub use matrix::{BLOCK, F32_BLOCK, GROUP, Matrix, PackedF32, PackedInt8};
pub use quantize::{Int8Rows, Rows};
