//! AVX-512 with VNNI and VBMI: Ice Lake and Zen 4, and later.

use std::arch::x86_64::*;

use super::{DOUBLED, PARTS, Simd, UNSIGNED, vectors};

/// Proof of avx512f, bw, dq, vl, vnni, vbmi, and all of [`super::Avx2`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in super::super) struct Avx512(());

impl Avx512 {
    pub(in super::super) fn detect() -> Option<Self> {
        let found = super::Avx2::detect().is_some()
            && is_x86_feature_detected!("avx512f")
            && is_x86_feature_detected!("avx512bw")
            && is_x86_feature_detected!("avx512dq")
            && is_x86_feature_detected!("avx512vl")
            && is_x86_feature_detected!("avx512vnni")
            && is_x86_feature_detected!("avx512vbmi");
        found.then_some(Self(()))
    }
}

impl Simd for Avx512 {
    const LANES: usize = 16;
    const OFFSET: i32 = 12;
    const MOST_ROWS: usize = 6;
    type Floats = __m512;
    type Ints = __m512i;
    type Bytes = __m128i;

    #[inline(always)]
    fn zero(self) -> __m512 {
        vectors!(_mm512_setzero_ps())
    }

    #[inline(always)]
    fn splat(self, value: f32) -> __m512 {
        vectors!(_mm512_set1_ps(value))
    }

    #[inline(always)]
    unsafe fn load(self, from: *const f32) -> __m512 {
        vectors!(_mm512_loadu_ps(from))
    }

    #[inline(always)]
    unsafe fn store(self, to: *mut f32, value: __m512) {
        vectors!(_mm512_storeu_ps(to, value));
    }

    #[inline(always)]
    unsafe fn load_bf16(self, from: *const u8) -> __m512 {
        vectors!(_mm512_castsi512_ps(_mm512_slli_epi32::<16>(_mm512_cvtepu16_epi32(_mm256_loadu_si256(
            from.cast()
        )))))
    }

    #[inline(always)]
    unsafe fn load_f16(self, from: *const u8) -> __m512 {
        vectors!(_mm512_cvtph_ps(_mm256_loadu_si256(from.cast())))
    }

    #[inline(always)]
    fn mul(self, a: __m512, b: __m512) -> __m512 {
        vectors!(_mm512_mul_ps(a, b))
    }

    #[inline(always)]
    fn div(self, a: __m512, b: __m512) -> __m512 {
        vectors!(_mm512_div_ps(a, b))
    }

    #[inline(always)]
    fn fma(self, a: __m512, b: __m512, c: __m512) -> __m512 {
        vectors!(_mm512_fmadd_ps(a, b, c))
    }

    #[inline(always)]
    fn at_least(self, a: __m512, low: __m512) -> __m512 {
        // Of two operands that do not compare it gives the second.
        vectors!(_mm512_max_ps(low, a))
    }

    #[inline(always)]
    fn most(self, a: __m512) -> f32 {
        vectors!(_mm512_reduce_max_ps(a))
    }

    #[inline(always)]
    fn round(self, a: __m512) -> __m512 {
        vectors!(_mm512_roundscale_ps::<{ _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC }>(a))
    }

    #[inline(always)]
    fn scale_by_power(self, a: __m512, n: __m512) -> __m512 {
        vectors!(_mm512_scalef_ps(a, n))
    }

    #[inline(always)]
    fn sum(self, a: __m512) -> f32 {
        vectors! {
            // As `four_sums` does it: in each quarter, then the quarters.
            let two = _mm512_add_ps(a, _mm512_permute_ps::<0b01_00_11_10>(a));
            let four = _mm512_add_ps(two, _mm512_permute_ps::<0b10_11_00_01>(two));
            let half = _mm256_add_ps(_mm512_castps512_ps256(four), _mm512_extractf32x8_ps::<1>(four));
            _mm_cvtss_f32(_mm_add_ss(_mm256_castps256_ps128(half), _mm256_extractf128_ps::<1>(half)))
        }
    }

