//! Which instruction set runs, and the proof that the CPU has it.

use std::fmt;

#[cfg(target_arch = "x86_64")]
use crate::lanes::{Avx2, Avx512};
use crate::lanes::{Lanes, Portable};

/// An instruction set that the kernels are written for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Isa {
    /// AVX-512 F/BW/DQ/VL with VNNI (`vpdpbusd`), FMA and F16C.
    Avx512Vnni,
    /// AVX2 with FMA and F16C.
    Avx2,
    /// Plain Rust; no multiply-add is fused. Runs anywhere.
    Portable,
}

/// The environment variable that [`Isa::from_env`] reads.
const ENV: &str = "COFFERDAM_ISA";

impl Isa {
    /// All instruction sets, fastest first.
    pub const ALL: [Isa; 3] = [Isa::Avx512Vnni, Isa::Avx2, Isa::Portable];

    /// The fastest instruction set of this CPU.
    pub fn detect() -> Isa {
        Self::ALL
            .into_iter()
            .find(|isa| isa.is_available())
            .unwrap_or(Isa::Portable)
    }

    /// What `COFFERDAM_ISA` (`avx512`, `avx2`, `portable`) asks for, or else [`Isa::detect`].
    /// A name that is unknown, or a set that this CPU lacks, is an error: silently running another
    /// one would make measurements lie.
    pub fn from_env() -> Result<Isa, UnsupportedIsa> {
        let Ok(name) = std::env::var(ENV) else {
            return Ok(Self::detect());
        };
        let isa = Self::ALL.into_iter().find(|isa| isa.name() == name);
        match isa {
            Some(isa) if isa.is_available() => Ok(isa),
            _ => Err(UnsupportedIsa { asked: name }),
        }
    }

    /// The name that [`Isa::from_env`] takes.
    pub fn name(self) -> &'static str {
        match self {
            Isa::Avx512Vnni => "avx512",
            Isa::Avx2 => "avx2",
            Isa::Portable => "portable",
        }
    }

    /// Whether this CPU (and its operating system) can run it.
    pub fn is_available(self) -> bool {
        match self {
            #[cfg(target_arch = "x86_64")]
            Isa::Avx512Vnni => {
                Isa::Avx2.is_available()
                    && is_x86_feature_detected!("avx512f")
                    && is_x86_feature_detected!("avx512bw")
                    && is_x86_feature_detected!("avx512dq")
                    && is_x86_feature_detected!("avx512vl")
                    && is_x86_feature_detected!("avx512vnni")
            }
            #[cfg(target_arch = "x86_64")]
            Isa::Avx2 => {
                is_x86_feature_detected!("avx2")
                    && is_x86_feature_detected!("fma")
                    && is_x86_feature_detected!("f16c")
            }
            #[cfg(not(target_arch = "x86_64"))]
            Isa::Avx512Vnni | Isa::Avx2 => false,
            Isa::Portable => true,
        }
    }
}

impl fmt::Display for Isa {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// The instruction set that was asked for is unknown or not available on this CPU.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnsupportedIsa {
    /// The name that was asked for.
    pub asked: String,
}

impl fmt::Display for UnsupportedIsa {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let have: Vec<_> = Isa::ALL
            .into_iter()
            .filter(|isa| isa.is_available())
            .map(Isa::name)
            .collect();
        write!(
            f,
            "instruction set {:?} is not available here; this CPU has: {} (set {ENV} to one of \
             these, or leave it unset)",
            self.asked,
            have.join(", ")
        )
    }
}

impl std::error::Error for UnsupportedIsa {}

/// The kernels for one instruction set. Holding a value proves that this CPU has it.
#[derive(Clone, Copy, Debug)]
pub struct Kernels {
    isa: Isa,
}

impl Kernels {
    /// The kernels for `isa`, refused if this CPU lacks it.
    pub fn new(isa: Isa) -> Result<Kernels, UnsupportedIsa> {
        if isa.is_available() {
            Ok(Kernels { isa })
        } else {
            Err(UnsupportedIsa {
                asked: isa.name().to_owned(),
            })
        }
    }

    /// The instruction set that these kernels use.
    pub fn isa(self) -> Isa {
        self.isa
    }

    /// Runs `op` compiled for this instruction set.
    pub(crate) fn run<O: Op>(self, op: O) -> O::Output {
        match self.isa {
            #[cfg(target_arch = "x86_64")]
            // SAFETY: a `Kernels` of this ISA exists only where `is_available` saw its features.
            Isa::Avx512Vnni => unsafe { run_avx512(op) },
            #[cfg(target_arch = "x86_64")]
            // SAFETY: as above.
            Isa::Avx2 => unsafe { run_avx2(op) },
            // SAFETY: `Portable` needs no features.
            _ => unsafe { op.run::<Portable>() },
        }
    }
}

/// An operation written once over [`Lanes`] and compiled for every instruction set.
pub(crate) trait Op {
    type Output;

    /// Implementations are `#[inline(always)]`, so that the body is compiled with the features of
    /// the function that calls it.
    ///
    /// # Safety
    /// The CPU has the features of `L`, and the implementor's own contract on its fields holds.
    unsafe fn run<L: Lanes>(self) -> Self::Output;
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx2,fma,f16c")]
unsafe fn run_avx512<O: Op>(op: O) -> O::Output {
    // SAFETY: the features of `Avx512` are those of this function.
    unsafe { op.run::<Avx512>() }
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn run_avx2<O: Op>(op: O) -> O::Output {
    // SAFETY: the features of `Avx2` are those of this function.
    unsafe { op.run::<Avx2>() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn detect_is_available_and_first() {
        let best = Isa::detect();
        assert!(best.is_available());
        let first = Isa::ALL.into_iter().find(|isa| Kernels::new(*isa).is_ok());
        assert_eq!(first, Some(best));
    }

    #[test]
    fn the_error_names_what_was_asked_and_what_is_there() {
        let text = UnsupportedIsa {
            asked: "sse9".into(),
        }
        .to_string();
        assert!(
            text.contains("\"sse9\"") && text.contains("portable"),
            "{text}"
        );
    }
}
