//! NEON with the dot product instructions (FEAT_DotProd): every Apple M, and Arm servers since the Neoverse N1.
//!
//! `portable` is this file's twin, operation by operation; what is tested of it elsewhere is what happens here.

use std::arch::aarch64::*;
use std::arch::{asm, is_aarch64_feature_detected};

use super::{DOUBLED, Simd, vectors};

/// Proof of neon and dotprod.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in super::super) struct Neon(());

impl Neon {
    pub(in super::super) fn detect() -> Option<Self> {
        (is_aarch64_feature_detected!("neon") && is_aarch64_feature_detected!("dotprod")).then_some(Self(()))
    }
}

impl Simd for Neon {
    const LANES: usize = 4;
    const OFFSET: i32 = 0;
    const MOST_ROWS: usize = 6;
    type Floats = float32x4_t;
    type Ints = int32x4_t;
    type Bytes = uint8x16_t;

    #[inline(always)]
    fn zero(self) -> float32x4_t {
        vectors!(vdupq_n_f32(0.0))
    }

    #[inline(always)]
    fn splat(self, value: f32) -> float32x4_t {
        vectors!(vdupq_n_f32(value))
    }

    #[inline(always)]
    unsafe fn load(self, from: *const f32) -> float32x4_t {
        vectors!(vld1q_f32(from))
    }

    #[inline(always)]
    unsafe fn store(self, to: *mut f32, value: float32x4_t) {
        vectors!(vst1q_f32(to, value));
    }

    #[inline(always)]
    unsafe fn load_bf16(self, from: *const u8) -> float32x4_t {
        vectors!(vreinterpretq_f32_u32(vshll_n_u16::<16>(vreinterpret_u16_u8(vld1_u8(from)))))
    }

    #[inline(always)]
    unsafe fn load_f16(self, from: *const u8) -> float32x4_t {
        halves(vectors!(vreinterpret_u16_u8(vld1_u8(from))))
    }

    #[inline(always)]
    fn mul(self, a: float32x4_t, b: float32x4_t) -> float32x4_t {
        vectors!(vmulq_f32(a, b))
    }

    #[inline(always)]
    fn div(self, a: float32x4_t, b: float32x4_t) -> float32x4_t {
        vectors!(vdivq_f32(a, b))
    }

    #[inline(always)]
    fn fma(self, a: float32x4_t, b: float32x4_t, c: float32x4_t) -> float32x4_t {
        vectors!(vfmaq_f32(c, a, b))
    }

    #[inline(always)]
    fn at_least(self, a: float32x4_t, low: float32x4_t) -> float32x4_t {
        vectors!(vmaxq_f32(a, low))
    }

    #[inline(always)]
    fn most(self, a: float32x4_t) -> f32 {
        vectors!(vmaxvq_f32(a))
    }

    #[inline(always)]
    fn round(self, a: float32x4_t) -> float32x4_t {
        vectors!(vrndnq_f32(a))
    }

    #[inline(always)]
    fn scale_by_power(self, a: float32x4_t, n: float32x4_t) -> float32x4_t {
        // NaN counts as 0 in integers, and stays NaN in `a`, which was made of it.
        vectors! {
            let exponent = vshlq_n_s32::<23>(vcvtq_s32_f32(n));
            vmulq_f32(a, vreinterpretq_f32_s32(vaddq_s32(exponent, vdupq_n_s32(127 << 23))))
        }
    }

    #[inline(always)]
    fn sum(self, a: float32x4_t) -> f32 {
        vectors!(vaddvq_f32(a))
    }

    #[inline(always)]
    fn four_sums(self, [a, b, c, d]: [float32x4_t; 4]) -> [f32; 4] {
        vectors! {
            let mut out = [0.0; 4];
            vst1q_f32(out.as_mut_ptr(), vpaddq_f32(vpaddq_f32(a, b), vpaddq_f32(c, d)));
            out
        }
    }

    #[inline(always)]
    unsafe fn load_ints(self, from: *const u8) -> int32x4_t {
        vectors!(vreinterpretq_s32_u8(vld1q_u8(from)))
    }

    #[inline(always)]
    fn zero_ints(self) -> int32x4_t {
        vectors!(vdupq_n_s32(0))
    }

    #[inline(always)]
    fn e2m1(self, codes: int32x4_t) -> (int32x4_t, int32x4_t) {
        vectors! {
            let (table, codes) = (vld1q_s8(DOUBLED.as_ptr()), vreinterpretq_u8_s32(codes));
            let low = vqtbl1q_s8(table, vandq_u8(codes, vdupq_n_u8(15)));
            let high = vqtbl1q_s8(table, vshrq_n_u8::<4>(codes));
            (vreinterpretq_s32_s8(low), vreinterpretq_s32_s8(high))
        }
    }

    #[inline(always)]
    fn nibble_pairs(self, codes: int32x4_t) -> (int32x4_t, int32x4_t) {
        vectors! {
            let codes = vreinterpretq_u8_s32(codes);
            let (low, high) = (vandq_u8(codes, vdupq_n_u8(15)), vshrq_n_u8::<4>(codes));
            (vreinterpretq_s32_u8(low), vreinterpretq_s32_u8(high))
        }
    }

    #[inline(always)]
    fn dot8(
        self,
        sum: int32x4_t,
        weights: (int32x4_t, int32x4_t),
        even: int32x4_t,
        odd: int32x4_t,
    ) -> int32x4_t {
        dot4(dot4(sum, weights.0, even), weights.1, odd)
    }

