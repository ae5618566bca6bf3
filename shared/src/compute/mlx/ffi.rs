//! The calls into MLX's C interface that mlx-rs 0.33 does not offer: products with quantised matrices in a mode
//! other than affine, arrays from untyped bytes, what a GPU says of itself, and graphs as text for tests. Checked on
//! this side, so that callers need no `unsafe`.
//!
//! Not used: `mlx_array_new_data_managed`, an array over its caller's memory. MLX's CPU allocator takes no foreign memory:
//! it copies, and gives the original back after that, so that both are held at once just the same. Metal's takes memory
//! that begins at a page. There it would save one projection's stack while a layer is loaded, a third of a layer.
#![allow(unsafe_code)]

use std::ffi::CStr;

use mlx_rs::error::Exception;
use mlx_rs::{Array, Dtype, Stream};

use crate::config::MlxMode;

/// A quantised operand: codes, scales, and biases where the mode has them.
#[derive(Clone, Copy)]
pub(super) struct Operand<'a> {
    pub(super) codes: &'a Array,
    pub(super) scales: &'a Array,
    pub(super) biases: Option<&'a Array>,
    pub(super) mode: MlxMode,
    pub(super) group_size: i32,
    pub(super) bits: i32,
}

/// `x · dequantise(w)ᵀ` for `x` `[.., k]` and `w` `[n, k]`.
pub(super) fn quantized_matmul(x: &Array, w: &Operand<'_>) -> Result<Array, Exception> {
    let stream = Stream::thread_local_or_default();
    // SAFETY: every handle belongs to a live Array for the whole call; `mode` is a static C string; `out` is a
    // fresh handle that MLX fills.
    checked("quantized_matmul", |out| unsafe {
        mlx_sys::mlx_quantized_matmul(
            out,
            x.as_ptr(),
            w.codes.as_ptr(),
            w.scales.as_ptr(),
            handle_or_null(w.biases),
            true,
            some(w.group_size),
            some(w.bits),
            mode_name(w.mode).as_ptr(),
            stream.as_ptr(),
        )
    })
}

/// `x[lhs] · dequantise(w[rhs])ᵀ` for `x` `[rows, 1, k]`, `w` `[experts, n, k]`, indices `[slots]` → `[slots, 1, n]`.
///
/// `sorted` promises that `rhs` ascends.
pub(super) fn gather_qmm(
    x: &Array,
    w: &Operand<'_>,
    lhs: &Array,
    rhs: &Array,
    sorted: bool,
) -> Result<Array, Exception> {
    let stream = Stream::thread_local_or_default();
    // SAFETY: as in `quantized_matmul`.
    checked("gather_qmm", |out| unsafe {
        mlx_sys::mlx_gather_qmm(
            out,
            x.as_ptr(),
            w.codes.as_ptr(),
            w.scales.as_ptr(),
            handle_or_null(w.biases),
            lhs.as_ptr(),
            rhs.as_ptr(),
            true,
            some(w.group_size),
            some(w.bits),
            mode_name(w.mode).as_ptr(),
            sorted,
            stream.as_ptr(),
        )
    })
}

/// The rows of `w` as floats of `dtype`.
pub(super) fn dequantize(w: &Operand<'_>, dtype: Dtype) -> Result<Array, Exception> {
    let stream = Stream::thread_local_or_default();
    let dtype = mlx_sys::mlx_optional_dtype { value: dtype.into(), has_value: true };
    // SAFETY: as in `quantized_matmul`; a null global scale means none.
    checked("dequantize", |out| unsafe {
        mlx_sys::mlx_dequantize(
            out,
            w.codes.as_ptr(),
            w.scales.as_ptr(),
            handle_or_null(w.biases),
            some(w.group_size),
            some(w.bits),
            mode_name(w.mode).as_ptr(),
            mlx_sys::mlx_array_new(),
            dtype,
            stream.as_ptr(),
        )
    })
}

/// Copies `bytes` into an array. `bytes` must hold exactly `shape` elements of `dtype`, little-endian, row-major.
pub(super) fn array_from_bytes(bytes: &[u8], shape: &[i32], dtype: Dtype) -> Result<Array, Exception> {
    let elements = shape.iter().try_fold(1_usize, |n, &d| n.checked_mul(usize::try_from(d).ok()?));
    let needed = elements.and_then(|n| n.checked_mul(element_size(dtype)));
    if needed != Some(bytes.len()) {
        return Err(Exception::custom(format!("{} bytes for an array of {shape:?} {dtype:?}", bytes.len())));
    }
    // SAFETY: the length was just checked; MLX copies the bytes before it returns, and asks for no alignment.
    Ok(unsafe { Array::from_raw_data(bytes.as_ptr().cast(), shape, dtype) })
}

