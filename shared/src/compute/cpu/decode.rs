//! Packed weights to f32, some rows at a time. Exact, but for affine weights, which round once.

use std::ops::Range;

use super::matrix::MatrixView;
use super::rows::{stride, width};
use super::simd::{Simd, for_isa};
use crate::weights::affine::unpack_row;
use crate::weights::decode::decode_floats;
use crate::weights::inventory::{FloatType, MatrixFormat};
use crate::weights::nvfp4::{GROUP, e4m3};

for_isa! {
    /// As [`decode`], for callers that are not vector code themselves.
    fn decode_rows(matrix: &MatrixView<'_>, rows: Range<usize>, out: &mut [f32]) = decode
}

/// Rows `rows` of a matrix to `out`, `[rows, stride(cols)]`, without the multiplier.
#[inline(always)]
pub(super) fn decode<S: Simd>(s: S, matrix: &MatrixView<'_>, rows: Range<usize>, out: &mut [f32]) {
    let cols = matrix.cols;
    for (row, out) in rows.zip(out.chunks_exact_mut(stride(cols))) {
        let (out, padding) = out[..width(cols)].split_at_mut(cols);
        padding.fill(0.0);
        let weight = matrix.weight_row(row);
        match matrix.format {
            MatrixFormat::Plain(float) => floats(s, float, weight, out),
            MatrixFormat::Nvfp4 => {
                let (scales, last_scales) = matrix.scales_row(row).as_chunks::<4>();
                let (codes, last_codes) = weight.as_chunks::<{ 4 * GROUP / 2 }>();
                let (whole, last) = out.as_chunks_mut::<{ 4 * GROUP }>();
                for ((codes, scales), out) in codes.iter().zip(scales).zip(whole) {
                    s.prefetch(codes.as_ptr().wrapping_add(AHEAD));
                    let halves = scales.map(|scale| HALF_E4M3[usize::from(scale)]);
                    // SAFETY: four groups of codes and of weights.
                    unsafe { s.decode_groups(codes.as_ptr(), halves, out.as_mut_ptr()) };
                }
                let groups = last_codes.chunks_exact(GROUP / 2).zip(last_scales);
                for ((codes, scale), out) in groups.zip(last.chunks_exact_mut(GROUP)) {
                    // SAFETY: a group has eight bytes of codes and sixteen weights.
                    unsafe {
                        let codes = s.e2m1_bytes(s.nibbles(codes.as_ptr()));
                        s.scale_bytes::<true>(codes, HALF_E4M3[usize::from(*scale)], 0.0, out.as_mut_ptr());
                    }
                }
            }
            MatrixFormat::Affine { bits, group_size, scale_type } => {
                let quick = matches!(bits, 4 | 8) && group_size.is_multiple_of(GROUP);
                if !quick {
                    unpack_slowly(bits, weight, out);
                }
                let (size, group_bytes) = (scale_type.size(), group_size * bits as usize / 8);
                let codes = weight.chunks(AT_ONCE * group_bytes).zip(out.chunks_mut(AT_ONCE * group_size));
                let parts = matrix.scales_row(row).chunks(AT_ONCE * size);
                let parts = parts.zip(matrix.biases_row(row).chunks(AT_ONCE * size));
                for ((codes, out), (scale_bytes, bias_bytes)) in codes.zip(parts) {
                    let (mut scales, mut biases) = ([0.0; AT_ONCE], [0.0; AT_ONCE]);
                    let groups = scale_bytes.len() / size;
                    floats(s, scale_type, scale_bytes, &mut scales[..groups]);
                    floats(s, scale_type, bias_bytes, &mut biases[..groups]);
                    let groups = codes.chunks_exact(group_bytes).zip(out.chunks_exact_mut(group_size));
                    for ((codes, out), (scale, bias)) in groups.zip(scales.into_iter().zip(biases)) {
                        match (quick, bits) {
                            (true, 4) => affine_group::<S, 4>(s, codes, scale, bias, out),
                            (true, _) => affine_group::<S, 8>(s, codes, scale, bias, out),
                            (false, _) => out.iter_mut().for_each(|code| *code = code.mul_add(scale, bias)),
                        }
                    }
                }
            }
        }
    }
}

/// A group of affine codes.
#[inline(always)]
fn affine_group<S: Simd, const BITS: usize>(s: S, codes: &[u8], scale: f32, bias: f32, out: &mut [f32]) {
    for line in (0..codes.len()).step_by(LINE) {
        s.prefetch(codes.as_ptr().wrapping_add(line + AHEAD));
    }
    for (codes, out) in codes.chunks_exact(GROUP * BITS / 8).zip(out.chunks_exact_mut(GROUP)) {
        // SAFETY: sixteen codes, and sixteen weights.
        unsafe {
            let codes = if BITS == 4 { s.nibbles(codes.as_ptr()) } else { s.load_bytes(codes.as_ptr()) };
            s.scale_bytes::<false>(codes, scale, bias, out.as_mut_ptr());
        }
    }
}

/// A row of floats.
#[inline(always)]
pub(super) fn floats<S: Simd>(s: S, float: FloatType, weight: &[u8], out: &mut [f32]) {
    let vectors = out.len() / S::LANES;
    let (size, whole) = (float.size(), vectors * S::LANES);
    assert!(weight.len() == out.len() * size, "length of a float row");
    for at in (0..whole).step_by(S::LANES) {
        // SAFETY: a whole vector lies at `at` in both.
        unsafe {
            let from = weight.as_ptr().add(at * size);
            if at * size % LINE == 0 {
                s.prefetch(from.wrapping_add(AHEAD));
            }
            let value = match float {
                FloatType::Bf16 => s.load_bf16(from),
                FloatType::F16 => s.load_f16(from),
                FloatType::F32 => s.load_f32(from),
            };
            s.store(out.as_mut_ptr().add(at), value);
        }
    }
    decode_floats(float, &weight[whole * size..], &mut out[whole..]);
}

/// Codes of any width as f32, for the rare ones.
fn unpack_slowly(bits: u32, packed: &[u8], out: &mut [f32]) {
    let mut codes = [0_u8; 32];
    // 32 codes are `bits` whole words.
    for (packed, out) in packed.chunks(4 * bits as usize).zip(out.chunks_mut(32)) {
        let codes = &mut codes[..out.len()];
        unpack_row(bits, &packed[..out.len() * bits as usize / 8], codes);
        for (out, code) in out.iter_mut().zip(codes) {
            *out = f32::from(*code);
        }
    }
}

/// Half of each E4M3 byte's value: codes are looked up doubled.
static HALF_E4M3: [f32; 256] = {
    let mut table = [0.0; 256];
    let mut byte = 0;
    while byte < 256 {
        table[byte] = e4m3(byte as u8) * 0.5;
        byte += 1;
    }
    table
};

/// How far ahead weights are asked for, in bytes.
const AHEAD: usize = 12 << 10;

/// Bytes of a cache line.
const LINE: usize = 64;

/// Groups whose scales are decoded together.
const AT_ONCE: usize = 64;