    #[inline(always)]
    fn shift_add(self, high: int32x4_t, low: int32x4_t) -> int32x4_t {
        vectors!(vaddq_s32(vshlq_n_s32::<8>(high), low))
    }

    #[inline(always)]
    fn to_floats(self, a: int32x4_t) -> float32x4_t {
        vectors!(vcvtq_f32_s32(a))
    }

    #[inline(always)]
    unsafe fn e4m3_pairs(self, from: *const u8) -> float32x4_t {
        // A byte shifted by 7 is an f16 of 2⁻⁸ of its value, subnormals included.
        halves(vectors! {
            let [a, b] = from.cast::<[u8; 2]>().read_unaligned().map(|byte| u64::from(byte) << 7);
            vcreate_u16(a | a << 16 | b << 32 | b << 48)
        })
    }

    #[inline(always)]
    unsafe fn spread_f32<const COUNT: usize>(self, from: *const u8) -> float32x4_t {
        // A vector has 32 codes, so that COUNT is 1.
        vectors!(vdupq_n_f32(from.cast::<f32>().read_unaligned()))
    }

    #[inline(always)]
    unsafe fn spread_f16<const COUNT: usize>(self, from: *const u8) -> float32x4_t {
        halves(vectors!(vdup_n_u16(from.cast::<u16>().read_unaligned())))
    }

    #[inline(always)]
    unsafe fn spread_bf16<const COUNT: usize>(self, from: *const u8) -> float32x4_t {
        vectors! {
            let value = f32::from_bits(u32::from(from.cast::<u16>().read_unaligned()) << 16);
            vdupq_n_f32(value)
        }
    }

    #[inline(always)]
    fn prefetch(self, at: *const u8) {
        // SAFETY: a hint; no address faults.
        unsafe {
            asm!("prfm pldl2keep, [{at}]", at = in(reg) at, options(nostack, preserves_flags, readonly))
        };
    }

    #[inline(always)]
    unsafe fn nibbles(self, from: *const u8) -> uint8x16_t {
        vectors! {
            let pairs = vld1_u8(from);
            let (low, high) = (vand_u8(pairs, vdup_n_u8(15)), vshr_n_u8::<4>(pairs));
            vcombine_u8(vzip1_u8(low, high), vzip2_u8(low, high))
        }
    }

    #[inline(always)]
    unsafe fn load_bytes(self, from: *const u8) -> uint8x16_t {
        vectors!(vld1q_u8(from))
    }

    #[inline(always)]
    fn widen(self, bytes: uint8x16_t, part: usize) -> float32x4_t {
        vectors! {
            let half = if part < 2 { vmovl_u8(vget_low_u8(bytes)) } else { vmovl_u8(vget_high_u8(bytes)) };
            let four = if part.is_multiple_of(2) { vget_low_u16(half) } else { vget_high_u16(half) };
            vcvtq_f32_u32(vmovl_u16(four))
        }
    }

    #[inline(always)]
    fn e2m1_bytes(self, codes: uint8x16_t) -> uint8x16_t {
        vectors!(vreinterpretq_u8_s8(vqtbl1q_s8(vld1q_s8(DOUBLED.as_ptr()), codes)))
    }

    #[inline(always)]
    unsafe fn scale_bytes<const SIGNED: bool>(self, bytes: uint8x16_t, scale: f32, bias: f32, to: *mut f32) {
        vectors! {
            let (scale, bias) = (vdupq_n_f32(scale), vdupq_n_f32(bias));
            let write = |n: usize, value: float32x4_t| vst1q_f32(to.add(4 * n), vfmaq_f32(bias, value, scale));
            if SIGNED {
                let bytes = vreinterpretq_s8_u8(bytes);
                for (n, half) in [vmovl_s8(vget_low_s8(bytes)), vmovl_s8(vget_high_s8(bytes))].into_iter().enumerate() {
                    write(2 * n, vcvtq_f32_s32(vmovl_s16(vget_low_s16(half))));
                    write(2 * n + 1, vcvtq_f32_s32(vmovl_s16(vget_high_s16(half))));
                }
            } else {
                for (n, half) in [vmovl_u8(vget_low_u8(bytes)), vmovl_u8(vget_high_u8(bytes))].into_iter().enumerate() {
                    write(2 * n, vcvtq_f32_u32(vmovl_u16(vget_low_u16(half))));
                    write(2 * n + 1, vcvtq_f32_u32(vmovl_u16(vget_high_u16(half))));
                }
            }
        }
    }
}

/// Each i32 of `sum` plus the products of its four signed bytes.
#[inline(always)]
fn dot4(sum: int32x4_t, a: int32x4_t, b: int32x4_t) -> int32x4_t {
    let mut sum = sum;
    // SAFETY: a Neon token's methods alone call this. The intrinsic `vdotq_s32` is not stable yet.
    unsafe {
        asm!(
            ".arch_extension dotprod",
            "sdot {sum:v}.4s, {a:v}.16b, {b:v}.16b",
            sum = inout(vreg) sum,
            a = in(vreg) a,
            b = in(vreg) b,
            options(pure, nomem, nostack, preserves_flags)
        );
    }
    sum
}

/// Four IEEE halves as f32. The types of f16 vectors are not stable yet.
#[inline(always)]
fn halves(a: uint16x4_t) -> float32x4_t {
    let out: float32x4_t;
    // SAFETY: a Neon token's methods alone call this; the conversion is part of neon.
    unsafe {
        asm!(
            "fcvtl {out:v}.4s, {a:v}.4h",
            out = lateout(vreg) out,
            a = in(vreg) a,
            options(pure, nomem, nostack, preserves_flags)
        );
    }
    out
}
