//! Which vector instructions this processor has. Found out once; a value of [`Isa`] is the proof.

use std::fmt;
use std::sync::OnceLock;

#[cfg(target_arch = "aarch64")]
use super::simd::Neon;
#[cfg(target_arch = "x86_64")]
use super::simd::{Avx2, Avx512};

/// An instruction set that this processor has.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Isa(pub(super) Kind);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Portable,
    #[cfg(target_arch = "x86_64")]
    Avx2(Avx2),
    #[cfg(target_arch = "x86_64")]
    Avx512(Avx512),
    #[cfg(target_arch = "aarch64")]
    Neon(Neon),
}

impl Isa {
    /// The fastest that this processor has.
    pub fn best() -> Self {
        static BEST: OnceLock<Isa> = OnceLock::new();
        *BEST.get_or_init(|| *Self::available().last().unwrap_or(&Self(Kind::Portable)))
    }

    /// Every one that this processor has, the fastest last.
    pub fn available() -> Vec<Self> {
        #[allow(unused_mut, reason = "other architectures have nothing to add")]
        let mut found = vec![Self(Kind::Portable)];
        #[cfg(target_arch = "x86_64")]
        {
            found.extend(Avx2::detect().map(|token| Self(Kind::Avx2(token))));
            found.extend(Avx512::detect().map(|token| Self(Kind::Avx512(token))));
        }
        #[cfg(target_arch = "aarch64")]
        found.extend(Neon::detect().map(|token| Self(Kind::Neon(token))));
        found
    }

    /// Whether products of bytes are quicker than decoding: there must be an instruction for them.
    pub(super) const fn multiplies_bytes(self) -> bool {
        !matches!(self.0, Kind::Portable)
    }

    /// Rows up to which affine codes of four bits are better multiplied as bytes, for each row anew, than decoded once
    /// for all. Measured, but for NEON's.
    pub(super) const fn few_nibbles(self) -> usize {
        match self.0 {
            Kind::Portable => 0,
            #[cfg(target_arch = "x86_64")]
            Kind::Avx2(_) => 3,
            #[cfg(target_arch = "x86_64")]
            Kind::Avx512(_) => 6,
            #[cfg(target_arch = "aarch64")]
            Kind::Neon(_) => 4,
        }
    }

    /// For messages.
    pub const fn name(self) -> &'static str {
        match self.0 {
            Kind::Portable => "portable",
            #[cfg(target_arch = "x86_64")]
            Kind::Avx2(_) => "avx2",
            #[cfg(target_arch = "x86_64")]
            Kind::Avx512(_) => "avx512-vnni",
            #[cfg(target_arch = "aarch64")]
            Kind::Neon(_) => "neon-dotprod",
        }
    }
}

impl fmt::Debug for Isa {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}
