//! What is computed of each element by itself, or of each row: the steps between products.

use super::Isa;
use super::attention::exp;
use super::simd::{Simd, for_isa};

/// `silu(gate) · up = gate / (1 + e^-gate) · up` to `gate`.
///
/// # Panics
/// If the lengths differ.
pub fn silu_mul(isa: Isa, gate: &mut [f32], up: &[f32]) {
    assert_eq!(gate.len(), up.len(), "a gate for each element");
    silu(isa, gate, up);
}

/// RMSNorm of rows as long as `weight`: `x / √(mean(x²) + eps) · weight` to `out`.
///
/// # Panics
/// If `x` and `out` are not as many whole rows.
pub fn rms_norm(isa: Isa, x: &[f32], weight: &[f32], eps: f32, out: &mut [f32]) {
    assert!(x.len() == out.len() && x.len().is_multiple_of(weight.len().max(1)), "whole rows to norm");
    if !weight.is_empty() {
        norm(isa, x, weight, eps, out);
    }
}

for_isa! {
    fn silu(gate: &mut [f32], up: &[f32]) = silu_with
}

#[inline(always)]
fn silu_with<S: Simd>(s: S, gate: &mut [f32], up: &[f32]) {
    let whole = gate.len() - gate.len() % S::LANES;
    for at in (0..whole).step_by(S::LANES) {
        // SAFETY: a whole vector of both, which are as long.
        unsafe {
            let to = gate.as_mut_ptr().add(at);
            s.store(to, each(s, s.load(to), s.load(up.as_ptr().add(at))));
        }
    }
    if whole < gate.len() {
        let (mut last, mut last_up) = ([0.0; 16], [0.0; 16]);
        let left = gate.len() - whole;
        last[..left].copy_from_slice(&gate[whole..]);
        last_up[..left].copy_from_slice(&up[whole..]);
        // SAFETY: sixteen elements are a vector or more.
        unsafe { s.store(last.as_mut_ptr(), each(s, s.load(last.as_ptr()), s.load(last_up.as_ptr()))) };
        // Of narrower vectors the rest may be several.
        for at in (S::LANES..left).step_by(S::LANES) {
            // SAFETY: `at` is below sixteen and a multiple of the vector's length, which divides it.
            unsafe {
                let to = last.as_mut_ptr().add(at);
                s.store(to, each(s, s.load(to), s.load(last_up.as_ptr().add(at))));
            }
        }
        gate[whole..].copy_from_slice(&last[..left]);
    }
}

#[inline(always)]
fn each<S: Simd>(s: S, gate: S::Floats, up: S::Floats) -> S::Floats {
    let one = s.splat(1.0);
    // Below -LARGEST it is 0 to f32: what it is at -LARGEST, 4e-36.
    let gate = s.at_least(gate, s.splat(-LARGEST));
    let minus = s.at_least(s.mul(gate, s.splat(-1.0)), s.splat(-LARGEST));
    s.mul(s.div(gate, s.fma(exp(s, minus), one, one)), up)
}

for_isa! {
    fn norm(x: &[f32], weight: &[f32], eps: f32, out: &mut [f32]) = norm_with
}

#[inline(always)]
fn norm_with<S: Simd>(s: S, x: &[f32], weight: &[f32], eps: f32, out: &mut [f32]) {
    let width = weight.len();
    for (x, out) in x.chunks_exact(width).zip(out.chunks_exact_mut(width)) {
        let (mut sums, whole) = (s.zero(), width - width % S::LANES);
        for at in (0..whole).step_by(S::LANES) {
            // SAFETY: a whole vector of the row.
            let x = unsafe { s.load(x.as_ptr().add(at)) };
            sums = s.fma(x, x, sums);
        }
        let mut sum = s.sum(sums);
        for x in &x[whole..] {
            sum += x * x;
        }
        let scale = 1.0 / (sum / width as f32 + eps).sqrt();
        for ((out, x), weight) in out.iter_mut().zip(x).zip(weight) {
            *out = x * scale * weight;
        }
    }
}

/// Largest exponent that [`exp`] takes.
const LARGEST: f32 = 86.0;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn silu_is_that_of_f64_whatever_the_length() {
        let gates = [-1e30, -200.0, -87.0, -20.0, -1.0, -1e-3, 0.0, 1e-3, 0.5, 3.0, 20.0, 87.0, 200.0, 1e30];
        for isa in Isa::available() {
            for len in [1, 3, 4, 7, 15, 16, 17, 40] {
                let gate: Vec<f32> = (0..len).map(|n| gates[n * 5 % gates.len()]).collect();
                let up: Vec<f32> = (0..len).map(|n| n as f32 * 0.3 - 2.0).collect();
                let mut found = gate.clone();
                silu_mul(isa, &mut found, &up);
                for ((found, gate), up) in found.iter().zip(&gate).zip(&up) {
                    let (gate, up) = (f64::from(*gate), f64::from(*up));
                    let exact = gate / (1.0 + (-gate).exp()) * up;
                    let off = (f64::from(*found) - exact).abs();
                    assert!(off <= 5e-7 * exact.abs() + 1e-34, "{isa:?} {gate}: {found} {exact}");
                }
            }
            let mut broken = [f32::NAN; 5];
            silu_mul(isa, &mut broken, &[1.0; 5]);
            assert!(broken.iter().all(|x| x.is_nan()), "{isa:?}");
        }
    }

    #[test]
    fn norm_is_that_of_f64() {
        for isa in Isa::available() {
            for width in [1, 5, 16, 33, 128, 2048] {
                let x: Vec<f32> = (0..3 * width).map(|n| ((n * 37 % 101) as f32 - 50.0) * 0.07).collect();
                let weight: Vec<f32> = (0..width).map(|n| 0.5 + (n % 7) as f32).collect();
                let mut out = vec![0.0; x.len()];
                rms_norm(isa, &x, &weight, 1e-6, &mut out);
                for (x, out) in x.chunks_exact(width).zip(out.chunks_exact(width)) {
                    let mean = x.iter().map(|x| f64::from(*x).powi(2)).sum::<f64>() / width as f64;
                    for ((x, w), out) in x.iter().zip(&weight).zip(out) {
                        let exact = f64::from(*x) / (mean + 1e-6).sqrt() * f64::from(*w);
                        assert!((f64::from(*out) - exact).abs() <= 1e-6 * exact.abs(), "{isa:?} {width}");
                    }
                }
            }
        }
    }
}
