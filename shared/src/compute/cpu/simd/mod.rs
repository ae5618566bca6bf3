//! Vectors, as the kernels use them: one trait, and one file for each instruction set.
//!
//! The implementing types are tokens: a value exists only where the processor was found to have the instructions
//! (`detect`), so using one needs no further proof. `for_isa!` compiles a kernel once for each of them.

#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx512;
#[cfg(target_arch = "aarch64")]
mod neon;
mod portable;

#[cfg(target_arch = "x86_64")]
pub(super) use avx2::Avx2;
#[cfg(target_arch = "x86_64")]
pub(super) use avx512::Avx512;
#[cfg(target_arch = "aarch64")]
pub(super) use neon::Neon;
pub(super) use portable::Portable;

use super::rows::PARTS;

/// Operations on vectors of `LANES` f32, or of as many i32, or of four times as many bytes.
pub(super) trait Simd: Copy {
    /// Elements of a vector of f32: 4, 8 or 16.
    const LANES: usize;

    /// What [`Simd::e2m1`] adds to twice a weight: 12 where a product needs one unsigned side, else 0.
    const OFFSET: i32;

    /// Rows of activations whose products with [`super::panel::TILE`] rows of weights fit the registers.
    const MOST_ROWS: usize;

    /// f32 vector.
    type Floats: Copy;

    /// Vector of i32, or of bytes.
    type Ints: Copy;

    /// Sixteen bytes.
    type Bytes: Copy;

    /// All zero.
    fn zero(self) -> Self::Floats;

    /// All the same.
    fn splat(self, value: f32) -> Self::Floats;

    /// # Safety
    /// `LANES` f32 can be read at `from`.
    unsafe fn load(self, from: *const f32) -> Self::Floats;

    /// # Safety
    /// `LANES` f32 can be written at `to`.
    unsafe fn store(self, to: *mut f32, value: Self::Floats);

    /// `LANES` bfloat16, little-endian.
    ///
    /// # Safety
    /// They can be read at `from`.
    unsafe fn load_bf16(self, from: *const u8) -> Self::Floats;

    /// `LANES` IEEE halves, little-endian.
    ///
    /// # Safety
    /// They can be read at `from`.
    unsafe fn load_f16(self, from: *const u8) -> Self::Floats;

    /// `LANES` f32 at any address, little-endian.
    ///
    /// # Safety
    /// They can be read at `from`.
    #[inline(always)]
    unsafe fn load_f32(self, from: *const u8) -> Self::Floats {
        // SAFETY: as promised; `load` asks for no alignment.
        unsafe { self.load(from.cast()) }
    }

    /// `a · b`.
    fn mul(self, a: Self::Floats, b: Self::Floats) -> Self::Floats;

    /// `a / b`.
    fn div(self, a: Self::Floats, b: Self::Floats) -> Self::Floats;

    /// `a · b + c`, rounded once (but by [`Portable`], twice).
    fn fma(self, a: Self::Floats, b: Self::Floats, c: Self::Floats) -> Self::Floats;

    /// The larger of both, and NaN where `a` is NaN; any of them where only `low` is.
    fn at_least(self, a: Self::Floats, low: Self::Floats) -> Self::Floats;

    /// The largest element; any, if one is NaN.
    fn most(self, a: Self::Floats) -> f32;

    /// The nearest integer.
    fn round(self, a: Self::Floats) -> Self::Floats;

    /// `a · 2ⁿ` for integers n from -124 to 124 and a from 0.5 to 2; NaN if `a` is, whatever n.
    fn scale_by_power(self, a: Self::Floats, n: Self::Floats) -> Self::Floats;

    /// The sum of all elements, always in the same order.
    fn sum(self, a: Self::Floats) -> f32;

    /// [`sum`](Self::sum) of four vectors, to the bit.
    fn four_sums(self, vectors: [Self::Floats; 4]) -> [f32; 4];

    /// [`sum`](Self::sum) of each vector, to the bit.
    #[inline(always)]
    fn sums<const COUNT: usize>(self, vectors: [Self::Floats; COUNT]) -> [f32; COUNT] {
        let mut sums = [0.0; COUNT];
        let (fours, rest) = vectors.as_chunks::<4>();
        let (four_sums, rest_sums) = sums.as_chunks_mut::<4>();
        for (sums, four) in four_sums.iter_mut().zip(fours) {
            *sums = self.four_sums(*four);
        }
        for (sum, vector) in rest_sums.iter_mut().zip(rest) {
            *sum = self.sum(*vector);
        }
        sums
    }

    /// # Safety
    /// `4 · LANES` bytes can be read at `from`.
    unsafe fn load_ints(self, from: *const u8) -> Self::Ints;

    /// All zero.
    fn zero_ints(self) -> Self::Ints;

    /// Sixteen rows of sixteen f32, transposed; rows lie `from_stride` and `to_stride` elements apart.
    ///
    /// # Safety
    /// All of them can be read and written, and do not overlap.
    #[inline(always)]
    unsafe fn transpose(self, from: *const f32, from_stride: usize, to: *mut f32, to_stride: usize) {
        for row in 0..16 {
            for column in 0..16 {
                // SAFETY: as promised.
                unsafe { *to.add(column * to_stride + row) = *from.add(row * from_stride + column) };
            }
        }
    }

