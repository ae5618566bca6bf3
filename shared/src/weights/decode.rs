//! A matrix's bytes as f32. Exact: every format's values are f32 values, but affine ones, which round once a step.

use half::{bf16, f16};

use super::{
    affine,
    checkpoint::{Checkpoint, CheckpointError},
    inventory::{FloatType, MatrixFormat, VectorSource},
    load::RawMatrix,
    nvfp4,
};

/// Reads a vector as f32.
pub fn read_vector(checkpoint: &Checkpoint, source: &VectorSource) -> Result<Vec<f32>, CheckpointError> {
    let mut out = vec![0.0; source.len];
    decode_floats(source.float, &checkpoint.read_vec(source.slice)?, &mut out);
    Ok(out)
}

/// Every weight, `[rows, cols]`, global scale included.
pub fn decode_matrix(matrix: &RawMatrix) -> Vec<f32> {
    let mut out = vec![0.0; matrix.rows * matrix.cols];
    decode_unscaled(matrix, &mut out);
    if matrix.multiplier != 1.0 {
        out.iter_mut().for_each(|w| *w *= matrix.multiplier);
    }
    out
}

/// Every weight, `[rows, cols]`, without the global scale.
///
/// # Panics
/// If `out` or the matrix's parts have other lengths than its shape says.
pub fn decode_unscaled(matrix: &RawMatrix, out: &mut [f32]) {
    let RawMatrix { rows, cols, weight, scales, biases, .. } = matrix;
    assert_eq!(out.len(), rows * cols, "length of a decoded matrix");
    if out.is_empty() {
        return;
    }
    let row_bytes = |part: &[u8]| part.len() / rows;
    match matrix.format {
        MatrixFormat::Plain(float) => decode_floats(float, weight, out),
        MatrixFormat::Nvfp4 => {
            let codes = weight.chunks_exact(row_bytes(weight));
            let scales = scales.chunks_exact(row_bytes(scales));
            for ((codes, scales), out) in codes.zip(scales).zip(out.chunks_exact_mut(*cols)) {
                nvfp4::decode_row(codes, scales, out);
            }
        }
        MatrixFormat::Affine { bits, group_size, scale_type } => {
            let groups = cols / group_size;
            let (mut scale, mut bias) = (vec![0.0; groups], vec![0.0; groups]);
            let mut codes = vec![0; *cols];
            let packed = weight.chunks_exact(row_bytes(weight));
            let parts = scales.chunks_exact(row_bytes(scales)).zip(biases.chunks_exact(row_bytes(biases)));
            for ((packed, (scales, biases)), out) in packed.zip(parts).zip(out.chunks_exact_mut(*cols)) {
                decode_floats(scale_type, scales, &mut scale);
                decode_floats(scale_type, biases, &mut bias);
                affine::unpack_row(bits, packed, &mut codes);
                for ((out, codes), (scale, bias)) in out
                    .chunks_exact_mut(group_size)
                    .zip(codes.chunks_exact(group_size))
                    .zip(scale.iter().zip(&bias))
                {
                    for (out, code) in out.iter_mut().zip(codes) {
                        *out = f32::from(*code) * scale + bias;
                    }
                }
            }
        }
    }
}

/// Little-endian floats as f32.
///
/// # Panics
/// If `bytes` is not `out.len()` floats.
pub fn decode_floats(float: FloatType, bytes: &[u8], out: &mut [f32]) {
    assert_eq!(bytes.len(), out.len() * float.size(), "length of a float tensor");
    match float {
        FloatType::F32 => {
            for (out, raw) in out.iter_mut().zip(bytes.as_chunks::<4>().0) {
                *out = f32::from_le_bytes(*raw);
            }
        }
        FloatType::Bf16 => {
            for (out, raw) in out.iter_mut().zip(bytes.as_chunks::<2>().0) {
                *out = bf16::from_le_bytes(*raw).to_f32();
            }
        }
        FloatType::F16 => {
            for (out, raw) in out.iter_mut().zip(bytes.as_chunks::<2>().0) {
                *out = f16::from_le_bytes(*raw).to_f32();
            }
        }
    }
}
