//! MLX affine codes: a little-endian bit stream across u32 words, one row after the other, each row a whole number of
//! words. Bit-exact.

/// Unpacks one row: `packed` is `[cols · bits / 8]` bytes, `out` `[cols]` codes. `bits` is 1 to 8.
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

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::unpack_row;

    proptest! {
        #[test]
        fn codes_are_read_bit_by_bit(bits in 1..=8_u32, words in prop::collection::vec(any::<u32>(), 1..40)) {
            // Whole rows only: 32 columns of b bits are b words.
            let words = &words[..words.len() / bits as usize * bits as usize];
            let packed: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
            let mut codes = vec![0; words.len() * 32 / bits as usize];
            unpack_row(bits, &packed, &mut codes);
            let bit = |n: usize| (words[n / 32] >> (n % 32) & 1) as u8;
            for (i, code) in codes.iter().enumerate() {
                let start = i * bits as usize;
                let slow = (0..bits as usize).fold(0, |code, b| code | bit(start + b) << b);
                prop_assert_eq!(*code, slow);
            }
        }
    }

    #[test]
    fn codes_cross_words() {
        // 3 bits: code 10 lies in bits 30..33, two in the first word and one in the second.
        let words = [0b11_u32 << 30, 1, 0];
        let packed: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
        let mut codes = [0; 32];
        unpack_row(3, &packed, &mut codes);
        assert_eq!(codes[10], 7);
        assert_eq!(codes.iter().map(|code| u32::from(*code)).sum::<u32>(), 7);
    }
}
