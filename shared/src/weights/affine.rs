//! MLX affine codes: a little-endian bit stream across u32 words, one row after the other, each row a whole number of
//! words. Reading them is bit-exact.

use half::{bf16, f16};

use super::decode::decode_floats;
use super::inventory::{FloatType, MatrixFormat};
use super::load::RawMatrix;

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

/// Packs one row: the inverse of [`unpack_row`].
fn pack_row(bits: u32, codes: &[u8], packed: &mut Vec<u8>) {
    match bits {
        8 => packed.extend_from_slice(codes),
        4 => packed.extend(codes.as_chunks::<2>().0.iter().map(|[low, high]| low | high << 4)),
        _ => pack_bits(bits, codes, packed),
    }
}

/// As [`pack_row`], for any width.
fn pack_bits(bits: u32, codes: &[u8], packed: &mut Vec<u8>) {
    let (mut held, mut count) = (0_u16, 0);
    for code in codes {
        held |= u16::from(*code) << count;
        count += bits;
        if count >= 8 {
            packed.push(held as u8);
            held >>= 8;
            count -= 8;
        }
    }
}

/// A plain matrix in affine codes of `bits` bits, 1 to 8, each `group_size` columns with a scale and a bias of
/// `scale_type`. `None` if it is packed already, or its rows do not divide into groups of whole words.
///
/// Codes are the nearest to the weights for scale and bias as stored: the bias is a group's smallest weight, its largest
/// one has the largest code.
pub fn quantize(raw: &RawMatrix, bits: u32, group_size: usize, scale_type: FloatType) -> Option<RawMatrix> {
    let MatrixFormat::Plain(float) = raw.format else { return None };
    let whole = group_size > 0
        && raw.cols.is_multiple_of(group_size)
        && (raw.cols * bits as usize).is_multiple_of(32);
    if !whole || !(1..=8).contains(&bits) {
        return None;
    }
    let format = MatrixFormat::Affine { bits, group_size, scale_type };
    let mut out = RawMatrix { format, weight: Vec::new(), scales: Vec::new(), biases: Vec::new(), ..*raw };
    let mut row = vec![0.0; raw.cols];
    let mut codes = vec![0; raw.cols];
    let steps = ((1_u32 << bits) - 1) as f32;
    let largest = steps + 0.5;
    for packed in raw.weight.chunks_exact(raw.cols * float.size()) {
        decode_floats(float, packed, &mut row);
        for (group, codes) in row.chunks_exact(group_size).zip(codes.chunks_exact_mut(group_size)) {
            let (min, max) = extremes(group);
            let bias = encode_float(scale_type, min, &mut out.biases);
            let scale = encode_float(scale_type, (max - bias) / steps, &mut out.scales);
            for (weight, code) in group.iter().zip(codes) {
                // The nearest: it is not negative but for rounding. A scale of 0 gives NaN, which becomes code 0.
                let steps = (weight - bias) / scale + 0.5;
                *code = if steps > largest { largest } else { steps } as u8;
            }
        }
        pack_row(bits, &codes, &mut out.weight);
    }
    Some(out)
}

/// The smallest and the largest of some weights. Several at a time, in no order, so that vectors can do it.
fn extremes(group: &[f32]) -> (f32, f32) {
    let (mut min, mut max) = ([f32::INFINITY; 8], [f32::NEG_INFINITY; 8]);
    let (eights, rest) = group.as_chunks::<8>();
    for eight in eights {
        for n in 0..8 {
            min[n] = if eight[n] < min[n] { eight[n] } else { min[n] };
            max[n] = if eight[n] > max[n] { eight[n] } else { max[n] };
        }
    }
    let least = min.into_iter().chain(rest.iter().copied()).fold(f32::INFINITY, f32::min);
    (least, max.into_iter().chain(rest.iter().copied()).fold(f32::NEG_INFINITY, f32::max))
}

/// Appends a float in its type; returns the value that it has there.
fn encode_float(float: FloatType, value: f32, out: &mut Vec<u8>) -> f32 {
    match float {
        FloatType::F32 => {
            out.extend(value.to_le_bytes());
            value
        }
        FloatType::F16 => {
            let value = f16::from_f32(value);
            out.extend(value.to_le_bytes());
            value.to_f32()
        }
        FloatType::Bf16 => {
            let value = bf16::from_f32(value);
            out.extend(value.to_le_bytes());
            value.to_f32()
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

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
    fn quantised_weights_are_half_a_step_away_at_most() {
        let weights: Vec<f32> = (0..256).map(|i| ((i * 37 % 101) as f32 / 101.0 - 0.4) * 0.05).collect();
        let raw = |weights: &[f32]| RawMatrix {
            rows: 2,
            cols: 128,
            format: MatrixFormat::Plain(FloatType::F32),
            weight: bytemuck::cast_slice(weights).to_vec(),
            scales: Vec::new(),
            biases: Vec::new(),
            multiplier: 1.0,
        };
        for (bits, group_size, scale_type) in [
            (8, 64, FloatType::F16),
            (4, 32, FloatType::F16),
            (4, 32, FloatType::Bf16),
            (8, 64, FloatType::F32),
            (3, 32, FloatType::F32),
        ] {
            let packed = quantize(&raw(&weights), bits, group_size, scale_type).unwrap();
            let mut codes = vec![0; 256];
            unpack_row(bits, &packed.weight, &mut codes);
            let groups = 256 / group_size;
            let (mut scales, mut biases) = (vec![0.0; groups], vec![0.0; groups]);
            decode_floats(scale_type, &packed.scales, &mut scales);
            decode_floats(scale_type, &packed.biases, &mut biases);
            for (i, weight) in weights.iter().enumerate() {
                let (scale, bias) = (scales[i / group_size], biases[i / group_size]);
                let value = f32::from(codes[i]) * scale + bias;
                // At a group's ends the rounding of scale and bias shows too.
                let rounding = if scale_type == FloatType::F32 { 1e-7 } else { 0.05 * 2.0_f32.powi(-8) };
                assert!(
                    (value - weight).abs() <= 0.501 * scale + rounding,
                    "{bits} {weight} {value} {scale}"
                );
            }
        }
        // What all is the same needs no scale, and what is packed stays.
        let flat = quantize(&raw(&[0.25; 256]), 8, 64, FloatType::F16).unwrap();
        assert!(flat.weight.iter().all(|code| *code == 0));
        assert_eq!(quantize(&flat, 4, 32, FloatType::F16), None);
        assert_eq!(quantize(&raw(&weights), 8, 48, FloatType::F16), None);
    }

    proptest! {
        #[test]
        fn packed_codes_are_read_again(bits in 1..=8_u32, words in 1..6_usize, seed in any::<u64>()) {
            let mask = ((1_u16 << bits) - 1) as u8;
            let codes: Vec<u8> = (0..32 * words).map(|i| (seed.rotate_left(i as u32) as u8) & mask).collect();
            let mut packed = Vec::new();
            pack_row(bits, &codes, &mut packed);
            let mut read = vec![0; codes.len()];
            unpack_row(bits, &packed, &mut read);
            prop_assert_eq!(read, codes);
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
