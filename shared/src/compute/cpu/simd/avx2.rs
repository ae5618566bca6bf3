//! AVX2 with FMA and F16C: Haswell and Zen, and later.

use std::arch::x86_64::*;

use super::{DOUBLED, Simd, UNSIGNED, vectors};

/// Proof of avx, avx2, fma and f16c.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in super::super) struct Avx2(());

impl Avx2 {
    pub(in super::super) fn detect() -> Option<Self> {
        let found = is_x86_feature_detected!("avx")
            && is_x86_feature_detected!("avx2")
            && is_x86_feature_detected!("fma")
            && is_x86_feature_detected!("f16c");
        found.then_some(Self(()))
    }
}

impl Simd for Avx2 {
    const LANES: usize = 8;
    const OFFSET: i32 = 12;
    const MOST_ROWS: usize = 3;
    type Floats = __m256;
    type Ints = __m256i;
    type Bytes = __m128i;

    #[inline(always)]
    fn zero(self) -> __m256 {
        vectors!(_mm256_setzero_ps())
    }

    #[inline(always)]
    fn splat(self, value: f32) -> __m256 {
        vectors!(_mm256_set1_ps(value))
    }

    #[inline(always)]
    unsafe fn load(self, from: *const f32) -> __m256 {
        vectors!(_mm256_loadu_ps(from))
    }

    #[inline(always)]
    unsafe fn store(self, to: *mut f32, value: __m256) {
        vectors!(_mm256_storeu_ps(to, value));
    }

    #[inline(always)]
    unsafe fn load_bf16(self, from: *const u8) -> __m256 {
        vectors!(_mm256_castsi256_ps(_mm256_slli_epi32::<16>(_mm256_cvtepu16_epi32(_mm_loadu_si128(
            from.cast()
        )))))
    }

    #[inline(always)]
    unsafe fn load_f16(self, from: *const u8) -> __m256 {
        vectors!(_mm256_cvtph_ps(_mm_loadu_si128(from.cast())))
    }

    #[inline(always)]
    fn mul(self, a: __m256, b: __m256) -> __m256 {
        vectors!(_mm256_mul_ps(a, b))
    }

    #[inline(always)]
    fn div(self, a: __m256, b: __m256) -> __m256 {
        vectors!(_mm256_div_ps(a, b))
    }

    #[inline(always)]
    fn fma(self, a: __m256, b: __m256, c: __m256) -> __m256 {
        vectors!(_mm256_fmadd_ps(a, b, c))
    }

    #[inline(always)]
    fn at_least(self, a: __m256, low: __m256) -> __m256 {
        // Of two operands that do not compare it gives the second.
        vectors!(_mm256_max_ps(low, a))
    }