    #[inline(always)]
    fn four_sums(self, [a, b, c, d]: [__m512; 4]) -> [f32; 4] {
        vectors! {
            // In each quarter: a, b, a, b; then a, b, c, d; then the quarters.
            let ab = _mm512_add_ps(_mm512_unpacklo_ps(a, b), _mm512_unpackhi_ps(a, b));
            let cd = _mm512_add_ps(_mm512_unpacklo_ps(c, d), _mm512_unpackhi_ps(c, d));
            let (ab, cd) = (_mm512_castps_pd(ab), _mm512_castps_pd(cd));
            let (first, second) = (_mm512_unpacklo_pd(ab, cd), _mm512_unpackhi_pd(ab, cd));
            let four = _mm512_add_ps(_mm512_castpd_ps(first), _mm512_castpd_ps(second));
            let half = _mm256_add_ps(_mm512_castps512_ps256(four), _mm512_extractf32x8_ps::<1>(four));
            let sums = _mm_add_ps(_mm256_castps256_ps128(half), _mm256_extractf128_ps::<1>(half));
            let mut out = [0.0; 4];
            _mm_storeu_ps(out.as_mut_ptr(), sums);
            out
        }
    }

    #[inline(always)]
    unsafe fn load_ints(self, from: *const u8) -> __m512i {
        vectors!(_mm512_loadu_si512(from.cast()))
    }

    #[inline(always)]
    fn zero_ints(self) -> __m512i {
        vectors!(_mm512_setzero_si512())
    }

    #[expect(clippy::needless_range_loop, reason = "rows come in pairs and fours")]
    #[inline(always)]
    unsafe fn transpose(self, from: *const f32, from_stride: usize, to: *mut f32, to_stride: usize) {
        vectors! {
            let mut rows = [_mm512_setzero_ps(); 16];
            for n in 0..16 {
                rows[n] = _mm512_loadu_ps(from.add(n * from_stride));
            }
            // Pairs of rows, then fours, within each quarter of a vector; then the quarters.
            let mut pairs = rows;
            for n in (0..16).step_by(2) {
                pairs[n] = _mm512_unpacklo_ps(rows[n], rows[n + 1]);
                pairs[n + 1] = _mm512_unpackhi_ps(rows[n], rows[n + 1]);
            }
            let mut fours = pairs;
            for n in (0..16).step_by(4) {
                for half in 0..2 {
                    let low = _mm512_castps_pd(pairs[n + half]);
                    let high = _mm512_castps_pd(pairs[n + 2 + half]);
                    fours[n + 2 * half] = _mm512_castpd_ps(_mm512_unpacklo_pd(low, high));
                    fours[n + 2 * half + 1] = _mm512_castpd_ps(_mm512_unpackhi_pd(low, high));
                }
            }
            for n in 0..4 {
                let [a, b, c, d] = [fours[n], fours[4 + n], fours[8 + n], fours[12 + n]];
                let (ab_even, ab_odd) = (_mm512_shuffle_f32x4::<0x88>(a, b), _mm512_shuffle_f32x4::<0xdd>(a, b));
                let (cd_even, cd_odd) = (_mm512_shuffle_f32x4::<0x88>(c, d), _mm512_shuffle_f32x4::<0xdd>(c, d));
                _mm512_storeu_ps(to.add(n * to_stride), _mm512_shuffle_f32x4::<0x88>(ab_even, cd_even));
                _mm512_storeu_ps(to.add((4 + n) * to_stride), _mm512_shuffle_f32x4::<0x88>(ab_odd, cd_odd));
                _mm512_storeu_ps(to.add((8 + n) * to_stride), _mm512_shuffle_f32x4::<0xdd>(ab_even, cd_even));
                _mm512_storeu_ps(to.add((12 + n) * to_stride), _mm512_shuffle_f32x4::<0xdd>(ab_odd, cd_odd));
            }
        }
    }

    #[inline(always)]
    fn e2m1(self, codes: __m512i) -> (__m512i, __m512i) {
        // vpermb looks at six bits: with the table four times over, what is above a nibble does not matter.
        vectors! {
            let table = _mm512_broadcast_i32x4(_mm_loadu_si128(UNSIGNED.as_ptr().cast()));
            let high = _mm512_srli_epi16::<4>(codes);
            (_mm512_permutexvar_epi8(codes, table), _mm512_permutexvar_epi8(high, table))
        }
    }

    #[inline(always)]
    fn nibble_pairs(self, codes: __m512i) -> (__m512i, __m512i) {
        vectors! {
            let low = _mm512_set1_epi8(15);
            (_mm512_and_si512(codes, low), _mm512_and_si512(_mm512_srli_epi16::<4>(codes), low))
        }
    }

