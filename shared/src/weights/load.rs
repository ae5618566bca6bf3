//! Matrices and stacks of experts as bytes, exactly as stored. Must not know the model's parts.

use super::{
    checkpoint::{Checkpoint, CheckpointError},
    inventory::{GlobalScaleRule, MatrixFormat, MatrixSource, Slice},
};

/// One matrix's bytes.
#[derive(Clone, Debug, PartialEq)]
pub struct RawMatrix {
    /// Output features.
    pub rows: usize,
    /// Input features.
    pub cols: usize,
    /// Number format of `weight`.
    pub format: MatrixFormat,
    /// Weights or packed codes, row-major, little-endian.
    pub weight: Vec<u8>,
    /// Scales, `[rows, groups]`; empty in plain formats.
    pub scales: Vec<u8>,
    /// Biases, `[rows, groups]`; empty but in affine formats.
    pub biases: Vec<u8>,
    /// Factor on every weight: the NVFP4 global scale, ready to multiply with; 1 where there is none.
    pub multiplier: f32,
}

/// Matrices of one shape and format, one behind the other.
#[derive(Clone, Debug, PartialEq)]
pub struct RawStack {
    /// Matrices.
    pub count: usize,
    /// Output features of each.
    pub rows: usize,
    /// Input features of each.
    pub cols: usize,
    /// Number format of `weight`.
    pub format: MatrixFormat,
    /// `[count, rows, packed columns]`, little-endian.
    pub weight: Vec<u8>,
    /// `[count, rows, groups]`; empty in plain formats.
    pub scales: Vec<u8>,
    /// `[count, rows, groups]`; empty but in affine formats.
    pub biases: Vec<u8>,
    /// `[count]`, as [`RawMatrix::multiplier`].
    pub multipliers: Vec<f32>,
}

impl RawMatrix {
    /// Bytes held.
    pub fn bytes(&self) -> u64 {
        (self.weight.len() + self.scales.len() + self.biases.len()) as u64
    }
}

impl RawStack {
    /// Bytes held.
    pub fn bytes(&self) -> u64 {
        (self.weight.len() + self.scales.len() + self.biases.len() + 4 * self.multipliers.len()) as u64
    }
}

impl MatrixSource {
    /// Where the weight lies, its scales and its biases.
    pub fn slices(&self) -> impl Iterator<Item = Slice> {
        [Some(self.weight), self.scales, self.biases].into_iter().flatten()
    }

    /// Bytes of the weight, its scales and its biases.
    pub fn bytes(&self) -> u64 {
        self.slices().map(|slice| slice.len).sum()
    }
}

/// Reads one matrix.
pub fn read_matrix(checkpoint: &Checkpoint, source: &MatrixSource) -> Result<RawMatrix, CheckpointError> {
    let optional = |slice: Option<Slice>| slice.map_or(Ok(Vec::new()), |slice| checkpoint.read_vec(slice));
    Ok(RawMatrix {
        rows: source.rows,
        cols: source.cols,
        format: source.format,
        weight: checkpoint.read_vec(source.weight)?,
        scales: optional(source.scales)?,
        biases: optional(source.biases)?,
        multiplier: multiplier(checkpoint, source)?,
    })
}

/// Reads matrices of one shape and format into one allocation per part, in the given order.
pub fn stack_experts(
    checkpoint: &Checkpoint,
    sources: &[&MatrixSource],
) -> Result<RawStack, CheckpointError> {
    stack_experts_with_progress(checkpoint, sources, &mut |_| ())
}

/// [`stack_experts`], telling `progress` the bytes read since it was last called.
pub fn stack_experts_with_progress(
    checkpoint: &Checkpoint,
    sources: &[&MatrixSource],
    progress: &mut dyn FnMut(u64),
) -> Result<RawStack, CheckpointError> {
    let Some(first) = sources.first() else {
        return Err(CheckpointError::Unusable { name: "stack".into(), reason: "no matrix to stack".into() });
    };
    for source in sources {
        let same = |s: &MatrixSource| (s.rows, s.cols, s.format, s.weight.len);
        if same(source) != same(first) {
            return Err(CheckpointError::Unusable {
                name: source.name.clone(),
                reason: format!(
                    "[{}, {}] {:?} does not stack with {}, [{}, {}] {:?}",
                    source.rows, source.cols, source.format, first.name, first.rows, first.cols, first.format
                ),
            });
        }
    }
    let mut part = |slice: fn(&MatrixSource) -> Option<Slice>| {
        let slices: Vec<_> = sources.iter().filter_map(|source| slice(source)).collect();
        read_all(checkpoint, &slices, progress)
    };
    Ok(RawStack {
        count: sources.len(),
        rows: first.rows,
        cols: first.cols,
        format: first.format,
        weight: part(|source| Some(source.weight))?,
        scales: part(|source| source.scales)?,
        biases: part(|source| source.biases)?,
        multipliers: sources.iter().map(|source| multiplier(checkpoint, source)).collect::<Result<_, _>>()?,
    })
}

/// The factor on every weight of a matrix, read and turned around as its rule says.
pub fn multiplier(checkpoint: &Checkpoint, source: &MatrixSource) -> Result<f32, CheckpointError> {
    let Some(global) = source.global_scale else { return Ok(1.0) };
    let mut bytes = [0; 4];
    checkpoint.read(global.slice, &mut bytes)?;
    let stored = f32::from_le_bytes(bytes);
    let multiplier = match global.rule {
        GlobalScaleRule::Divide => 1.0 / stored,
        GlobalScaleRule::MlxOver2688 => stored / MLX_UNIT,
    };
    if multiplier.is_finite() && stored.is_finite() {
        return Ok(multiplier);
    }
    Err(CheckpointError::Unusable {
        name: source.name.clone(),
        reason: format!("its global scale is {stored}, which gives no finite multiplier"),
    })
}

/// Reads slices one behind the other; neighbours in a file become one read, in steps that `progress` can show.
fn read_all(
    checkpoint: &Checkpoint,
    slices: &[Slice],
    progress: &mut dyn FnMut(u64),
) -> Result<Vec<u8>, CheckpointError> {
    let mut runs: Vec<Slice> = Vec::new();
    for slice in slices {
        match runs.last_mut() {
            Some(run) if run.file == slice.file && run.offset + run.len == slice.offset => {
                run.len += slice.len
            }
            _ => runs.push(*slice),
        }
    }
    let total: u64 = runs.iter().map(|run| run.len).sum();
    let mut bytes = vec![0; usize::try_from(total).unwrap_or(usize::MAX)];
    let mut rest = bytes.as_mut_slice();
    for run in runs {
        let mut done = 0;
        while done < run.len {
            let len = STEP.min(run.len - done);
            let (now, later) = rest.split_at_mut(len as usize);
            checkpoint.read(Slice { offset: run.offset + done, len, ..run }, now)?;
            progress(len);
            rest = later;
            done += len;
        }
    }
    Ok(bytes)
}

/// mlx-lm's `global_scale` counts in units of the largest product of an E4M3 scale (448) and an E2M1 code (6).
const MLX_UNIT: f32 = 2688.0;
/// Bytes per read: some 3 ms of a Mac's disk.
const STEP: u64 = 16 << 20;
