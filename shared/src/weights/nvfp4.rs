//! NVFP4: E2M1 codes, two a byte with the low nibble first, and one E4M3 scale byte per 16 columns. The same bytes
//! whether a checkpoint calls them U8 pairs (compressed-tensors) or little-endian u32 words (MLX). Bit-exact.

/// Columns that share a scale.
pub const GROUP: usize = 16;

/// Value of an E2M1 code (0..16): sign, two exponent bits, one mantissa bit.
pub const E2M1: [f32; 16] =
    [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, -0.0, -0.5, -1.0, -1.5, -2.0, -3.0, -4.0, -6.0];

/// Value of each E4M3 byte.
pub static E4M3: [f32; 256] = e4m3_table();

/// Value of an E4M3 byte (the "fn" variant: no infinities, 0x7f and 0xff are NaN).
pub const fn e4m3(byte: u8) -> f32 {
    let sign = if byte & 0x80 != 0 { 0x8000_0000 } else { 0 };
    let (exponent, mantissa) = ((byte >> 3 & 15) as u32, (byte & 7) as u32);
    let bits = if exponent == 15 && mantissa == 7 {
        0x7fc0_0000
    } else if exponent > 0 {
        // Biases: 7 here, 127 in f32.
        (exponent + 120) << 23 | mantissa << 20
    } else if mantissa == 0 {
        0
    } else {
        // Subnormal: mantissa · 2^-9. Normalised, its leading bit becomes the implicit one.
        let shift = mantissa.leading_zeros() - 28;
        (121 - shift) << 23 | ((mantissa << shift) & 7) << 20
    };
    f32::from_bits(sign | bits)
}

/// Decodes one row: `codes` is `[cols / 2]`, `scales` `[cols / 16]`, `out` `[cols]`. Without the global scale.
///
/// # Panics
/// If the lengths do not belong together.
pub fn decode_row(codes: &[u8], scales: &[u8], out: &mut [f32]) {
    assert!(codes.len() * 2 == out.len() && scales.len() * GROUP == out.len(), "lengths of an NVFP4 row");
    for ((codes, scale), out) in codes.chunks_exact(GROUP / 2).zip(scales).zip(out.chunks_exact_mut(GROUP)) {
        let scale = E4M3[usize::from(*scale)];
        for (pair, out) in codes.iter().zip(out.chunks_exact_mut(2)) {
            out[0] = E2M1[usize::from(pair & 15)] * scale;
            out[1] = E2M1[usize::from(pair >> 4)] * scale;
        }
    }
}

const fn e4m3_table() -> [f32; 256] {
    let mut table = [0.0; 256];
    let mut byte = 0;
    while byte < 256 {
        table[byte] = e4m3(byte as u8);
        byte += 1;
    }
    table
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::{E2M1, E4M3, GROUP, decode_row, e4m3};

    /// E4M3 from its definition, in f64.
    fn slow_e4m3(byte: u8) -> f64 {
        let (exponent, mantissa) = (i32::from(byte >> 3 & 15), f64::from(byte & 7));
        let size = match exponent {
            15 if mantissa == 7.0 => f64::NAN,
            0 => mantissa / 8.0 * 2_f64.powi(-6),
            _ => (1.0 + mantissa / 8.0) * 2_f64.powi(exponent - 7),
        };
        if byte >= 128 { -size } else { size }
    }

    #[test]
    fn every_e4m3_byte_is_exact() {
        for byte in 0..=255_u8 {
            let (fast, slow) = (e4m3(byte), slow_e4m3(byte) as f32);
            assert_eq!(fast.is_nan(), slow.is_nan(), "{byte:#x}");
            assert_eq!(fast.is_nan(), byte & 0x7f == 0x7f, "{byte:#x}");
            assert!(fast.is_nan() || fast.to_bits() == slow.to_bits(), "{byte:#x}: {fast} is not {slow}");
            assert_eq!(E4M3[usize::from(byte)].to_bits(), fast.to_bits());
        }
        assert_eq!((e4m3(0x7e), e4m3(0x01), e4m3(0x38)), (448.0, 2_f32.powi(-9), 1.0));
    }

    #[test]
    fn every_e2m1_code_is_exact() {
        for code in 0..16_u8 {
            let (exponent, mantissa) = (i32::from(code >> 1 & 3), f32::from(code & 1));
            let size = match exponent {
                0 => mantissa / 2.0,
                _ => (1.0 + mantissa / 2.0) * 2_f32.powi(exponent - 1),
            };
            let value = if code >= 8 { -size } else { size };
            assert_eq!(E2M1[usize::from(code)].to_bits(), value.to_bits());
        }
    }

    #[test]
    fn a_row_that_others_decoded() {
        // From the fixture set's unit_goldens.json: packed bytes, E4M3 scale bytes, global scale, dequantised.
        let codes = [68, 92, 220, 50, 58, 156, 207, 209, 229, 172, 234, 119, 52, 64, 183, 203];
        let expected = [
            0.038254574,
            0.038254574,
            -0.038254574,
            0.05738186,
            -0.038254574,
            -0.05738186,
            0.019127287,
            0.02869093,
            -0.019127287,
            0.02869093,
            -0.038254574,
            -0.0095636435,
            -0.11476372,
            -0.038254574,
            0.0095636435,
            -0.05738186,
            0.02869093,
            -0.038254574,
            -0.019127287,
            -0.0095636435,
            -0.0095636435,
            -0.038254574,
            0.05738186,
            0.05738186,
            0.019127287,
            0.014345465,
            0.0,
            0.019127287,
            0.05738186,
            -0.014345465,
            -0.014345465,
            -0.019127287,
        ];
        let mut row = [0.0; 32];
        decode_row(&codes, &[122, 114], &mut row);
        for (value, expected) in row.iter().zip(expected) {
            let value = value / 16730.025;
            assert!((value - expected).abs() <= 1e-7 * expected.abs(), "{value} is not {expected}");
        }
    }

    proptest! {
        #[test]
        fn rows_decode_as_defined(
            groups in 1..5_usize,
            bytes in prop::collection::vec(any::<u8>(), 64),
            scales in prop::collection::vec(any::<u8>(), 4),
        ) {
            let (codes, scales) = (&bytes[..groups * GROUP / 2], &scales[..groups]);
            let mut row = vec![0.0; groups * GROUP];
            decode_row(codes, scales, &mut row);
            // MLX's view of the same bytes: little-endian words, eight codes each.
            for (i, value) in row.iter().enumerate() {
                let word = &codes[i / 8 * 4..][..4];
                let word = u32::from_le_bytes([word[0], word[1], word[2], word[3]]);
                let code = E2M1[(word >> (4 * (i % 8)) & 15) as usize];
                let exact = f64::from(code) * slow_e4m3(scales[i / GROUP]);
                prop_assert!(value.is_nan() && exact.is_nan() || f64::from(*value) == exact);
            }
        }
    }
}