    #[inline(always)]
    fn dot8(self, sum: __m512i, weights: (__m512i, __m512i), even: __m512i, odd: __m512i) -> __m512i {
        vectors!(_mm512_dpbusd_epi32(_mm512_dpbusd_epi32(sum, weights.0, even), weights.1, odd))
    }

    #[inline(always)]
    fn shift_add(self, high: __m512i, low: __m512i) -> __m512i {
        vectors!(_mm512_add_epi32(_mm512_slli_epi32::<8>(high), low))
    }

    #[inline(always)]
    fn to_floats(self, a: __m512i) -> __m512 {
        vectors!(_mm512_cvtepi32_ps(a))
    }

    #[inline(always)]
    unsafe fn e4m3_pairs(self, from: *const u8) -> __m512 {
        // A byte shifted by 7 is an f16 of 2⁻⁸ of its value, subnormals included.
        vectors! {
            let eight = _mm256_set1_epi64x(from.cast::<i64>().read_unaligned());
            let twice = _mm256_setr_epi8(
                0, -1, 0, -1, 1, -1, 1, -1, 2, -1, 2, -1, 3, -1, 3, -1,
                4, -1, 4, -1, 5, -1, 5, -1, 6, -1, 6, -1, 7, -1, 7, -1,
            );
            _mm512_cvtph_ps(_mm256_slli_epi16::<7>(_mm256_shuffle_epi8(eight, twice)))
        }
    }

    #[inline(always)]
    unsafe fn spread_f32<const COUNT: usize>(self, from: *const u8) -> __m512 {
        vectors! {
            match COUNT {
                4 => {
                    let each = _mm512_setr_epi32(0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 2, 2, 3, 3, 3, 3);
                    _mm512_permutevar_ps(_mm512_broadcast_f32x4(_mm_loadu_ps(from.cast())), each)
                }
                2 => {
                    let each = _mm512_setr_epi32(0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 1, 1, 1, 1);
                    let two = _mm512_set1_epi64(from.cast::<i64>().read_unaligned());
                    _mm512_permutevar_ps(_mm512_castsi512_ps(two), each)
                }
                _ => _mm512_set1_ps(from.cast::<f32>().read_unaligned()),
            }
        }
    }

    #[inline(always)]
    unsafe fn spread_f16<const COUNT: usize>(self, from: *const u8) -> __m512 {
        vectors!(_mm512_cvtph_ps(match COUNT {
            4 => {
                let each = _mm256_setr_epi64x(
                    0x0100_0100_0100_0100,
                    0x0302_0302_0302_0302,
                    0x0504_0504_0504_0504,
                    0x0706_0706_0706_0706,
                );
                _mm256_shuffle_epi8(_mm256_set1_epi64x(from.cast::<i64>().read_unaligned()), each)
            }
            2 => {
                let (first, second) = (0x0100_0100_0100_0100, 0x0302_0302_0302_0302);
                let each = _mm256_setr_epi64x(first, first, second, second);
                _mm256_shuffle_epi8(_mm256_set1_epi32(from.cast::<i32>().read_unaligned()), each)
            }
            _ => _mm256_set1_epi16(from.cast::<i16>().read_unaligned()),
        }))
    }

    #[inline(always)]
    unsafe fn spread_bf16<const COUNT: usize>(self, from: *const u8) -> __m512 {
        // Two bytes go to the upper half of each f32; an index of -1 gives the lower half zeros.
        vectors! {
            let value = |n: i32| (2 * n + 1) << 24 | (2 * n) << 16 | 0xffff;
            let ints = match COUNT {
                4 => {
                    let [a, b, c, d] = [value(0), value(1), value(2), value(3)];
                    let each = _mm512_setr_epi32(a, a, a, a, b, b, b, b, c, c, c, c, d, d, d, d);
                    _mm512_shuffle_epi8(_mm512_set1_epi64(from.cast::<i64>().read_unaligned()), each)
                }
                2 => {
                    let [a, b] = [value(0), value(1)];
                    let each = _mm512_setr_epi32(a, a, a, a, a, a, a, a, b, b, b, b, b, b, b, b);
                    _mm512_shuffle_epi8(_mm512_set1_epi32(from.cast::<i32>().read_unaligned()), each)
                }
                _ => _mm512_slli_epi32::<16>(_mm512_set1_epi16(from.cast::<i16>().read_unaligned())),
            };
            _mm512_castsi512_ps(ints)
        }
    }

