//! The small operations against plain arithmetic in f64.

#[path = "common/rng.rs"]
mod rng;

use outpost_kernels::{Path, Pool, Rotation, add, gelu_tanh_mul, rms_norm, rope, silu_mul};
use rng::Rng;

fn pools() -> Vec<Pool> {
    Path::available().into_iter().map(|path| Pool::with_path(2, path)).collect()
}

fn near(found: &[f32], expected: impl Iterator<Item = f64>, what: &str) {
    for (index, (a, b)) in found.iter().zip(expected).enumerate() {
        assert!((f64::from(*a) - b).abs() <= 2e-6 * b.abs().max(1.0), "{what} {index}: {a} and not {b}");
    }
}

#[test]
fn norms() {
    let mut rng = Rng(1);
    for (rows, width) in [(1, 576), (3, 7), (100, 333), (40, 1536), (0, 16)] {
        let x: Vec<f32> = (0..rows * width).map(|_| rng.normal()).collect();
        let weight: Vec<f32> = (0..width).map(|_| rng.normal()).collect();
        for pool in pools() {
            let mut out = vec![0f32; x.len()];
            rms_norm(&pool, &x, &weight, 1e-5, &mut out);
            let expected = x.chunks(width).flat_map(|row| {
                let mean = row.iter().map(|x| f64::from(*x).powi(2)).sum::<f64>() / width as f64;
                let scale = 1.0 / (mean + 1e-5).sqrt();
                row.iter().zip(&weight).map(move |(x, w)| f64::from(*x) * scale * f64::from(*w)).collect::<Vec<_>>()
            });
            near(&out, expected, "norm");
        }
    }
}

#[test]
fn gates_and_sums() {
    let mut rng = Rng(2);
    for count in [0, 1, 17, 1536, 50_001] {
        let mut x: Vec<f32> = (0..count).map(|_| rng.normal() * 5.0).collect();
        for (x, edge) in x.iter_mut().zip([0.0, 100.0, -100.0, 1e30, -1e30]) {
            *x = edge;
        }
        let y: Vec<f32> = (0..count).map(|_| rng.normal()).collect();
        let both = || x.iter().zip(&y).map(|(x, y)| (f64::from(*x), f64::from(*y)));
        for pool in pools() {
            let mut out = x.clone();
            add(&pool, &mut out, &y);
            near(&out, both().map(|(x, y)| x + y), "sum");
            let mut out = x.clone();
            silu_mul(&pool, &mut out, &y);
            near(&out, both().map(|(x, y)| x / (1.0 + (-x).exp()) * y), "silu");
            let mut out = x.clone();
            gelu_tanh_mul(&pool, &mut out, &y);
            let inner = |x: f64| (2.0 / std::f64::consts::PI).sqrt() * (x + 0.044715 * x * x * x);
            near(&out, both().map(|(x, y)| 0.5 * x * (1.0 + inner(x).tanh()) * y), "gelu");
        }
    }
}

#[test]
fn nan_stays_nan() {
    for pool in pools() {
        for gate in [silu_mul, gelu_tanh_mul] {
            let mut x = [1.0, f32::NAN, 2.0];
            gate(&pool, &mut x, &[1.0; 3]);
            assert_eq!(x.map(f32::is_nan), [false, true, false]);
        }
    }
}

#[test]
fn rotations() {
    let mut rng = Rng(3);
    for (rows, heads, width, pairs) in [(1, 9, 64, 32), (50, 3, 80, 16), (7, 1, 6, 3)] {
        let x: Vec<f32> = (0..rows * heads * width).map(|_| rng.normal()).collect();
        let angles: Vec<f32> = (0..rows * pairs).map(|_| rng.normal()).collect();
        let (cos, sin): (Vec<_>, Vec<_>) = angles.iter().map(|angle| (angle.cos(), angle.sin())).unzip();
        for style in [Rotation::Halves, Rotation::Interleaved] {
            let mut expected: Vec<f64> = x.iter().map(|x| f64::from(*x)).collect();
            for (index, head) in expected.chunks_mut(width).enumerate() {
                for pair in 0..pairs {
                    let (a, b) =
                        if style == Rotation::Halves { (pair, pair + pairs) } else { (2 * pair, 2 * pair + 1) };
                    let at = index / heads * pairs + pair;
                    let (cos, sin) = (f64::from(cos[at]), f64::from(sin[at]));
                    (head[a], head[b]) = (head[a] * cos - head[b] * sin, head[a] * sin + head[b] * cos);
                }
            }
            for pool in pools() {
                let mut out = x.clone();
                rope(&pool, &mut out, heads, width, style, &cos, &sin);
                near(&out, expected.iter().copied(), "rope");
            }
        }
    }
}
