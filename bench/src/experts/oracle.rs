//! SwiGLU experts in f64 from the checkpoint's own bytes: exact but for the last rounding of f64.

use std::thread;

use half::bf16;
use laguna_shared::weights::inventory::SwigluSource;
use laguna_shared::weights::nvfp4::{GROUP, decode_row};
use laguna_shared::weights::{Checkpoint, RawMatrix, read_matrix};

use crate::error::BenchError;
use crate::stats::ratio;

/// Adds `Σ weight · expert(x)` of each of the rows (bf16, `[rows, hidden]`) for one row of experts that all share.
///
/// # Errors
/// If a matrix cannot be read or is not NVFP4.
pub fn sums(
    checkpoint: &Checkpoint,
    experts: &[(&SwigluSource, f32)],
    rows: &[u8],
) -> Result<Vec<f64>, BenchError> {
    let x: Vec<f64> =
        rows.as_chunks::<2>().0.iter().map(|raw| f64::from(bf16::from_le_bytes(*raw).to_f32())).collect();
    let mut sums = vec![0.0; x.len()];
    for (source, weight) in experts {
        let read = |matrix| read_matrix(checkpoint, matrix).map_err(BenchError::failed);
        let (gate, up) = (product(&read(&source.gate)?, &x), product(&read(&source.up)?, &x));
        let inner: Vec<f64> = gate.iter().zip(&up).map(|(g, u)| g / (1.0 + (-g).exp()) * u).collect();
        for (sum, y) in sums.iter_mut().zip(product(&read(&source.down)?, &inner)) {
            *sum += f64::from(*weight) * y;
        }
    }
    Ok(sums)
}

/// Root mean square of what `values` are off, relative to the root mean square of what is exact.
pub fn relative_rms(values: &[f32], exact: &[f64]) -> f64 {
    let square = |x: f64| x * x;
    let off: f64 = values.iter().zip(exact).map(|(value, exact)| square(f64::from(*value) - exact)).sum();
    ratio(off, exact.iter().map(|exact| square(*exact)).sum()).sqrt()
}

/// `x · wᵀ`: `[n, cols]` → `[n, rows]`. Decoding a code and a scale to f32 is exact, and so is a product of two f32.
fn product(matrix: &RawMatrix, x: &[f64]) -> Vec<f64> {
    let (rows, cols) = (matrix.rows, matrix.cols);
    let count = x.len() / cols;
    let threads = thread::available_parallelism().map_or(1, usize::from);
    let part = rows.div_ceil(threads);
    let dots = |first: usize| {
        let mut w = vec![0.0; cols];
        let mut out = Vec::new();
        for row in first..rows.min(first + part) {
            let codes = &matrix.weight[row * cols / 2..][..cols / 2];
            let scales = &matrix.scales[row * cols / GROUP..][..cols / GROUP];
            decode_row(codes, scales, &mut w);
            out.extend(x.chunks_exact(cols).map(|x| dot(&w, x) * f64::from(matrix.multiplier)));
        }
        out
    };
    // `[rows, n]` in parts, then turned.
    let columns: Vec<f64> = thread::scope(|scope| {
        let dots = &dots;
        let parts: Vec<_> = (0..rows).step_by(part).map(|first| scope.spawn(move || dots(first))).collect();
        parts.into_iter().flat_map(|part| part.join().unwrap_or_default()).collect()
    });
    let mut out = vec![0.0; rows * count];
    for (row, dots) in columns.chunks_exact(count).enumerate() {
        for (n, dot) in dots.iter().enumerate() {
            out[n * rows + row] = *dot;
        }
    }
    out
}

fn dot(w: &[f32], x: &[f64]) -> f64 {
    let mut lanes = [0.0; 8];
    let ((w, w_rest), (x, x_rest)) = (w.as_chunks::<8>(), x.as_chunks::<8>());
    for (w, x) in w.iter().zip(x) {
        for ((lane, w), x) in lanes.iter_mut().zip(w).zip(x) {
            *lane += f64::from(*w) * x;
        }
    }
    lanes.iter().sum::<f64>() + w_rest.iter().zip(x_rest).map(|(w, x)| f64::from(*w) * x).sum::<f64>()
}

#[cfg(test)]
mod tests {
    use laguna_shared::weights::inventory::MatrixFormat;

    use super::*;

    #[test]
    fn a_product_by_hand() {
        // Codes 2, 4, 6 are 1, 2, 4; E4M3 byte 0x38 is 1.
        let mut weight = vec![0; 16];
        weight[0] = 0x42;
        weight[8] = 0x06;
        let matrix = RawMatrix {
            rows: 2,
            cols: 16,
            format: MatrixFormat::Nvfp4,
            weight,
            scales: vec![0x38; 2],
            biases: Vec::new(),
            multiplier: 0.5,
        };
        let mut x = vec![0.0; 32];
        (x[0], x[1], x[16]) = (3.0, 5.0, 7.0);
        assert_eq!(product(&matrix, &x), [6.5, 6.0, 3.5, 14.0]);
    }

    #[test]
    fn errors_are_relative() {
        assert_eq!(relative_rms(&[3.0, 4.0], &[3.0, 4.0]), 0.0);
        assert!((relative_rms(&[3.3, 4.4], &[3.0, 4.0]) - 0.1).abs() < 1e-6);
    }
}