    #[inline(always)]
    fn most(self, a: __m256) -> f32 {
        vectors! {
            let four = _mm_max_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps::<1>(a));
            let two = _mm_max_ps(four, _mm_movehl_ps(four, four));
            _mm_cvtss_f32(_mm_max_ss(two, _mm_shuffle_ps::<1>(two, two)))
        }
    }

    #[inline(always)]
    fn round(self, a: __m256) -> __m256 {
        vectors!(_mm256_round_ps::<{ _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC }>(a))
    }

    #[inline(always)]
    fn scale_by_power(self, a: __m256, n: __m256) -> __m256 {
        // NaN is the smallest integer, whose bits are shifted out; it stays NaN in `a`, which was made of it.
        vectors! {
            let exponent = _mm256_slli_epi32::<23>(_mm256_cvtps_epi32(n));
            let power = _mm256_castsi256_ps(_mm256_add_epi32(exponent, _mm256_set1_epi32(127 << 23)));
            _mm256_mul_ps(a, power)
        }
    }

    #[inline(always)]
    fn sum(self, a: __m256) -> f32 {
        vectors! {
            // As `four_sums` does it: neighbours, in each half, then the halves.
            let two = _mm256_add_ps(a, _mm256_movehdup_ps(a));
            let four = _mm256_add_ps(two, _mm256_permute_ps::<0b01_00_11_10>(two));
            _mm_cvtss_f32(_mm_add_ss(_mm256_castps256_ps128(four), _mm256_extractf128_ps::<1>(four)))
        }
    }

    #[inline(always)]
    fn four_sums(self, [a, b, c, d]: [__m256; 4]) -> [f32; 4] {
        vectors! {
            // In each half: a, a, b, b; then a, b, c, d; then the halves.
            let four = _mm256_hadd_ps(_mm256_hadd_ps(a, b), _mm256_hadd_ps(c, d));
            let sums = _mm_add_ps(_mm256_castps256_ps128(four), _mm256_extractf128_ps::<1>(four));
            let mut out = [0.0; 4];
            _mm_storeu_ps(out.as_mut_ptr(), sums);
            out
        }
    }

    #[inline(always)]
    unsafe fn load_ints(self, from: *const u8) -> __m256i {
        vectors!(_mm256_loadu_si256(from.cast()))
    }

    #[inline(always)]
    fn zero_ints(self) -> __m256i {
        vectors!(_mm256_setzero_si256())
    }

    #[inline(always)]
    fn e2m1(self, codes: __m256i) -> (__m256i, __m256i) {
        vectors! {
            let table = _mm256_broadcastsi128_si256(_mm_loadu_si128(UNSIGNED.as_ptr().cast()));
            let low = _mm256_set1_epi8(15);
            let high = _mm256_and_si256(_mm256_srli_epi16::<4>(codes), low);
            (_mm256_shuffle_epi8(table, _mm256_and_si256(codes, low)), _mm256_shuffle_epi8(table, high))
        }
    }

    #[inline(always)]
    fn nibble_pairs(self, codes: __m256i) -> (__m256i, __m256i) {
        vectors! {
            let low = _mm256_set1_epi8(15);
            (_mm256_and_si256(codes, low), _mm256_and_si256(_mm256_srli_epi16::<4>(codes), low))
        }
    }

    #[inline(always)]
    fn dot8(self, sum: __m256i, weights: (__m256i, __m256i), even: __m256i, odd: __m256i) -> __m256i {
        // 24 · 128 · 4 = 12288 fits an i16; a nibble is less than 24.
        vectors! {
            let pairs = _mm256_add_epi16(
                _mm256_maddubs_epi16(weights.0, even),
                _mm256_maddubs_epi16(weights.1, odd),
            );
            _mm256_add_epi32(sum, _mm256_madd_epi16(pairs, _mm256_set1_epi16(1)))
        }
    }

    #[inline(always)]
    fn shift_add(self, high: __m256i, low: __m256i) -> __m256i {
        vectors!(_mm256_add_epi32(_mm256_slli_epi32::<8>(high), low))
    }

    #[inline(always)]
    fn to_floats(self, a: __m256i) -> __m256 {
        vectors!(_mm256_cvtepi32_ps(a))
    }

    #[inline(always)]
    unsafe fn e4m3_pairs(self, from: *const u8) -> __m256 {
        // A byte shifted by 7 is an f16 of 2⁻⁸ of its value, subnormals included.
        vectors! {
            let four = _mm_cvtsi32_si128(from.cast::<i32>().read_unaligned());
            let twice = _mm_setr_epi8(0, -1, 0, -1, 1, -1, 1, -1, 2, -1, 2, -1, 3, -1, 3, -1);
            _mm256_cvtph_ps(_mm_slli_epi16::<7>(_mm_shuffle_epi8(four, twice)))
        }
    }

    #[inline(always)]
    unsafe fn spread_f32<const COUNT: usize>(self, from: *const u8) -> __m256 {
        vectors! {
            match COUNT {
                2 => {
                    let two = _mm256_set1_epi64x(from.cast::<i64>().read_unaligned());
                    _mm256_permutevar_ps(_mm256_castsi256_ps(two), _mm256_setr_epi32(0, 0, 0, 0, 1, 1, 1, 1))
                }
                _ => _mm256_set1_ps(from.cast::<f32>().read_unaligned()),
            }
        }
    }

    #[inline(always)]
    unsafe fn spread_f16<const COUNT: usize>(self, from: *const u8) -> __m256 {
        vectors!(_mm256_cvtph_ps(match COUNT {
            2 => {
                let each = _mm_set_epi64x(0x0302_0302_0302_0302, 0x0100_0100_0100_0100);
                _mm_shuffle_epi8(_mm_cvtsi32_si128(from.cast::<i32>().read_unaligned()), each)
            }
            _ => _mm_set1_epi16(from.cast::<i16>().read_unaligned()),
        }))
    }

    #[inline(always)]
    unsafe fn spread_bf16<const COUNT: usize>(self, from: *const u8) -> __m256 {
        // Two bytes go to the upper half of each f32; an index of -1 gives the lower half zeros.
        vectors! {
            let ints = match COUNT {
                2 => {
                    let (a, b) = (0x0100_ffff, 0x0302_ffff);
                    let each = _mm256_setr_epi32(a, a, a, a, b, b, b, b);
                    _mm256_shuffle_epi8(_mm256_set1_epi32(from.cast::<i32>().read_unaligned()), each)
                }
                _ => _mm256_slli_epi32::<16>(_mm256_set1_epi16(from.cast::<i16>().read_unaligned())),
            };
            _mm256_castsi256_ps(ints)
        }
    }

    #[inline(always)]
    fn prefetch(self, at: *const u8) {
        vectors!(_mm_prefetch::<_MM_HINT_T1>(at.cast()));
    }

    #[inline(always)]
    unsafe fn nibbles(self, from: *const u8) -> __m128i {
        vectors! {
            let (pairs, low) = (_mm_loadl_epi64(from.cast()), _mm_set1_epi8(15));
            let high = _mm_and_si128(_mm_srli_epi16::<4>(pairs), low);
            _mm_unpacklo_epi8(_mm_and_si128(pairs, low), high)
        }
    }

    #[inline(always)]
    unsafe fn load_bytes(self, from: *const u8) -> __m128i {
        vectors!(_mm_loadu_si128(from.cast()))
    }

    #[inline(always)]
    fn widen(self, bytes: __m128i, part: usize) -> __m256 {
        vectors! {
            let eight = if part == 0 { bytes } else { _mm_unpackhi_epi64(bytes, bytes) };
            _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(eight))
        }
    }

    #[inline(always)]
    fn e2m1_bytes(self, codes: __m128i) -> __m128i {
        vectors!(_mm_shuffle_epi8(_mm_loadu_si128(DOUBLED.as_ptr().cast()), codes))
    }

    #[inline(always)]
    unsafe fn scale_bytes<const SIGNED: bool>(self, bytes: __m128i, scale: f32, bias: f32, to: *mut f32) {
        vectors! {
            let (scale, bias) = (_mm256_set1_ps(scale), _mm256_set1_ps(bias));
            let halves = [bytes, _mm_unpackhi_epi64(bytes, bytes)];
            for (half, to) in halves.into_iter().zip([to, to.add(8)]) {
                let ints = if SIGNED { _mm256_cvtepi8_epi32(half) } else { _mm256_cvtepu8_epi32(half) };
                _mm256_storeu_ps(to, _mm256_fmadd_ps(_mm256_cvtepi32_ps(ints), scale, bias));
            }
        }
    }
}
