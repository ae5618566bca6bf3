//! Every format on every instruction set of this machine, against a decoder and sums of its own in f64.

use half::{bf16, f16};

use super::lines::Lines;
use super::nibbles::{self, NibbleRows};
use super::rows::SplitBuffer;
use super::split::{self, CodeRows};
use super::*;
use crate::weights::inventory::{FloatType, MatrixFormat};

/// Numbers that look like noise, the same in every run.
struct Noise(u64);

impl Noise {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    fn bytes(&mut self, count: usize) -> Vec<u8> {
        (0..count).map(|_| (self.next() >> 33) as u8).collect()
    }

    /// About normal, variance 1.
    fn normal(&mut self) -> f32 {
        let sum: f64 = (0..12).map(|_| (self.next() >> 11) as f64 / (1_u64 << 53) as f64).sum();
        (sum - 6.0) as f32
    }
}

/// A matrix's bytes, and its weights as the format defines them, in f64.
struct Case {
    shape: (usize, usize),
    format: MatrixFormat,
    weight: Vec<u8>,
    scales: Vec<u8>,
    biases: Vec<u8>,
    multiplier: f32,
    exact: Vec<f64>,
}

impl Case {
    fn new(format: MatrixFormat, rows: usize, cols: usize) -> Self {
        let mut noise = Noise(0x9e37_79b9_7f4a_7c15 ^ (rows * 1000 + cols) as u64);
        match format {
            MatrixFormat::Plain(float) => Self::plain(float, rows, cols, &mut noise),
            // From 0 over the subnormals to 448.
            MatrixFormat::Nvfp4 => Self::nvfp4(rows, cols, &mut noise, |byte| byte % 0x7f),
            MatrixFormat::Affine { .. } => Self::affine(format, rows, cols, &mut noise),
        }
    }

    fn plain(float: FloatType, rows: usize, cols: usize, noise: &mut Noise) -> Self {
        let values: Vec<f32> = (0..rows * cols).map(|_| noise.normal()).collect();
        let weight: Vec<u8> = values.iter().flat_map(|value| bytes_of(float, *value)).collect();
        let exact = values.iter().map(|value| number(float, &bytes_of(float, *value))).collect();
        let format = MatrixFormat::Plain(float);
        Self { shape: (rows, cols), format, weight, scales: vec![], biases: vec![], multiplier: 1.0, exact }
    }

    fn nvfp4(rows: usize, cols: usize, noise: &mut Noise, scale: fn(u8) -> u8) -> Self {
        let weight = noise.bytes(rows * cols / 2);
        let scales: Vec<u8> = noise.bytes(rows * cols / 16).into_iter().map(scale).collect();
        let multiplier = 0.003_7_f32;
        let exact = (0..rows * cols).map(|at| {
            let code = weight[at / 2] >> (4 * (at % 2)) & 15;
            let magnitude = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0][usize::from(code & 7)];
            let sign = if code & 8 == 0 { 1.0 } else { -1.0 };
            sign * magnitude * e4m3(scales[at / 16]) * f64::from(multiplier)
        });
        let exact = exact.collect();
        let format = MatrixFormat::Nvfp4;
        Self { shape: (rows, cols), format, weight, scales, biases: vec![], multiplier, exact }
    }

    fn affine(format: MatrixFormat, rows: usize, cols: usize, noise: &mut Noise) -> Self {
        let MatrixFormat::Affine { bits, group_size, scale_type } = format else { unreachable!() };
        let weight = noise.bytes(rows * cols * bits as usize / 8);
        let part = |noise: &mut Noise, factor: f32| -> Vec<u8> {
            let values = (0..rows * cols / group_size).map(|_| bytes_of(scale_type, factor * noise.normal()));
            values.flatten().collect()
        };
        let (scales, biases) = (part(noise, 0.1), part(noise, 1.0));
        let size = scale_type.size();
        let exact = (0..rows * cols).map(|at| {
            let (row, bit) = (at / cols, at % cols * bits as usize);
            let row = &weight[row * cols * bits as usize / 8..];
            let code = (0..bits as usize)
                .fold(0, |code, n| code | u32::from(row[(bit + n) / 8] >> ((bit + n) % 8) & 1) << n);
            let of = |part: &[u8]| number(scale_type, &part[at / group_size * size..][..size]);
            f64::from(code) * of(&scales) + of(&biases)
        });
        let exact = exact.collect();
        Self { shape: (rows, cols), format, weight, scales, biases, multiplier: 1.0, exact }
    }

    /// The same codes and scales of an affine matrix with biases of -8 · scale, about what weights around zero get.
    fn around_zero(mut self) -> Self {
        let MatrixFormat::Affine { group_size, scale_type, .. } = self.format else { unreachable!() };
        let numbers = |part: &[u8]| -> Vec<f64> {
            part.chunks(scale_type.size()).map(|bytes| number(scale_type, bytes)).collect()
        };
        let (scales, biases) = (numbers(&self.scales), numbers(&self.biases));
        self.biases = scales.iter().flat_map(|scale| bytes_of(scale_type, (-8.0 * scale) as f32)).collect();
        for (at, exact) in self.exact.iter_mut().enumerate() {
            *exact += -8.0 * scales[at / group_size] - biases[at / group_size];
        }
        self
    }

    fn matrix(&self, isa: Isa) -> CpuMatrix {
        let [weight, scales, biases] =
            [&self.weight, &self.scales, &self.biases].map(|part| part.clone().into());
        CpuMatrix::new(self.shape, self.format, weight, scales, biases, self.multiplier).unwrap().on(isa)
    }

    /// `x · Wᵀ`.
    fn product(&self, x: &[f32]) -> Vec<f64> {
        let cols = self.shape.1;
        let dot = |x: &[f32], w: &[f64]| x.iter().zip(w).map(|(x, w)| f64::from(*x) * w).sum();
        x.chunks(cols).flat_map(|x| self.exact.chunks(cols).map(move |w| dot(x, w))).collect()
    }
}