/// Bytes that the GPU's driver recommends to have in use at most; `None` without a GPU, or one that tells. MLX must have
/// been called before, so that its errors are values.
pub(super) fn recommended_working_set() -> Option<usize> {
    // SAFETY: every handle is made here, filled by MLX, read while it lives, and freed once; the key is a static C string.
    unsafe {
        let gpu = mlx_sys::mlx_device_new_type(mlx_sys::mlx_device_type__MLX_GPU, 0);
        let mut info = mlx_sys::mlx_device_info_new();
        let (mut is_there, mut bytes) = (false, 0);
        let told = mlx_sys::mlx_device_is_available(&raw mut is_there, gpu) == 0
            && is_there
            && mlx_sys::mlx_device_info_get(&raw mut info, gpu) == 0
            && mlx_sys::mlx_device_info_get_size(&raw mut bytes, info, WORKING_SET.as_ptr()) == 0;
        mlx_sys::mlx_device_info_free(info);
        mlx_sys::mlx_device_free(gpu);
        told.then_some(bytes)
    }
}

/// What is yet to be computed for `array`, an operation a line.
#[cfg(test)]
pub(super) fn graph(array: &Array) -> Vec<String> {
    use std::ffi::{CString, c_char, c_int};

    unsafe extern "C" {
        fn fopen(path: *const c_char, mode: *const c_char) -> *mut mlx_sys::FILE;
        fn fclose(file: *mut mlx_sys::FILE) -> c_int;
    }

    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("graph");
    let name = CString::new(path.to_str().unwrap()).unwrap();
    // SAFETY: the file is opened and closed here; every handle is made here and freed once, the array's stays its own.
    unsafe {
        let file = fopen(name.as_ptr(), c"w".as_ptr());
        assert!(!file.is_null());
        let (namer, outputs) =
            (mlx_sys::mlx_node_namer_new(), mlx_sys::mlx_vector_array_new_value(array.as_ptr()));
        assert_eq!(mlx_sys::mlx_print_graph(file, namer, outputs), 0);
        mlx_sys::mlx_vector_array_free(outputs);
        mlx_sys::mlx_node_namer_free(namer);
        assert_eq!(fclose(file), 0);
    }
    let text = std::fs::read_to_string(path).unwrap();
    // Before them it says what goes in and comes out.
    text.lines().filter(|line| line.contains(" -> ")).map(str::to_owned).collect()
}

fn checked(
    operation: &'static str,
    call: impl FnOnce(*mut mlx_sys::mlx_array) -> i32,
) -> Result<Array, Exception> {
    // SAFETY: makes an empty handle; nothing is read.
    let mut out = unsafe { mlx_sys::mlx_array_new() };
    let status = call(&raw mut out);
    // SAFETY: `out` is an independently owned handle, filled or still empty; Array frees it either way.
    let out = unsafe { Array::from_ptr(out) };
    if status == 0 { Ok(out) } else { Err(Exception::custom(format!("MLX {operation} failed"))) }
}

fn handle_or_null(array: Option<&Array>) -> mlx_sys::mlx_array {
    // SAFETY: an empty handle owns nothing, so that not freeing it leaks nothing.
    array.map_or_else(|| unsafe { mlx_sys::mlx_array_new() }, Array::as_ptr)
}

fn some(value: i32) -> mlx_sys::mlx_optional_int {
    mlx_sys::mlx_optional_int { value, has_value: true }
}

fn mode_name(mode: MlxMode) -> &'static CStr {
    match mode {
        MlxMode::Affine => c"affine",
        MlxMode::Nvfp4 => c"nvfp4",
    }
}

fn element_size(dtype: Dtype) -> usize {
    match dtype {
        Dtype::Bool | Dtype::Uint8 | Dtype::Int8 => 1,
        Dtype::Uint16 | Dtype::Int16 | Dtype::Float16 | Dtype::Bfloat16 => 2,
        Dtype::Uint32 | Dtype::Int32 | Dtype::Float32 => 4,
        Dtype::Uint64 | Dtype::Int64 | Dtype::Float64 | Dtype::Complex64 => 8,
    }
}

/// MLX's name for the recommendation, in bytes.
const WORKING_SET: &CStr = c"max_recommended_working_set_size";