    /// E2M1 codes, two a byte: twice the weights, plus `OFFSET`, of the low nibbles and of the high ones; as bytes.
    fn e2m1(self, codes: Self::Ints) -> (Self::Ints, Self::Ints);

    /// Codes of four bits, two a byte: the low nibbles and the high ones, as bytes.
    fn nibble_pairs(self, codes: Self::Ints) -> (Self::Ints, Self::Ints);

    /// In each i32: `sum` plus the products of its four bytes of `low` with those of `even`, and of `high` with `odd`.
    fn dot8(
        self,
        sum: Self::Ints,
        weights: (Self::Ints, Self::Ints),
        even: Self::Ints,
        odd: Self::Ints,
    ) -> Self::Ints;

    /// `256 · high + low`, modulo 2³².
    fn shift_add(self, high: Self::Ints, low: Self::Ints) -> Self::Ints;

    /// i32 to f32.
    fn to_floats(self, a: Self::Ints) -> Self::Floats;

    /// `LANES / 2` E4M3 scales from 0 to 0x7e, each twice in a row; 2⁻⁸ of their values.
    ///
    /// # Safety
    /// `LANES / 2` bytes can be read at `from`.
    unsafe fn e4m3_pairs(self, from: *const u8) -> Self::Floats;

    /// `COUNT` f32, little-endian, each `LANES / COUNT` times in a row. `COUNT` is 1 with any number of lanes, 2 with
    /// eight or sixteen, 4 with sixteen: as many groups of at least 32 codes as a vector of codes has.
    ///
    /// # Safety
    /// They can be read at `from`.
    unsafe fn spread_f32<const COUNT: usize>(self, from: *const u8) -> Self::Floats;

    /// As [`Simd::spread_f32`], of IEEE halves.
    ///
    /// # Safety
    /// They can be read at `from`.
    unsafe fn spread_f16<const COUNT: usize>(self, from: *const u8) -> Self::Floats;

    /// As [`Simd::spread_f32`], of bfloat16.
    ///
    /// # Safety
    /// They can be read at `from`.
    unsafe fn spread_bf16<const COUNT: usize>(self, from: *const u8) -> Self::Floats;

    /// Asks for the cache line at `at`, which may be any address.
    fn prefetch(self, at: *const u8);

    /// Sixteen 4-bit codes in order, low nibble first, as bytes.
    ///
    /// # Safety
    /// Eight bytes can be read at `from`.
    unsafe fn nibbles(self, from: *const u8) -> Self::Bytes;

    /// # Safety
    /// Sixteen bytes can be read at `from`.
    unsafe fn load_bytes(self, from: *const u8) -> Self::Bytes;

    /// The `part`th vector of sixteen unsigned bytes.
    fn widen(self, bytes: Self::Bytes, part: usize) -> Self::Floats;

    /// Twice the E2M1 weight of each code (0..16), signed.
    fn e2m1_bytes(self, codes: Self::Bytes) -> Self::Bytes;

    /// The largest magnitude; NaN if there is one.
    #[inline(always)]
    fn largest(self, x: &[f32; 16]) -> f32 {
        // As integers, whose maximum may be taken in any order, so in vectors; NaN is above infinity.
        let mut largest = 0;
        for x in x {
            largest = largest.max(x.to_bits() & !(1 << 31));
        }
        f32::from_bits(largest)
    }

    /// `x · inverse`, rounded to integers q and taken apart: `(high · 256 + middle) · 256 + low`, signed bytes all.
    /// Gives the bytes, low first, of even elements and of odd ones; and Σ q of both halves.
    ///
    /// # Safety
    /// No |x · inverse| is above 8,355,001, or NaN.
    #[inline(always)]
    unsafe fn split(self, x: &[f32; 16], inverse: f32) -> ([[[u8; 8]; 2]; PARTS], [i32; 2]) {
        // Simple loops, one after the other, become a few vectors each. (Closures would not: they are compiled without
        // the instruction set.)
        let mut q = [0_i32; 16];
        for n in 0..16 {
            // SAFETY: as promised.
            q[n] = unsafe { (x[n] * inverse).round_ties_even().to_int_unchecked() };
        }
        let mut sums = [0; 2];
        for n in 0..8 {
            sums[0] += q[n];
            sums[1] += q[8 + n];
        }
        let mut planes = [[[0; 8]; 2]; PARTS];
        for plane in &mut planes {
            let mut low = [0_i32; 16];
            for n in 0..16 {
                low[n] = q[n] << 24 >> 24;
                q[n] = (q[n] - low[n]) >> 8;
            }
            for n in 0..8 {
                plane[0][n] = low[2 * n] as u8;
                plane[1][n] = low[2 * n + 1] as u8;
            }
        }
        (planes, sums)
    }