fn bytes_of(float: FloatType, value: f32) -> Vec<u8> {
    match float {
        FloatType::F32 => value.to_le_bytes().to_vec(),
        FloatType::F16 => f16::from_f32(value).to_le_bytes().to_vec(),
        FloatType::Bf16 => bf16::from_f32(value).to_le_bytes().to_vec(),
    }
}

fn number(float: FloatType, bytes: &[u8]) -> f64 {
    match float {
        FloatType::F32 => f64::from(f32::from_le_bytes(bytes.try_into().unwrap())),
        FloatType::F16 => f16::from_le_bytes(bytes.try_into().unwrap()).to_f64(),
        FloatType::Bf16 => bf16::from_le_bytes(bytes.try_into().unwrap()).to_f64(),
    }
}

/// By its definition.
fn e4m3(byte: u8) -> f64 {
    let (exponent, mantissa) = (i32::from(byte >> 3 & 15), f64::from(byte & 7) / 8.0);
    let size = match exponent {
        15 if byte & 7 == 7 => f64::NAN,
        0 => mantissa * 2_f64.powi(-6),
        _ => (1.0 + mantissa) * 2_f64.powi(exponent - 7),
    };
    if byte & 0x80 == 0 { size } else { -size }
}

/// Rows of normal noise: the first one plain, the next with a few large elements, the third all zero, and so on.
fn rows(count: usize, cols: usize) -> Vec<f32> {
    let mut noise = Noise(0x2545_f491_4f6c_dd1d);
    let row = |kind: usize| -> Vec<f32> {
        let mut row: Vec<f32> = (0..cols).map(|_| noise.normal()).collect();
        match kind % 3 {
            0 => {}
            1 => (0..8).for_each(|n| row[(n * 37 + 5) % cols] *= 50.0),
            _ => row.fill(0.0),
        }
        row
    };
    (0..count).flat_map(row).collect()
}

/// Root mean square of the error over that of the exact result.
fn relative_rms(found: &[f32], exact: &[f64]) -> f64 {
    assert_eq!(found.len(), exact.len());
    let off: f64 = found.iter().zip(exact).map(|(found, exact)| (f64::from(*found) - exact).powi(2)).sum();
    (off / exact.iter().map(|exact| exact * exact).sum::<f64>()).sqrt()
}

/// Columns that every one of [`formats`] allows.
const WIDTH: usize = 768;

