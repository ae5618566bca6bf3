//! MLX affine codes: a little-endian bit stream across u32 words, one row after the other, each row a whole number of
//! words. Bit-exact.

/// Unpacks one row: `packed` [cols · bits / 8] bytes, `out` [cols] codes. `bits` is 1 to 8.
///
/// # Panics
/// If the lengths do not belong together or `bits` is out of range.
pub fn unpack_row(bits: u32, packed: &[u8], out: &mut [u8]) {
    assert!((1..=8).contains(&bits), "bits of an affine code");
    assert!(packed.len() * 8 == out.len() * bits as usize, "lengths of an affine row");
    let mask = (1_u16 << bits) - 1;
    // Little-endian words make the stream of bytes and the stream of words one and the same.
    let (mut held, mut count) = (0_u16, 0);
    let mut bytes = packed.iter();
    for code in out {
        if count < bits {
            held |= u16::from(bytes.next().copied().unwrap_or(0)) << count;
            count += 8;
        }
        *code = (held & mask) as u8;
        held >>= bits;
        count -= bits;
    }
}
