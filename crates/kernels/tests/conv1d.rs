//! Convolutions over time and recurrences on every instruction set of this CPU, compared with f64 arithmetic.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

#[path = "common/rng.rs"]
mod rng;

use half::bf16;
use outpost_kernels::{
    ChannelActivation, Conv1d, Conv1dShape, DType, Error, GroupNorm, Isa, LstmRecurrence, Moments, Pool,
    ScaledActivation, leaky_relu,
};
use rng::Rng;

fn normal(rng: &mut Rng, count: usize) -> Vec<f32> {
    (0..count).map(|_| rng.normal()).collect()
}

fn below(rng: &mut Rng, limit: usize) -> usize {
    (rng.next() % limit as u64) as usize
}

struct Case {
    shape: Conv1dShape,
    length: usize,
    weights: Vec<f32>,
    bias: Vec<f32>,
    x: Vec<f32>,
}

impl Case {
    fn new(rng: &mut Rng) -> Self {
        let kernel = [1, 3, 5, 12][below(rng, 4)];
        let shape = Conv1dShape {
            inputs: 1 + below(rng, 40),
            outputs: 1 + below(rng, 40),
            kernel,
            stride: 1 + below(rng, 3),
            dilation: 1 + below(rng, 5),
            padding: [below(rng, 30), below(rng, 30)],
        };
        let length = (kernel - 1) * shape.dilation + 1 + below(rng, 60);
        let weights = normal(rng, shape.outputs * shape.inputs * kernel);
        let x = normal(rng, length * shape.inputs);
        Self { shape, length, weights, bias: normal(rng, shape.outputs), x }
    }

    /// Output `[step, output]` of the convolution of `x` in f64, and the sum of the magnitudes of its terms.
    fn reference(&self, x: &[f64], weight: impl Fn(f32) -> f64, step: usize, output: usize) -> (f64, f64) {
        let Conv1dShape { inputs, kernel, stride, dilation, padding, .. } = self.shape;
        let mut sums = (f64::from(self.bias[output]), 1.);
        for tap in 0..kernel {
            let Some(step) = (step * stride + tap * dilation).checked_sub(padding[0]) else { continue };
            if step >= self.length {
                continue;
            }
            for input in 0..inputs {
                let weight = weight(self.weights[(output * inputs + input) * kernel + tap]);
                let term = weight * x[step * inputs + input];
                sums = (sums.0 + term, sums.1 + term.abs());
            }
        }
        sums
    }

    fn check(&self, pool: &Pool, dtype: DType, activation: Option<ScaledActivation<'_>>, activated: &[f64]) {
        let bytes: Vec<u8> = match dtype {
            DType::BF16 => self.weights.iter().flat_map(|x| bf16::from_f32(*x).to_le_bytes()).collect(),
            _ => self.weights.iter().flat_map(|x| x.to_le_bytes()).collect(),
        };
        let weight = |x: f32| if dtype == DType::BF16 { f64::from(bf16::from_f32(x).to_f32()) } else { f64::from(x) };
        let conv = Conv1d::new(pool, dtype, self.shape, &bytes, Some(&self.bias)).unwrap();
        let (count, outputs) = (self.shape.output(self.length).unwrap(), self.shape.outputs);
        let mut out = vec![f32::NAN; count * outputs];
        conv.forward_range(pool, &self.x, activation, 0..count, &mut out);
        let tolerance = if dtype == DType::BF16 { 1e-2 } else { 3e-6 };
        for (index, found) in out.iter().enumerate() {
            let (expected, magnitude) = self.reference(activated, weight, index / outputs, index % outputs);
            let error = (f64::from(*found) - expected).abs();
            assert!(error <= tolerance * magnitude, "{:?} {dtype:?} {index}: {found} of {expected}", self.shape);
        }
        let mut parts = vec![f32::NAN; out.len()];
        let split = count / 3;
        let (first, rest) = parts.split_at_mut(split * outputs);
        conv.forward_range(pool, &self.x, activation, 0..split, first);
        conv.forward_range(pool, &self.x, activation, split..count, rest);
        assert!(parts == out, "ranges give the same bits: {:?}", self.shape);
    }
}

fn pools() -> Vec<Pool> {
    Isa::available().into_iter().map(|isa| Pool::with_isa(2, isa)).collect()
}

#[test]
fn convolutions_over_time_equal_f64() {
    for pool in pools() {
        let mut rng = Rng(5);
        for _ in 0..60 {
            let case = Case::new(&mut rng);
            let x: Vec<f64> = case.x.iter().map(|x| f64::from(*x)).collect();
            for dtype in [DType::F32, DType::BF16] {
                case.check(&pool, dtype, None, &x);
            }
        }
    }
}