fn formats() -> Vec<MatrixFormat> {
    let mut all: Vec<MatrixFormat> =
        [FloatType::Bf16, FloatType::F16, FloatType::F32].map(MatrixFormat::Plain).into();
    all.push(MatrixFormat::Nvfp4);
    for (bits, group_size, scale_type) in [
        (4, 32, FloatType::Bf16),
        (4, 32, FloatType::F16),
        (4, 64, FloatType::F16),
        (4, 64, FloatType::Bf16),
        (4, 128, FloatType::Bf16),
        (4, 256, FloatType::F32),
        (4, 48, FloatType::F32),
        (8, 32, FloatType::F32),
        (8, 64, FloatType::Bf16),
        (2, 64, FloatType::F32),
        (3, 32, FloatType::F32),
        (5, 32, FloatType::Bf16),
        (6, 64, FloatType::F32),
    ] {
        all.push(MatrixFormat::Affine { bits, group_size, scale_type });
    }
    all
}

/// Columns that the format allows: whole vectors and not.
fn shapes(format: MatrixFormat) -> Vec<(usize, usize)> {
    match format {
        // 600 columns is more than a strip of the panel, and no whole vectors.
        MatrixFormat::Plain(_) => vec![(33, 128), (7, 33), (21, 600), (64, 1040)],
        MatrixFormat::Nvfp4 => vec![(33, 128), (7, 16), (21, 240), (64, 1040), (130, 144)],
        MatrixFormat::Affine { group_size, .. } => {
            vec![(33, 2 * group_size), (7, group_size), (21, 9 * group_size)]
        }
    }
}

#[test]
fn every_format_on_every_instruction_set_agrees_with_f64() {
    let pool = Pool::new(2);
    assert!(Isa::available().contains(&Isa::best()));
    for format in formats() {
        for (rows_of_w, cols) in shapes(format) {
            let case = Case::new(format, rows_of_w, cols);
            for n in [1, 2, 3, 4, 5, 6, 7, 13, 16, 64] {
                let x = rows(n, cols);
                let exact = case.product(&x);
                for isa in Isa::available() {
                    let mut out = vec![f32::NAN; n * rows_of_w];
                    case.matrix(isa).matmul(&pool, &x, &mut out);
                    let rms = relative_rms(&out, &exact);
                    let what = format!("{isa:?}, {format:?} [{rows_of_w}, {cols}], {n} rows");
                    assert!(rms <= 1e-6, "{what}: {rms:e}");
                    for (out, x) in out.chunks(rows_of_w).zip(x.chunks(cols)) {
                        assert!(x.iter().any(|x| *x != 0.0) || out.iter().all(|y| *y == 0.0), "{what}: zero");
                    }
                }
            }
        }
    }
}

/// Also where `matmul` would not take this way: the portable form is NEON's twin.
#[test]
fn products_of_bytes_agree_with_f64_on_every_instruction_set() {
    for (rows_of_w, cols) in shapes(MatrixFormat::Nvfp4) {
        let case = Case::new(MatrixFormat::Nvfp4, rows_of_w, cols);
        let x = rows(4, cols);
        for isa in Isa::available() {
            let mut buffer = SplitBuffer::default();
            let target = buffer.take(4, cols);
            for (row, x) in (0..).zip(x.chunks(cols)) {
                // In two parts, as tiles of inner values come.
                let half = cols / 32 * 16;
                // SAFETY: the buffer is this test's.
                unsafe {
                    target.write(isa, row, half..cols, &x[half..]);
                    target.write(isa, row, 0..half, &x[..half]);
                }
            }
            let w = CodeRows { cols, codes: &case.weight, scales: &case.scales, multiplier: case.multiplier };
            let mut out = vec![f32::NAN; 3 * rows_of_w];
            split::multiply(isa, w, buffer.rows(cols), &[3, 0, 1], &mut out, rows_of_w);
            let exact = [3, 0, 1].into_iter().flat_map(|row| case.product(&x[row * cols..][..cols]));
            let rms = relative_rms(&out, &exact.collect::<Vec<f64>>());
            assert!(rms <= 1e-6, "{isa:?} [{rows_of_w}, {cols}]: {rms:e}");
        }
    }
}