    /// Decodes four groups of sixteen E2M1 codes: half of twice the weights, times their scales.
    ///
    /// # Safety
    /// 32 bytes can be read at `codes`, and 64 f32 written at `to`.
    #[inline(always)]
    unsafe fn decode_groups(self, codes: *const u8, half_scales: [f32; 4], to: *mut f32) {
        for (n, half) in half_scales.into_iter().enumerate() {
            // SAFETY: as promised.
            unsafe {
                let weights = self.e2m1_bytes(self.nibbles(codes.add(8 * n)));
                self.scale_bytes::<true>(weights, half, 0.0, to.add(16 * n));
            }
        }
    }

    /// Writes `byte · scale + bias` for each of sixteen bytes, taken as signed or unsigned.
    ///
    /// # Safety
    /// Sixteen f32 can be written at `to`.
    unsafe fn scale_bytes<const SIGNED: bool>(self, bytes: Self::Bytes, scale: f32, bias: f32, to: *mut f32);
}

/// Twice the value of each E2M1 code.
pub(super) const DOUBLED: [i8; 16] = [0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12];

/// [`DOUBLED`], plus 12.
#[cfg(target_arch = "x86_64")]
pub(super) const UNSIGNED: [u8; 16] = {
    let mut table = [0; 16];
    let mut code = 0;
    while code < 16 {
        table[code] = (DOUBLED[code] + 12) as u8;
        code += 1;
    }
    table
};

/// Defines `fn name(isa, …)`, which runs the generic `kernel(token, …)` compiled for that instruction set.
macro_rules! for_isa {
    ($(#[$doc:meta])* fn $name:ident($($arg:ident: $ty:ty),* $(,)?) = $kernel:path) => {
        $(#[$doc])*
        #[allow(clippy::too_many_arguments)]
        pub(super) fn $name(isa: $crate::compute::cpu::Isa, $($arg: $ty),*) {
            use $crate::compute::cpu::{isa::Kind, simd};

            #[cfg(target_arch = "x86_64")]
            #[target_feature(enable = "avx,avx2,fma,f16c")]
            fn avx2(token: simd::Avx2, $($arg: $ty),*) {
                $kernel(token, $($arg),*);
            }

            #[cfg(target_arch = "x86_64")]
            #[target_feature(enable = "avx,avx2,fma,f16c,avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx512vbmi")]
            fn avx512(token: simd::Avx512, $($arg: $ty),*) {
                $kernel(token, $($arg),*);
            }

            #[cfg(target_arch = "aarch64")]
            #[target_feature(enable = "neon,dotprod")]
            fn neon(token: simd::Neon, $($arg: $ty),*) {
                $kernel(token, $($arg),*);
            }

            match isa.0 {
                Kind::Portable => $kernel(simd::Portable, $($arg),*),
                #[cfg(target_arch = "x86_64")]
                // SAFETY: the token proves these features.
                Kind::Avx2(token) => unsafe { avx2(token, $($arg),*) },
                #[cfg(target_arch = "x86_64")]
                // SAFETY: the token proves these features.
                Kind::Avx512(token) => unsafe { avx512(token, $($arg),*) },
                #[cfg(target_arch = "aarch64")]
                // SAFETY: the token proves these features.
                Kind::Neon(token) => unsafe { neon(token, $($arg),*) },
            }
        }
    };
}
pub(super) use for_isa;

/// An expression of intrinsics, in a method of a token.
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
macro_rules! vectors {
    ($($body:tt)*) => {{
        // SAFETY: the token `self` exists only where the processor has these instructions; what the pointers must allow
        // is what the method asks of its caller.
        #[allow(unused_unsafe, reason = "some of these are safe where the features are known at compile time")]
        unsafe { $($body)* }
    }};
}
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
use vectors;

#[cfg(test)]
mod tests {
    use super::super::Isa;
    use super::*;

    for_isa! {
        fn sums(from: &[f32; 16 * 7], sums: &mut [f32; 7], each: &mut [f32; 7]) = sums_with
    }

    #[inline(always)]
    fn sums_with<S: Simd>(s: S, from: &[f32; 16 * 7], sums: &mut [f32; 7], each: &mut [f32; 7]) {
        // SAFETY: sixteen elements each, and no vector has more.
        let vectors = std::array::from_fn(|n| unsafe { s.load(from[16 * n..].as_ptr()) });
        *sums = s.sums(vectors);
        *each = vectors.map(|vector| s.sum(vector));
        for (n, sum) in each.iter().enumerate() {
            let exact: f64 = from[16 * n..][..S::LANES].iter().map(|x| f64::from(*x)).sum();
            assert!((f64::from(*sum) - exact).abs() < 1e-4, "{sum} {exact}");
        }
    }

    #[test]
    fn several_sums_have_the_bits_of_each() {
        let mut from = [0.0; 16 * 7];
        for (n, value) in from.iter_mut().enumerate() {
            *value = ((n * 7919 % 1009) as f32 - 500.0) * 0.0137;
        }
        for isa in Isa::available() {
            let (mut together, mut each) = ([0.0; 7], [0.0; 7]);
            sums(isa, &from, &mut together, &mut each);
            assert_eq!(together.map(f32::to_bits), each.map(f32::to_bits), "{}", isa.name());
        }
    }
}