#[test]
fn activations_are_applied_before_the_padding() {
    for pool in pools() {
        let mut rng = Rng(6);
        for round in 0..40 {
            let case = Case::new(&mut rng);
            let channels = case.shape.inputs;
            let [weight, bias] = [normal(&mut rng, channels), normal(&mut rng, channels)];
            let alphas: Vec<f32> = normal(&mut rng, channels).iter().map(|x| x.abs() * 3. + 0.05).collect();
            let inverses: Vec<f32> = alphas.iter().map(|alpha| 1. / alpha).collect();
            let norm = GroupNorm { groups: channels, weight: &weight, bias: &bias, epsilon: 1e-5, activation: None };
            let mut moments = Moments::new(channels);
            moments.add(&pool, &case.x);
            let factors = norm.factors(&moments, None);
            let activation = match round % 2 {
                0 => ChannelActivation::LeakyRelu(0.2),
                _ => ChannelActivation::Snake { alphas: &alphas, inverses: &inverses },
            };
            let mut normed = vec![0.; case.x.len()];
            norm.apply(&pool, &factors, &case.x, &mut normed);
            let activated: Vec<f64> = (normed.iter().enumerate())
                .map(|(index, x)| {
                    let (x, alpha) = (f64::from(*x), f64::from(alphas[index % channels]));
                    match round % 2 {
                        0 => x.max(0.2 * x),
                        _ => x + (alpha * x).sin().powi(2) / alpha,
                    }
                })
                .collect();
            let scaled = ScaledActivation::new(&factors, activation);
            let mut out = vec![f32::NAN; case.x.len()];
            scaled.apply(&pool, &case.x, &mut out);
            for (found, expected) in out.iter().zip(&activated) {
                let error = (f64::from(*found) - expected).abs();
                assert!(error <= 1e-5 * (1. + expected.abs()), "{found} of {expected}");
            }
            for dtype in [DType::F32, DType::BF16] {
                case.check(&pool, dtype, Some(scaled), &activated);
            }
        }
    }
}

#[test]
fn leaky_relu_keeps_positive_values() {
    for pool in pools() {
        let mut x: Vec<f32> = (0..40_001).map(|i| i as f32 - 20_000.).collect();
        leaky_relu(&pool, 0.1, &mut x);
        assert!(
            x.iter()
                .enumerate()
                .all(|(i, x)| *x == if i < 20_000 { (i as f32 - 20_000.) * 0.1 } else { i as f32 - 20_000. })
        );
    }
}

#[test]
fn a_recurrence_equals_f64() {
    for pool in pools() {
        let mut rng = Rng(7);
        for hidden in [1, 4, 16, 17, 40, 64] {
            let weights: Vec<f32> = normal(&mut rng, 4 * hidden * hidden).iter().map(|x| x * 0.3).collect();
            let bias = normal(&mut rng, 4 * hidden);
            let recurrence = LstmRecurrence::new(hidden, &weights, &bias).unwrap();
            let mut state = recurrence.initial_state();
            let (mut h, mut c) = (vec![0f64; hidden], vec![0f64; hidden]);
            for _ in 0..12 {
                let inputs = normal(&mut rng, 4 * hidden);
                let mut out = vec![0.; hidden];
                recurrence.step(pool.isa(), &mut state, &inputs, &mut out);
                let gate = |gate: usize, unit: usize| {
                    let row = gate * hidden + unit;
                    let sum: f64 = (0..hidden).map(|j| f64::from(weights[row * hidden + j]) * h[j]).sum();
                    sum + f64::from(bias[row]) + f64::from(inputs[row])
                };
                let sigmoid = |x: f64| 1. / (1. + (-x).exp());
                let cells: Vec<f64> = (0..hidden)
                    .map(|unit| sigmoid(gate(1, unit)) * c[unit] + sigmoid(gate(0, unit)) * gate(2, unit).tanh())
                    .collect();
                let next: Vec<f64> = (0..hidden).map(|unit| sigmoid(gate(3, unit)) * cells[unit].tanh()).collect();
                (h, c) = (next, cells);
                for (found, expected) in out.iter().zip(&h) {
                    assert!((f64::from(*found) - expected).abs() < 3e-6, "{hidden}: {found} of {expected}");
                }
            }
        }
    }
}

#[test]
fn weights_of_another_length_are_refused() {
    let pool = Pool::new(1);
    let shape = Conv1dShape { inputs: 2, outputs: 3, kernel: 5, stride: 1, dilation: 1, padding: [0, 0] };
    let short = Conv1d::new(&pool, DType::F32, shape, &[0; 116], None);
    assert_eq!(short.unwrap_err(), Error::Length { expected: 120, found: 116 });
    for shape in [Conv1dShape { stride: 0, ..shape }, Conv1dShape { dilation: 0, ..shape }] {
        assert!(matches!(Conv1d::new(&pool, DType::F32, shape, &[0; 120], None), Err(Error::Shape { .. })));
    }
    assert_eq!(shape.output(4), None, "no window fits");
    assert!(LstmRecurrence::new(2, &[0.; 15], &[0.; 8]).is_err());
    assert_eq!(LstmRecurrence::new(2, &[0.; 16], &[0.; 7]).unwrap_err(), Error::Bias { expected: 8, found: 7 });
}