/// The same for affine codes of four bits, also with rows that are mostly of one sign.
#[test]
fn products_of_nibbles_agree_with_f64_on_every_instruction_set() {
    for format in formats() {
        let MatrixFormat::Affine { bits: 4, group_size, scale_type } = format else { continue };
        if !nibbles::fits(group_size) {
            continue;
        }
        for (rows_of_w, cols) in shapes(format) {
            let case = Case::new(format, rows_of_w, cols).around_zero();
            let mut x = rows(4, cols);
            x[3 * cols..].iter_mut().for_each(|x| *x = 1.0 + *x / 64.0);
            for isa in Isa::available() {
                let mut buffer = SplitBuffer::default();
                let target = buffer.take(4, cols);
                for (row, x) in (0..).zip(x.chunks(cols)) {
                    // In two parts, of which a group may have some of both.
                    let half = cols / 32 * 16;
                    // SAFETY: the buffer is this test's.
                    unsafe {
                        target.write(isa, row, half..cols, &x[half..]);
                        target.write(isa, row, 0..half, &x[..half]);
                    }
                }
                let w = NibbleRows {
                    cols,
                    group_size,
                    scale_type,
                    codes: &case.weight,
                    scales: &case.scales,
                    biases: &case.biases,
                    multiplier: 1.0,
                };
                let mut out = vec![f32::NAN; 3 * rows_of_w];
                let which = [3_u32, 0, 1];
                let mut scratch = Lines::default();
                nibbles::multiply(isa, w, buffer.rows(cols), &which, &mut out, rows_of_w, &mut scratch);
                for (out, row) in out.chunks(rows_of_w).zip(which) {
                    let rms = relative_rms(out, &case.product(&x[row as usize * cols..][..cols]));
                    assert!(rms <= 5e-7, "{isa:?}, {format:?} [{rows_of_w}, {cols}], row {row}: {rms:e}");
                }
            }
        }
    }
}

#[test]
fn negative_and_nan_scales_are_what_they_say() {
    let pool = Pool::new(1);
    let mut noise = Noise(99);
    let mut case = Case::nvfp4(20, 160, &mut noise, |byte| if byte & 0x7f == 0x7f { 0x80 } else { byte });
    let x = rows(2, 160);
    for isa in Isa::available() {
        let mut out = vec![0.0; 2 * 20];
        case.matrix(isa).matmul(&pool, &x, &mut out);
        assert!(relative_rms(&out, &case.product(&x)) <= 1e-6, "{isa:?}");
    }
    case.scales[3 * 10 + 4] = 0x7f;
    for isa in Isa::available() {
        let mut out = vec![0.0; 20];
        case.matrix(isa).matmul(&pool, &x[..160], &mut out);
        let nan: Vec<usize> = (0..20).filter(|n| out[*n].is_nan()).collect();
        assert_eq!(nan, [3], "{isa:?}");
    }
}

#[test]
fn what_is_not_a_number_is_not_hidden() {
    let pool = Pool::new(2);
    for format in formats() {
        let (rows_of_w, cols) = (20, WIDTH);
        let case = Case::new(format, rows_of_w, cols);
        for n in [1, 3, 9] {
            for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
                let mut x = rows(n, cols);
                let last = (n - 1) * cols;
                x[last + 77] = bad;
                for isa in Isa::available() {
                    let mut out = vec![0.0; n * rows_of_w];
                    case.matrix(isa).matmul(&pool, &x, &mut out);
                    let (good, spoiled) = out.split_at((n - 1) * rows_of_w);
                    let what = format!("{isa:?}, {format:?}, {n} rows, {bad}");
                    assert!(good.iter().all(|y| y.is_finite()), "{what}");
                    assert!(spoiled.iter().all(|y| !y.is_finite()), "{what}: {spoiled:?}");
                }
            }
        }
    }
}

#[test]
fn numbers_of_any_size_keep_their_digits() {
    let pool = Pool::new(1);
    let affine = MatrixFormat::Affine { bits: 4, group_size: 32, scale_type: FloatType::F16 };
    for case in [Case::new(MatrixFormat::Nvfp4, 20, 256), Case::new(affine, 20, 256)] {
        for size in [1e-26_f32, 1e-12, 1e12, 1e30] {
            let x: Vec<f32> = rows(1, 256).iter().map(|x| x * size).collect();
            for isa in Isa::available() {
                let mut out = vec![0.0; 20];
                case.matrix(isa).matmul(&pool, &x, &mut out);
                let rms = relative_rms(&out, &case.product(&x));
                assert!(rms <= 1e-6, "{isa:?}, {:?} {size:e}: {rms:e}", case.format);
            }
        }
    }
}

