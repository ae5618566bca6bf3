//! Matrices of noise in each format.

use clap::ValueEnum;
use half::{bf16, f16};
use laguna_shared::compute::cpu::{CpuMatrix, Isa};
use laguna_shared::weights::inventory::{FloatType, MatrixFormat};
use laguna_shared::weights::nvfp4::GROUP;
use serde::Serialize;

use crate::error::BenchError;
use crate::synth::noise::Noise;

/// A weight format, as checkpoints and `--trunk-bits` have them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Format {
    /// bfloat16
    Bf16,
    /// Affine, 8 bits, groups of 64, bf16 scales
    Affine8,
    /// Affine, 4 bits, groups of 64, f16 scales: `--trunk-bits 4` with f32 activations
    Affine4,
    /// Affine, 4 bits, groups of 64, bf16 scales: MLX's own
    Affine4Mlx,
    /// NVFP4
    Nvfp4,
}

impl Format {
    const fn matrix(self) -> MatrixFormat {
        match self {
            Self::Bf16 => MatrixFormat::Plain(FloatType::Bf16),
            Self::Affine8 => MatrixFormat::Affine { bits: 8, group_size: 64, scale_type: FloatType::Bf16 },
            Self::Affine4 => MatrixFormat::Affine { bits: 4, group_size: 64, scale_type: FloatType::F16 },
            Self::Affine4Mlx => MatrixFormat::Affine { bits: 4, group_size: 64, scale_type: FloatType::Bf16 },
            Self::Nvfp4 => MatrixFormat::Nvfp4,
        }
    }

    /// Bytes of a row of weights, scales and biases included.
    pub const fn row_bytes(self, cols: usize) -> usize {
        let (weight, scales, biases) = self.parts(cols);
        weight + scales + biases
    }

    const fn parts(self, cols: usize) -> (usize, usize, usize) {
        match self.matrix() {
            MatrixFormat::Plain(float) => (cols * float.size(), 0, 0),
            MatrixFormat::Nvfp4 => (cols / 2, cols / GROUP, 0),
            MatrixFormat::Affine { bits, group_size, scale_type } => {
                let groups = cols / group_size * scale_type.size();
                (cols * bits as usize / 8, groups, groups)
            }
        }
    }

    /// A matrix of noise.
    ///
    /// # Errors
    /// If the columns do not divide into groups.
    pub fn noise(
        self,
        (rows, cols): (usize, usize),
        noise: &mut Noise,
        isa: Isa,
    ) -> Result<CpuMatrix, BenchError> {
        let format = self.matrix();
        let (weight, scales, biases) = self.parts(cols);
        let weight = match format {
            MatrixFormat::Plain(_) => floats(FloatType::Bf16, rows * weight / 2, noise),
            _ => (0..(rows * weight).div_ceil(8))
                .flat_map(|_| noise.next_u64().to_le_bytes())
                .take(rows * weight)
                .collect(),
        };
        let (scales, biases) = match format {
            MatrixFormat::Affine { scale_type, .. } => {
                let count = rows * scales / scale_type.size();
                (floats(scale_type, count, noise), floats(scale_type, count, noise))
            }
            // 0.5 to 1.9.
            _ => ((0..rows * scales).map(|_| 0x30 + noise.below(16) as u8).collect(), vec![0; rows * biases]),
        };
        let matrix = CpuMatrix::new((rows, cols), format, weight.into(), scales.into(), biases.into(), 1.0);
        Ok(matrix.map_err(BenchError::failed)?.on(isa))
    }
}

fn floats(float: FloatType, count: usize, noise: &mut Noise) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(count * float.size());
    for _ in 0..count {
        let value = noise.signed();
        match float {
            FloatType::F32 => bytes.extend(value.to_le_bytes()),
            FloatType::F16 => bytes.extend(f16::from_f32(value).to_le_bytes()),
            FloatType::Bf16 => bytes.extend(bf16::from_f32(value).to_le_bytes()),
        }
    }
    bytes
}
