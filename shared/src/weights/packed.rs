//! The tensors that together hold one matrix, or a stack of matrices: found by name, checked against the shape the
//! model wants, number format told from what is stored. Must not know the model's parts.

use std::{collections::HashSet, ops::Range};

use crate::config::{MlxMode, MlxQuantization, Quantization};

use super::{
    checkpoint::{Checkpoint, TensorInfo},
    header::Dtype,
    inventory::{FloatType, GlobalScale, GlobalScaleRule, MatrixFormat, MatrixSource, Slice, VectorSource},
    names,
    report::{InventoryError, MisshapenTensor, MissingTensor, UnexpectedTensor, UnsupportedTensor},
};

/// Looks tensors up, remembers which were used, and notes every fault.
pub(super) struct Finder<'a> {
    checkpoint: &'a Checkpoint,
    quantization: &'a Quantization,
    used: HashSet<&'a str>,
    error: InventoryError,
}

/// `count` matrices of `[rows, cols]`, one behind the other in each of their tensors.
#[derive(Debug)]
pub(super) struct Packed {
    name: String,
    count: usize,
    rows: usize,
    cols: usize,
    format: MatrixFormat,
    weight: Slice,
    scales: Option<Slice>,
    biases: Option<Slice>,
    global: Option<Global>,
}

#[derive(Debug)]
struct Global {
    slice: Slice,
    /// One for all matrices, or one each.
    each: bool,
    rule: GlobalScaleRule,
}

/// What is wanted: a stack of `count`, or one matrix without a leading dimension.
#[derive(Clone, Copy, Debug)]
pub(super) struct Want {
    pub(super) count: Option<usize>,
    pub(super) rows: usize,
    pub(super) cols: usize,
}

impl Want {
    pub(super) const fn one(rows: usize, cols: usize) -> Self {
        Self { count: None, rows, cols }
    }

    /// Shape of a tensor with `last` elements a row.
    fn shape(self, last: usize) -> Vec<usize> {
        self.count.into_iter().chain([self.rows, last]).collect()
    }
}

impl Packed {
    /// Rows `rows` of matrix `n`.
    pub(super) fn matrix(&self, n: usize, rows: Range<usize>) -> MatrixSource {
        let part = |slice: Slice| {
            let row = slice.len / (self.count * self.rows) as u64;
            let first = (n * self.rows + rows.start) as u64;
            Slice { offset: slice.offset + first * row, len: rows.len() as u64 * row, ..slice }
        };
        MatrixSource {
            name: self.name.clone(),
            rows: rows.len(),
            cols: self.cols,
            format: self.format,
            weight: part(self.weight),
            scales: self.scales.map(part),
            biases: self.biases.map(part),
            global_scale: self.global.as_ref().map(|global| GlobalScale {
                slice: Slice {
                    offset: global.slice.offset + if global.each { 4 * n as u64 } else { 0 },
                    len: 4,
                    ..global.slice
                },
                rule: global.rule,
            }),
        }
    }
}

impl<'a> Finder<'a> {
    pub(super) fn new(checkpoint: &'a Checkpoint, quantization: &'a Quantization) -> Self {
        let error = InventoryError { dir: checkpoint.dir().to_owned(), ..InventoryError::default() };
        Self { checkpoint, quantization, used: HashSet::new(), error }
    }

    /// The faults, tensors that nobody asked for among them unless `keep` lets them pass.
    pub(super) fn finish(mut self, keep: impl Fn(&str) -> bool) -> InventoryError {
        let unused = self.checkpoint.tensors().filter(|(name, _)| !self.used.contains(name) && !keep(name));
        self.error.unexpected = unused
            .map(|(_, info)| UnexpectedTensor { name: info.stored_name.clone(), found: found(info) })
            .collect();
        self.error.unexpected.sort_by(|a, b| a.name.cmp(&b.name));
        self.error
    }

    /// Whether a matrix, or part of one, is stored under `stem`.
    pub(super) fn has(&self, stem: &str) -> bool {
        const SIGNS: [&str; 5] = ["weight", "weight_packed", "scales", "weight_scale", "weight_global_scale"];
        self.checkpoint.get(stem).is_some()
            || SIGNS.iter().any(|sign| self.checkpoint.get(&format!("{stem}.{sign}")).is_some())
    }

    /// One matrix under the first of `stems` that is there.
    pub(super) fn matrix(&mut self, stems: &[String], rows: usize, cols: usize) -> Option<MatrixSource> {
        let stem = stems.iter().find(|stem| self.has(stem)).or_else(|| stems.first())?;
        Some(self.packed(stem, Want::one(rows, cols), "weight")?.matrix(0, 0..rows))
    }

