//! Plain arrays: for processors without the other instruction sets, and the twin of `neon`: as many lanes, the same
//! signed products in the same order, so that what is shown of one on any machine holds for the other.

use half::{bf16, f16};

use super::{DOUBLED, Simd};
use crate::weights::nvfp4::E4M3;

/// Needs no proof.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in super::super) struct Portable;

impl Simd for Portable {
    const LANES: usize = 4;
    const OFFSET: i32 = 0;
    const MOST_ROWS: usize = 2;
    type Floats = [f32; 4];
    type Ints = [i32; 4];
    type Bytes = [u8; 16];

    #[inline(always)]
    fn zero(self) -> [f32; 4] {
        [0.0; 4]
    }

    #[inline(always)]
    fn splat(self, value: f32) -> [f32; 4] {
        [value; 4]
    }

    #[inline(always)]
    unsafe fn load(self, from: *const f32) -> [f32; 4] {
        // SAFETY: as promised.
        unsafe { from.cast::<[f32; 4]>().read_unaligned() }
    }

    #[inline(always)]
    unsafe fn store(self, to: *mut f32, value: [f32; 4]) {
        // SAFETY: as promised.
        unsafe { to.cast::<[f32; 4]>().write_unaligned(value) }
    }

    #[inline(always)]
    unsafe fn load_bf16(self, from: *const u8) -> [f32; 4] {
        // SAFETY: as promised.
        let raw = unsafe { from.cast::<[[u8; 2]; 4]>().read_unaligned() };
        raw.map(|two| bf16::from_le_bytes(two).to_f32())
    }

    #[inline(always)]
    unsafe fn load_f16(self, from: *const u8) -> [f32; 4] {
        // SAFETY: as promised.
        let raw = unsafe { from.cast::<[[u8; 2]; 4]>().read_unaligned() };
        raw.map(|two| f16::from_le_bytes(two).to_f32())
    }

    #[inline(always)]
    fn mul(self, a: [f32; 4], b: [f32; 4]) -> [f32; 4] {
        std::array::from_fn(|n| a[n] * b[n])
    }

    #[inline(always)]
    fn div(self, a: [f32; 4], b: [f32; 4]) -> [f32; 4] {
        std::array::from_fn(|n| a[n] / b[n])
    }

    #[inline(always)]
    fn fma(self, a: [f32; 4], b: [f32; 4], c: [f32; 4]) -> [f32; 4] {
        // Not `mul_add`, which is a call to a library where there is no instruction.
        std::array::from_fn(|n| a[n] * b[n] + c[n])
    }

    #[inline(always)]
    fn at_least(self, a: [f32; 4], low: [f32; 4]) -> [f32; 4] {
        std::array::from_fn(|n| if a[n] < low[n] { low[n] } else { a[n] })
    }

    #[inline(always)]
    fn most(self, a: [f32; 4]) -> f32 {
        a[0].max(a[1]).max(a[2].max(a[3]))
    }

    #[inline(always)]
    fn round(self, a: [f32; 4]) -> [f32; 4] {
        a.map(f32::round_ties_even)
    }

    #[inline(always)]
    fn scale_by_power(self, a: [f32; 4], n: [f32; 4]) -> [f32; 4] {
        // NaN counts as 0 in integers, and stays NaN in `a`, which was made of it.
        std::array::from_fn(|i| a[i] * f32::from_bits(((n[i] as i32 + 127) << 23) as u32))
    }

    #[inline(always)]
    fn sum(self, a: [f32; 4]) -> f32 {
        (a[0] + a[1]) + (a[2] + a[3])
    }

    #[inline(always)]
    fn four_sums(self, vectors: [[f32; 4]; 4]) -> [f32; 4] {
        vectors.map(|vector| self.sum(vector))
    }

    #[inline(always)]
    unsafe fn load_ints(self, from: *const u8) -> [i32; 4] {
        // SAFETY: as promised.
        let raw = unsafe { from.cast::<[[u8; 4]; 4]>().read_unaligned() };
        raw.map(i32::from_le_bytes)
    }

    #[inline(always)]
    fn zero_ints(self) -> [i32; 4] {
        [0; 4]
    }