#[test]
fn the_same_rows_give_the_same_bits_on_any_number_of_threads_and_in_any_company() {
    for format in formats() {
        let case = Case::new(format, 130, WIDTH);
        let x = rows(40, WIDTH);
        for isa in Isa::available() {
            let matrix = case.matrix(isa);
            let product = |threads: usize, x: &[f32]| {
                let mut out = vec![0.0; x.len() / WIDTH * 130];
                matrix.matmul(&Pool::new(threads), x, &mut out);
                out
            };
            let all = product(1, &x);
            assert_eq!(product(3, &x), all, "{isa:?} {format:?}");
            let company = product(2, &x[WIDTH..][..9 * WIDTH]);
            assert_eq!(company, all[130..][..9 * 130], "{isa:?} {format:?}");
            let few = product(2, &x[..2 * WIDTH]);
            assert_eq!(product(3, &x[..WIDTH]), few[..130], "{isa:?} {format:?}");
            // With few rows these are multiplied as integers.
            let integers = match format {
                MatrixFormat::Nvfp4 => true,
                MatrixFormat::Affine { bits, group_size, .. } => bits == 4 && nibbles::fits(group_size),
                MatrixFormat::Plain(_) => false,
            };
            if !integers {
                assert_eq!(few, all[..2 * 130], "{isa:?} {format:?}");
            }
        }
    }
}

#[test]
fn products_together_give_the_bits_of_products_apart() {
    // All routes at once, small matrices and one that many threads share.
    let heights = [130, 7, 48, 300, 1, 64];
    let cases: Vec<Case> = formats()
        .into_iter()
        .zip(heights.into_iter().cycle())
        .map(|(format, rows_of_w)| Case::new(format, rows_of_w, WIDTH))
        .collect();
    for isa in Isa::available() {
        let matrices: Vec<CpuMatrix> = cases.iter().map(|case| case.matrix(isa)).collect();
        let all: Vec<&CpuMatrix> = matrices.iter().collect();
        for n in [1, 2, 3, 9] {
            let x = rows(n, WIDTH);
            let apart: Vec<f32> = matrices
                .iter()
                .flat_map(|matrix| {
                    let mut out = vec![f32::NAN; n * matrix.rows()];
                    matrix.matmul(&Pool::new(1), &x, &mut out);
                    out
                })
                .collect();
            for threads in [1, 3] {
                let mut together = vec![f32::NAN; apart.len()];
                matmul_all(&all, &Pool::new(threads), &x, &mut together);
                assert_eq!(together, apart, "{isa:?}, {n} rows, {threads} threads");
            }
        }
    }
    matmul_all(&[], &Pool::new(1), &[], &mut []);
}

#[test]
fn parts_that_do_not_belong_together_are_refused_in_numbers() {
    let new = |format, cols, weight: usize, scales: usize| {
        let parts = [weight, scales, 0].map(|len| vec![0_u8; len].into());
        let [weight, scales, biases] = parts;
        CpuMatrix::new((4, cols), format, weight, scales, biases, 1.0).map(|_| ()).map_err(|e| e.to_string())
    };
    let plain = MatrixFormat::Plain(FloatType::Bf16);
    assert_eq!(new(plain, 8, 64, 0), Ok(()));
    assert_eq!(new(MatrixFormat::Nvfp4, 32, 64, 8), Ok(()));
    let short = new(plain, 8, 63, 0).unwrap_err();
    assert_eq!(short, "a matrix [4, 8] in Plain(Bf16) has 64 bytes of weights, not 63");
    assert!(new(plain, 8, 64, 1).unwrap_err().contains("0 bytes of scales, not 1"));
    assert!(new(MatrixFormat::Nvfp4, 32, 64, 9).unwrap_err().contains("8 bytes of scales, not 9"));
    assert!(new(MatrixFormat::Nvfp4, 24, 48, 4).is_err());
    let affine = MatrixFormat::Affine { bits: 4, group_size: 0, scale_type: FloatType::F32 };
    assert!(new(affine, 32, 64, 0).is_err());
}