    /// A float vector under the first of `names` that is there. Absent: noted when `required`.
    pub(super) fn vector(&mut self, names: &[String], len: usize, required: bool) -> Option<VectorSource> {
        let Some(name) = names.iter().find(|name| self.checkpoint.get(name).is_some()) else {
            if required {
                self.missing(names.first()?, &FLOATS, &[len]);
            }
            return None;
        };
        let info = self.tensor(name, &FLOATS, &[len])?;
        Some(VectorSource {
            name: info.stored_name.clone(),
            len,
            float: float_type(info.dtype)?,
            slice: info.slice,
        })
    }

    /// The matrices under `stem`. If nothing is there, `stem.absent` is noted as missing.
    pub(super) fn packed(&mut self, stem: &str, want: Want, absent: &str) -> Option<Packed> {
        let at = |suffix: &str| self.checkpoint.get(&format!("{stem}.{suffix}"));
        let dtype = |suffix: &str| at(suffix).map(|info| info.dtype);
        let has_scales = at("scales").is_some();
        let unsupported = match (dtype("weight_packed"), dtype("weight")) {
            (Some(Dtype::I32), _) => Some(PACK_QUANTIZED),
            (Some(_), _)
                if at("weight_global_scale").is_none()
                    && at("weight_scale").is_some_and(|s| matches!(s.dtype, Dtype::U8 | Dtype::F8_E8M0)) =>
            {
                Some(MXFP4_PACKED)
            }
            (None, None) if at("weight_shape").is_some() => Some(PACK_QUANTIZED),
            (None, Some(_)) if at("weight_scale_2").is_some() => Some(MODELOPT),
            (None, Some(Dtype::F8_E4M3 | Dtype::F8_E5M2)) => Some(FP8),
            (None, Some(Dtype::I8)) => Some(INT8),
            _ => None,
        };
        if let Some(format) = unsupported {
            self.refuse(stem, format);
            return None;
        }
        let found = if dtype("weight_packed").is_some() || at("weight_global_scale").is_some() {
            self.compressed(stem, want)
        } else if has_scales || dtype("weight") == Some(Dtype::U32) {
            self.mlx(stem, want)
        } else if dtype("weight").is_some() {
            self.plain(&format!("{stem}.weight"), want)
        } else if self.checkpoint.get(stem).is_some() {
            // transformers' stacked parameters have no `.weight`.
            self.plain(stem, want)
        } else {
            let (dtypes, last): (&[Dtype], _) = match absent {
                "weight_packed" => (&[Dtype::U8], want.cols / 2),
                _ => (&FLOATS, want.cols),
            };
            self.missing(&format!("{stem}.{absent}"), dtypes, &want.shape(last));
            None
        };
        if found.is_none() {
            // One fault is enough: the matrix's other tensors are not unexpected.
            self.claim(stem);
        }
        found
    }

    fn plain(&mut self, name: &str, want: Want) -> Option<Packed> {
        let info = self.tensor(name, &FLOATS, &want.shape(want.cols))?;
        Some(Packed {
            name: info.stored_name.clone(),
            count: want.count.unwrap_or(1),
            rows: want.rows,
            cols: want.cols,
            format: MatrixFormat::Plain(float_type(info.dtype)?),
            weight: info.slice,
            scales: None,
            biases: None,
            global: None,
        })
    }

    /// compressed-tensors `nvfp4-pack-quantized`.
    fn compressed(&mut self, stem: &str, want: Want) -> Option<Packed> {
        let weight =
            self.tensor(&format!("{stem}.weight_packed"), &[Dtype::U8], &want.shape(want.cols.div_ceil(2)));
        let scales = self.tensor(
            &format!("{stem}.weight_scale"),
            &[Dtype::F8_E4M3],
            &want.shape(want.cols.div_ceil(NVFP4_GROUP)),
        );
        let name = format!("{stem}.weight_global_scale");
        let global = match self.checkpoint.get(&name) {
            Some(_) => self.global(&name, want, GlobalScaleRule::Divide),
            None => {
                self.missing(&name, &[Dtype::F32], &[want.count.unwrap_or(1)]);
                None
            }
        };
        let weight = weight?;
        if !want.cols.is_multiple_of(NVFP4_GROUP) {
            self.misshapen(weight, format!("a width that {NVFP4_GROUP} divides, not {}", want.cols));
            return None;
        }
        Some(Packed {
            name: weight.stored_name.clone(),
            count: want.count.unwrap_or(1),
            rows: want.rows,
            cols: want.cols,
            format: MatrixFormat::Nvfp4,
            weight: weight.slice,
            scales: Some(scales?.slice),
            biases: None,
            global: Some(global?),
        })
    }