    #[inline(always)]
    fn e2m1(self, codes: [i32; 4]) -> ([i32; 4], [i32; 4]) {
        let look_up = |shift: u32| {
            codes.map(|word| {
                let bytes = word.to_le_bytes().map(|byte| DOUBLED[usize::from(byte >> shift & 15)] as u8);
                i32::from_le_bytes(bytes)
            })
        };
        (look_up(0), look_up(4))
    }

    #[inline(always)]
    fn nibble_pairs(self, codes: [i32; 4]) -> ([i32; 4], [i32; 4]) {
        (codes.map(|word| word & 0x0f0f_0f0f), codes.map(|word| word >> 4 & 0x0f0f_0f0f))
    }

    #[inline(always)]
    fn dot8(self, sum: [i32; 4], weights: ([i32; 4], [i32; 4]), even: [i32; 4], odd: [i32; 4]) -> [i32; 4] {
        let dot4 = |a: i32, b: i32| -> i32 {
            let pairs = a.to_le_bytes().into_iter().zip(b.to_le_bytes());
            pairs.map(|(a, b)| i32::from(a as i8) * i32::from(b as i8)).sum()
        };
        std::array::from_fn(|n| sum[n] + dot4(weights.0[n], even[n]) + dot4(weights.1[n], odd[n]))
    }

    #[inline(always)]
    fn shift_add(self, high: [i32; 4], low: [i32; 4]) -> [i32; 4] {
        std::array::from_fn(|n| (high[n] << 8).wrapping_add(low[n]))
    }

    #[inline(always)]
    fn to_floats(self, a: [i32; 4]) -> [f32; 4] {
        a.map(|a| a as f32)
    }

    #[inline(always)]
    unsafe fn e4m3_pairs(self, from: *const u8) -> [f32; 4] {
        // SAFETY: as promised.
        let two = unsafe { from.cast::<[u8; 2]>().read_unaligned() };
        let [a, b] = two.map(|byte| E4M3[usize::from(byte)] / 256.0);
        [a, a, b, b]
    }

    #[inline(always)]
    unsafe fn spread_f32<const COUNT: usize>(self, from: *const u8) -> [f32; 4] {
        // A vector has 32 codes, so that COUNT is 1.
        // SAFETY: as promised.
        [f32::from_le_bytes(unsafe { from.cast::<[u8; 4]>().read_unaligned() }); 4]
    }

    #[inline(always)]
    unsafe fn spread_f16<const COUNT: usize>(self, from: *const u8) -> [f32; 4] {
        // SAFETY: as promised.
        [f16::from_le_bytes(unsafe { from.cast::<[u8; 2]>().read_unaligned() }).to_f32(); 4]
    }

    #[inline(always)]
    unsafe fn spread_bf16<const COUNT: usize>(self, from: *const u8) -> [f32; 4] {
        // SAFETY: as promised.
        [bf16::from_le_bytes(unsafe { from.cast::<[u8; 2]>().read_unaligned() }).to_f32(); 4]
    }

    #[inline(always)]
    fn prefetch(self, _: *const u8) {}

    #[inline(always)]
    unsafe fn nibbles(self, from: *const u8) -> [u8; 16] {
        // SAFETY: as promised.
        let pairs = unsafe { from.cast::<[u8; 8]>().read_unaligned() };
        std::array::from_fn(|n| pairs[n / 2] >> (4 * (n % 2)) & 15)
    }

    #[inline(always)]
    unsafe fn load_bytes(self, from: *const u8) -> [u8; 16] {
        // SAFETY: as promised.
        unsafe { from.cast::<[u8; 16]>().read_unaligned() }
    }

    #[inline(always)]
    fn widen(self, bytes: [u8; 16], part: usize) -> [f32; 4] {
        std::array::from_fn(|n| f32::from(bytes[4 * part + n]))
    }

    #[inline(always)]
    fn e2m1_bytes(self, codes: [u8; 16]) -> [u8; 16] {
        codes.map(|code| DOUBLED[usize::from(code & 15)] as u8)
    }

    #[inline(always)]
    unsafe fn scale_bytes<const SIGNED: bool>(self, bytes: [u8; 16], scale: f32, bias: f32, to: *mut f32) {
        let floats = bytes.map(|byte| {
            let value = if SIGNED { f32::from(byte as i8) } else { f32::from(byte) };
            value * scale + bias
        });
        // SAFETY: as promised.
        unsafe { to.cast::<[f32; 16]>().write_unaligned(floats) }
    }
}