    #[inline(always)]
    fn prefetch(self, at: *const u8) {
        // Into the second level: into the first it was a third slower, which has too few lines in flight.
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
    fn widen(self, bytes: __m128i, _: usize) -> __m512 {
        vectors!(_mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(bytes)))
    }

    #[inline(always)]
    fn e2m1_bytes(self, codes: __m128i) -> __m128i {
        vectors!(_mm_shuffle_epi8(_mm_loadu_si128(DOUBLED.as_ptr().cast()), codes))
    }

    #[inline(always)]
    fn largest(self, x: &[f32; 16]) -> f32 {
        vectors! {
            let magnitudes = _mm512_abs_ps(_mm512_loadu_ps(x.as_ptr()));
            f32::from_bits(_mm512_reduce_max_epu32(_mm512_castps_si512(magnitudes)))
        }
    }

    #[inline(always)]
    unsafe fn split(self, x: &[f32; 16], inverse: f32) -> ([[[u8; 8]; 2]; PARTS], [i32; 2]) {
        vectors! {
            let scaled = _mm512_mul_ps(_mm512_loadu_ps(x.as_ptr()), _mm512_set1_ps(inverse));
            let mut q = _mm512_cvtps_epi32(scaled);
            let halves = [_mm512_castsi512_si256(q), _mm512_extracti64x4_epi64::<1>(q)];
            let mut sums = [0; 2];
            for n in 0..2 {
                let four = _mm_add_epi32(_mm256_castsi256_si128(halves[n]), _mm256_extracti128_si256::<1>(halves[n]));
                let two = _mm_hadd_epi32(four, four);
                sums[n] = _mm_cvtsi128_si32(_mm_hadd_epi32(two, two));
            }
            let apart = _mm_setr_epi8(0, 2, 4, 6, 8, 10, 12, 14, 1, 3, 5, 7, 9, 11, 13, 15);
            let mut planes = [[[0; 8]; 2]; PARTS];
            for plane in &mut planes {
                let bytes = _mm_shuffle_epi8(_mm512_cvtepi32_epi8(q), apart);
                _mm_storeu_si128(plane.as_mut_ptr().cast(), bytes);
                let low = _mm512_srai_epi32::<24>(_mm512_slli_epi32::<24>(q));
                q = _mm512_srai_epi32::<8>(_mm512_sub_epi32(q, low));
            }
            (planes, sums)
        }
    }

    #[inline(always)]
    unsafe fn decode_groups(self, codes: *const u8, half_scales: [f32; 4], to: *mut f32) {
        vectors! {
            let (pairs, low) = (_mm256_loadu_si256(codes.cast()), _mm256_set1_epi8(15));
            let table = _mm256_broadcastsi128_si256(_mm_loadu_si128(DOUBLED.as_ptr().cast()));
            let even = _mm256_shuffle_epi8(table, _mm256_and_si256(pairs, low));
            let odd = _mm256_shuffle_epi8(table, _mm256_and_si256(_mm256_srli_epi16::<4>(pairs), low));
            // Groups 0 and 2, and 1 and 3.
            let (first, second) = (_mm256_unpacklo_epi8(even, odd), _mm256_unpackhi_epi8(even, odd));
            let groups = [
                _mm256_castsi256_si128(first),
                _mm256_castsi256_si128(second),
                _mm256_extracti128_si256::<1>(first),
                _mm256_extracti128_si256::<1>(second),
            ];
            for n in 0..4 {
                let weights = _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(groups[n]));
                _mm512_storeu_ps(to.add(16 * n), _mm512_mul_ps(weights, _mm512_set1_ps(half_scales[n])));
            }
        }
    }

    #[inline(always)]
    unsafe fn scale_bytes<const SIGNED: bool>(self, bytes: __m128i, scale: f32, bias: f32, to: *mut f32) {
        vectors! {
            let ints = if SIGNED { _mm512_cvtepi8_epi32(bytes) } else { _mm512_cvtepu8_epi32(bytes) };
            let (scale, bias) = (_mm512_set1_ps(scale), _mm512_set1_ps(bias));
            _mm512_storeu_ps(to, _mm512_fmadd_ps(_mm512_cvtepi32_ps(ints), scale, bias));
        }
    }
}