    /// MLX quantised: bits and group follow from the width that the model wants and the widths stored.
    fn mlx(&mut self, stem: &str, want: Want) -> Option<Packed> {
        let at = |suffix: &str| format!("{stem}.{suffix}");
        let last = |info: Option<&TensorInfo>| info.and_then(|i| i.shape.last().copied()).unwrap_or(1);
        let stored = (self.checkpoint.get(&at("weight")), self.checkpoint.get(&at("scales")));
        let (words, groups) = (last(stored.0), last(stored.1));

        let weight = self.tensor(&at("weight"), &[Dtype::U32], &want.shape(words));
        let mut scale_types = FLOATS.to_vec();
        scale_types.extend(E4M3_BYTES);
        let scales = self.tensor(&at("scales"), &scale_types, &want.shape(groups));
        let (weight, scales) = (weight?, scales?);

        let bits = exact(words * 32, want.cols).and_then(|bits| u32::try_from(bits).ok());
        let group_size = exact(want.cols, groups);
        let Some(bits) = bits.filter(|bits| AFFINE_BITS.contains(bits)) else {
            let widths: Vec<_> =
                AFFINE_BITS.iter().map(|bits| (want.cols * *bits as usize / 32).to_string()).collect();
            let expected = format!("U32 with {} words a row", widths.join(" or "));
            self.misshapen(weight, expected);
            return None;
        };
        let (mode, format) = if E4M3_BYTES.contains(&scales.dtype) {
            match (bits, group_size) {
                (4, Some(NVFP4_GROUP)) => (MlxMode::Nvfp4, MatrixFormat::Nvfp4),
                (4 | 8, Some(32)) => {
                    self.refuse(stem, if bits == 4 { MXFP4 } else { MXFP8 });
                    return None;
                }
                _ => {
                    let expected = describe(&[Dtype::U8], &want.shape(want.cols / NVFP4_GROUP));
                    self.misshapen(scales, expected);
                    return None;
                }
            }
        } else {
            let Some(group_size) = group_size.filter(|group| AFFINE_GROUPS.contains(group)) else {
                let expected: Vec<_> =
                    AFFINE_GROUPS.iter().map(|group| format!("{}", want.cols / group)).collect();
                self.misshapen(scales, format!("{} scales a row", expected.join(" or ")));
                return None;
            };
            let scale_type = float_type(scales.dtype)?;
            (MlxMode::Affine, MatrixFormat::Affine { bits, group_size, scale_type })
        };
        let biases = match mode {
            MlxMode::Affine => Some(self.tensor(&at("biases"), &[scales.dtype], &want.shape(groups))?.slice),
            MlxMode::Nvfp4 => None,
        };
        let global = match self.checkpoint.get(&at("global_scale")) {
            Some(_) if mode == MlxMode::Nvfp4 => {
                Some(self.global(&at("global_scale"), want, GlobalScaleRule::MlxOver2688)?)
            }
            _ => None,
        };
        let solved = MlxQuantization { mode, bits, group_size: group_size? };
        self.compare_with_table(stem, weight, solved)?;
        Some(Packed {
            name: weight.stored_name.clone(),
            count: want.count.unwrap_or(1),
            rows: want.rows,
            cols: want.cols,
            format,
            weight: weight.slice,
            scales: Some(scales.slice),
            biases,
            global,
        })
    }

    /// An entry that names this module must agree with what is stored. The table's default need not: it is what a
    /// converter wished for, not what it did to every module.
    fn compare_with_table(&mut self, stem: &str, weight: &TensorInfo, solved: MlxQuantization) -> Option<()> {
        let table = self.quantization;
        let mut paths = names::quantization_paths(stem).into_iter();
        let named = paths.find_map(|path| table.overrides.get_key_value(&path));
        let Some((path, entry)) = named else { return Some(()) };
        let expected = match entry {
            Some(entry) if *entry == solved => return Some(()),
            Some(entry) => format!("{}, as quantization.{path} says", quantization(*entry)),
            None => format!("unquantised, as quantization.{path} says"),
        };
        self.error.misshaped.push(MisshapenTensor {
            name: weight.stored_name.clone(),
            expected,
            found: format!("{}, {}", found(weight), quantization(solved)),
        });
        None
    }

    fn global(&mut self, name: &str, want: Want, rule: GlobalScaleRule) -> Option<Global> {
        let count = want.count.unwrap_or(1);
        let single = self.checkpoint.get(name).is_some_and(|info| info.shape.iter().product::<usize>() == 1);
        let info = self.tensor(name, &[Dtype::F32], &[if single { 1 } else { count }])?;
        Some(Global { slice: info.slice, each: !single, rule })
    }

