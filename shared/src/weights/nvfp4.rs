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

/// Decodes one row: `codes` [cols / 2], `scales` [cols / 16], `out` [cols]. Without the global scale.
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