    /// The tensor, marked as used, if it is of one of `dtypes` and of `shape` (dimensions of 1 aside, which move no
    /// byte: published g_proj weights carry one).
    fn tensor(&mut self, name: &str, dtypes: &[Dtype], shape: &[usize]) -> Option<&'a TensorInfo> {
        let Some((key, info)) = self.checkpoint.get_key_value(name) else {
            self.missing(name, dtypes, shape);
            return None;
        };
        self.used.insert(key);
        let squeeze = |shape: &[usize]| shape.iter().copied().filter(|dim| *dim != 1).collect::<Vec<_>>();
        if dtypes.contains(&info.dtype) && squeeze(&info.shape) == squeeze(shape) {
            return Some(info);
        }
        self.misshapen(info, describe(dtypes, shape));
        None
    }

    fn missing(&mut self, name: &str, dtypes: &[Dtype], shape: &[usize]) {
        self.error.missing.push(MissingTensor { name: name.to_owned(), expected: describe(dtypes, shape) });
    }

    fn misshapen(&mut self, info: &TensorInfo, expected: String) {
        let name = info.stored_name.clone();
        self.error.misshaped.push(MisshapenTensor { name, expected, found: found(info) });
    }

    /// Notes an unsupported matrix once, under its weight's name.
    fn refuse(&mut self, stem: &str, format: &'static str) {
        let name = self.claim(stem).map_or_else(|| stem.to_owned(), |info| info.stored_name.clone());
        self.error.unsupported.push(UnsupportedTensor { name, format });
    }

    /// Marks every tensor that a matrix can consist of as used; returns the first.
    fn claim(&mut self, stem: &str) -> Option<&'a TensorInfo> {
        let mut first = None;
        for part in PARTS {
            if let Some((key, info)) = self.checkpoint.get_key_value(&format!("{stem}.{part}")) {
                self.used.insert(key);
                first = first.or(Some(info));
            }
        }
        first
    }
}

/// `a / b` if that is whole.
fn exact(a: usize, b: usize) -> Option<usize> {
    (b != 0 && a.is_multiple_of(b)).then(|| a / b)
}

fn float_type(dtype: Dtype) -> Option<FloatType> {
    match dtype {
        Dtype::F16 => Some(FloatType::F16),
        Dtype::BF16 => Some(FloatType::Bf16),
        Dtype::F32 => Some(FloatType::F32),
        _ => None,
    }
}

fn describe(dtypes: &[Dtype], shape: &[usize]) -> String {
    let names: Vec<_> = dtypes.iter().map(|dtype| dtype.name()).collect();
    format!("{} {shape:?}", names.join("/"))
}

fn found(info: &TensorInfo) -> String {
    format!("{} {:?}", info.dtype, info.shape)
}

fn quantization(entry: MlxQuantization) -> String {
    let mode = match entry.mode {
        MlxMode::Affine => "affine",
        MlxMode::Nvfp4 => "nvfp4",
    };
    format!("{mode} {} bits in groups of {}", entry.bits, entry.group_size)
}

/// What can follow a matrix's stem, in whatever format.
const PARTS: [&str; 12] = [
    "weight",
    "weight_packed",
    "weight_scale",
    "weight_shape",
    "weight_global_scale",
    "weight_zero_point",
    "weight_g_idx",
    "weight_scale_inv",
    "weight_scale_2",
    "scales",
    "biases",
    "global_scale",
];
const FLOATS: [Dtype; 3] = [Dtype::BF16, Dtype::F16, Dtype::F32];
/// E4M3 bytes go by either name.
const E4M3_BYTES: [Dtype; 2] = [Dtype::U8, Dtype::F8_E4M3];
const AFFINE_BITS: [u32; 6] = [2, 3, 4, 5, 6, 8];
const AFFINE_GROUPS: [usize; 3] = [32, 64, 128];
/// Columns that share an E4M3 scale.
const NVFP4_GROUP: usize = 16;

const FP8: &str = "FP8 weights (float-quantized, F8 `weight`), which are not read";
const PACK_QUANTIZED: &str =
    "INT4/INT8 pack-quantized (I32 `weight_packed`, `weight_shape`), which is not read";
const INT8: &str = "INT8 weights (int-quantized), which are not read";
const MODELOPT: &str = "ModelOpt NVFP4 (`weight_scale_2`), which is not read";
const MXFP4_PACKED: &str = "compressed-tensors mxfp4-pack-quantized, which is not read";
const MXFP4: &str = "MLX mxfp4, which is not read";
const MXFP8: &str = "MLX mxfp8, which is not read";
