//! The products, gradients and losses of training, compared with sums in double precision or with finite differences.
#![cfg(test)]

#[path = "common/rng.rs"]
mod rng;
#[path = "common/weights.rs"]
mod weights;

use std::convert::Infallible;

use outpost_kernels::{
    Activation, AttentionShape, DType, DenseMatrix, Direction, Dropout, Isa, Norm, NormKind, Pool, ProductPart, Qkv,
    TargetLogit, TextAttention, activate, activate_backward, cross_entropy, dequantise,
};
use rng::Rng;
use weights::random_weights;

fn pools() -> impl Iterator<Item = Pool> {
    Isa::available().into_iter().map(|isa| Pool::with_isa(2, isa))
}

fn normals(seed: u64, count: usize) -> Vec<f32> {
    let mut rng = Rng(seed);
    (0..count).map(|_| rng.normal()).collect()
}

/// The greatest difference, relative to the greatest expected number.
fn assert_close(found: &[f32], expected: &[f64], tolerance: f64, what: &str) {
    assert_eq!(found.len(), expected.len(), "{what}");
    let size = expected.iter().fold(1e-30, |size: f64, x| size.max(x.abs()));
    for (index, (found, expected)) in found.iter().zip(expected).enumerate() {
        let error = (f64::from(*found) - expected).abs() / size;
        assert!(error <= tolerance, "{what}: element {index} is {found}, not {expected}");
    }
}

#[test]
fn products_match_double_precision() {
    let sizes = [(1, 1, 1), (13, 7, 5), (40, 300, 33), (3, 256, 16), (70, 48, 700), (5, 530, 260)];
    let cases = sizes.into_iter().map(|(m, rows, columns)| (DType::F32, m, rows, columns));
    let blocks = |dtype: DType| (dtype, 9, 270, 2 * dtype.block());
    for (dtype, m, rows, columns) in
        cases.chain(DType::ALL.into_iter().filter(|dtype| dtype.is_quantised()).map(blocks))
    {
        let bytes = random_weights(&mut Rng(3), dtype, rows * columns);
        let mut values = vec![0.; rows * columns];
        dequantise(dtype, &bytes, &mut values);
        let matrices = [DenseMatrix::floats(&values, rows, columns), DenseMatrix::blocks(dtype, &bytes, rows, columns)];
        for direction in [Direction::Forward, Direction::Backward] {
            let [inner, width] = matrices[0].sizes(direction);
            let (x, sums) = (normals(5, m * inner), normals(6, m * width));
            let weight = |k: usize, output: usize| match direction {
                Direction::Forward => values[output * columns + k],
                Direction::Backward => values[k * columns + output],
            };
            let product = |row: usize, output: usize| -> f64 {
                (0..inner).map(|k| f64::from(x[row * inner + k]) * f64::from(weight(k, output))).sum()
            };
            let outputs = || (0..m * width).map(|index| (index / width, index % width));
            for pool in pools() {
                for (accumulate, matrix) in
                    [false, true].into_iter().flat_map(|accumulate| matrices.map(|m| (accumulate, m)))
                {
                    let mut out = sums.clone();
                    let parts = |len: usize| (0..len).step_by(DenseMatrix::ALIGNMENT);
                    for (first, output) in
                        parts(inner).flat_map(|first| parts(width).map(move |output| (first, output)))
                    {
                        let part = ProductPart {
                            inner: first..inner.min(first + DenseMatrix::ALIGNMENT),
                            outputs: output..width.min(output + DenseMatrix::ALIGNMENT),
                        };
                        matrix.multiply(&pool, direction, &x, part, accumulate || first > 0, &mut out);
                    }
                    let before = |index: usize| if accumulate { f64::from(sums[index]) } else { 0. };
                    let expected: Vec<f64> = outputs()
                        .enumerate()
                        .map(|(index, (row, output))| before(index) + product(row, output))
                        .collect();
                    assert_close(
                        &out,
                        &expected,
                        2e-6,
                        &format!("{direction:?} {matrix:?} {pool:?}").chars().take(60).collect::<String>(),
                    );
                }
            }
        }
    }
}

/// Attention and its gradient in double precision: the output, then the gradients of queries, keys and values.
fn attention(
    TextAttention { shape, sinks, texts }: &TextAttention<'_>,
    x: Qkv<&[f32]>,
    gradient: &[f32],
) -> [Vec<f64>; 4] {
    let AttentionShape { heads, kv_heads, width, scale, window, soft_cap, .. } = **shape;
    let mut out = [x.queries.len(), x.queries.len(), x.keys.len(), x.values.len()].map(|len| vec![0f64; len]);
    let element = |x: &[f32], index: usize| f64::from(x[index]);
    for text in *texts {
        for (query, head) in text.clone().flat_map(|query| (0..heads).map(move |head| (query, head))) {
            let kv_head = head / (heads / kv_heads);
            let q = (query * heads + head) * width;
            let kv = |position: usize| (position * kv_heads + kv_head) * width;
            let first = window.map_or(text.start, |window| text.start.max((query + 1).saturating_sub(window)));
            let visible = first..query + 1;
            let dot = |a: &[f32], a_at: usize, b: &[f32], b_at: usize| -> f64 {
                (0..width).map(|i| element(a, a_at + i) * element(b, b_at + i)).sum()
            };
            let mut scores: Vec<f64> = Vec::new();
            let mut slopes = Vec::new();
            for position in visible.clone() {
                let score = f64::from(scale) * dot(x.queries, q, x.keys, kv(position));
                let tanh = soft_cap.map(|cap| (score / f64::from(cap)).tanh());
                scores.push(soft_cap.zip(tanh).map_or(score, |(cap, tanh)| f64::from(cap) * tanh));
                slopes.push(f64::from(scale) * tanh.map_or(1., |tanh| 1. - tanh * tanh));
            }
            let sink = sinks.map_or(f64::NEG_INFINITY, |sinks| f64::from(sinks[head]));
            let max = scores.iter().copied().fold(sink, f64::max);
            let sum = scores.iter().map(|score| (score - max).exp()).sum::<f64>() + (sink - max).exp();
            let weights: Vec<f64> = scores.iter().map(|score| (score - max).exp() / sum).collect();
            let of_weights: Vec<f64> =
                visible.clone().map(|position| dot(gradient, q, x.values, kv(position))).collect();
            let mean: f64 = weights.iter().zip(&of_weights).map(|(a, b)| a * b).sum();
            for (index, position) in visible.enumerate() {
                let of_score = weights[index] * (of_weights[index] - mean) * slopes[index];
                for i in 0..width {
                    out[0][q + i] += weights[index] * element(x.values, kv(position) + i);
                    out[1][q + i] += of_score * element(x.keys, kv(position) + i);
                    out[2][kv(position) + i] += of_score * element(x.queries, q + i);
                    out[3][kv(position) + i] += weights[index] * element(gradient, q + i);
                }
            }
        }
    }
    out
}

#[test]
fn attention_of_texts_and_its_gradient_match_double_precision() {
    let plain =
        AttentionShape { heads: 4, kv_heads: 2, width: 10, scale: 0.3, causal: true, window: None, soft_cap: None };
    let windowed = AttentionShape { window: Some(7), soft_cap: Some(2.), ..plain };
    let one_head = AttentionShape { heads: 1, kv_heads: 1, width: 64, ..plain };
    // Sinks below and above all scores.
    let sinks = Some([0.5, -60., 2., 60.].as_slice());
    for (shape, sinks, lens) in [
        (plain, None, vec![1, 5, 0, 150]),
        (windowed, None, vec![40, 3]),
        (windowed, sinks, vec![300]),
        (plain, sinks, vec![1, 33]),
        (one_head, None, vec![33]),
    ] {
        let mut end = 0;
        let mut text = |len: &usize| {
            end += len;
            end - len..end
        };
        let texts: Vec<_> = lens.iter().map(&mut text).collect();
        let [queries, gradient] = [1, 2].map(|seed| normals(seed, end * shape.heads * shape.width));
        let [keys, values] = [3, 4].map(|seed| normals(seed, end * shape.kv_heads * shape.width));
        let x = Qkv { queries: queries.as_slice(), keys: keys.as_slice(), values: values.as_slice() };
        let text_attention = TextAttention { shape: &shape, sinks, texts: &texts };
        let expected = attention(&text_attention, x, &gradient);
        for pool in pools() {
            let mut pauses = 0;
            let mut pause = || -> Result<(), Infallible> {
                pauses += 1;
                Ok(())
            };
            let mut found = expected.each_ref().map(|expected| vec![0f32; expected.len()]);
            let [out, of_queries, of_keys, of_values] = &mut found;
            let Ok(()) = text_attention.forward(&pool, x, out, &mut pause);
            let of = Qkv { queries: &mut of_queries[..], keys: &mut of_keys[..], values: &mut of_values[..] };
            let Ok(()) = text_attention.backward(&pool, x, &gradient, of, &mut pause);
            assert!(pauses >= 2);
            for (name, (found, expected)) in
                ["output", "queries", "keys", "values"].iter().zip(found.iter().zip(&expected))
            {
                assert_close(found, expected, 1e-5, &format!("{name} {shape:?} {pool:?}"));
            }
        }
    }
}

#[test]
fn gradients_of_activations_match_finite_differences() {
    let (count, step) = (5_000, 1e-2);
    let (x, factors, gradient) = (normals(1, count), normals(2, count), normals(3, count));
    for pool in pools() {
        for activation in Activation::ALL {
            let at = |shift: f32| {
                let mut y: Vec<f32> = x.iter().map(|x| x + shift).collect();
                activate(&pool, activation, &mut y, None);
                y
            };
            let (low, middle, high) = (at(-step), at(0.), at(step));
            let (mut of_x, mut of_factors) = (vec![0.; count], vec![0.; count]);
            activate_backward(&pool, activation, (&x, Some(&factors)), &gradient, &mut of_x, Some(&mut of_factors));
            let mut alone = vec![0.; count];
            activate_backward(&pool, activation, (&x, None), &gradient, &mut alone, None);
            let has_kink = matches!(activation, Activation::Relu | Activation::SquaredRelu);
            for index in (0..count).filter(|index| !has_kink || x[*index].abs() > step) {
                let slope = (high[index] - low[index]) / (2. * step) * gradient[index];
                let close = |found: f32, expected: f32| (found - expected).abs() < 1e-3 * (1. + gradient[index].abs());
                let factor = match activation {
                    Activation::ClampedSwiglu => 1. + factors[index],
                    _ => factors[index],
                };
                assert!(close(of_x[index], slope * factor), "{activation:?} at {}", x[index]);
                assert!(close(alone[index], slope) && close(of_factors[index], middle[index] * gradient[index]));
            }
        }
    }
}

#[test]
fn clamped_inputs_have_no_gradient() {
    let (x, factors) = ([8., 6., 8., 6., 6.], [6., 8., -8., -8., -6.]);
    for pool in pools() {
        let (mut of_x, mut of_factors) = ([1f32; 5], [1f32; 5]);
        let inputs = (&x[..], Some(&factors[..]));
        activate_backward(&pool, Activation::ClampedSwiglu, inputs, &[1.; 5], &mut of_x, Some(&mut of_factors));
        assert_eq!(of_x.map(|x| x == 0.), [true, false, true, false, false]);
        assert_eq!(of_factors.map(|x| x == 0.), [false, true, true, true, false]);
    }
}

#[test]
fn gradients_of_norms_match_finite_differences() {
    for (kind, rows, width) in [(NormKind::Rms, 3, 40), (NormKind::Layer, 2, 33), (NormKind::Layer, 1, 5)] {
        let (x, gradient, weight) = (normals(1, rows * width), normals(2, rows * width), normals(3, width));
        let norm = Norm { kind, weight: &weight, bias: None, epsilon: 0.01 };
        for pool in pools() {
            let loss = |x: &[f32]| -> f64 {
                let mut out = vec![0.; x.len()];
                norm.forward(&pool, x, &mut out);
                out.iter().zip(&gradient).map(|(out, gradient)| f64::from(*out) * f64::from(*gradient)).sum()
            };
            let slope = |index: usize| {
                let with = |step: f32| {
                    let mut x = x.clone();
                    x[index] += step;
                    loss(&x)
                };
                (with(1e-2) - with(-1e-2)) / 2e-2
            };
            let expected: Vec<f64> = (0..x.len()).map(slope).collect();
            let mut found = vec![0.; x.len()];
            norm.backward(&pool, &x, &gradient, &mut found);
            assert_close(&found, &expected, 1e-3, &format!("{kind:?} {pool:?}"));
        }
    }
}

#[test]
fn targets_are_scored_and_logits_become_gradients() {
    let (vocabulary, targets) = (5_003, [(0, 1.5), (5_002, -0.5), (77, 0.)]);
    let logits: Vec<f32> = normals(1, 3 * vocabulary).iter().map(|x| 3. * x).collect();
    for pool in pools() {
        for cap in [None, Some(4f32)] {
            let (mut found, mut scores) = (logits.clone(), [TargetLogit::default(); 3]);
            cross_entropy(&pool, &mut found, cap, &targets, &mut scores);
            for (row, (target, weight)) in targets.into_iter().enumerate() {
                let logits = logits[row * vocabulary..][..vocabulary].iter().map(|x| f64::from(*x));
                let tanh = |x: f64| cap.map(|cap| (x / f64::from(cap)).tanh());
                let slopes: Vec<f64> = logits.clone().map(|x| tanh(x).map_or(1., |tanh| 1. - tanh * tanh)).collect();
                let logits: Vec<f64> =
                    logits.map(|x| cap.zip(tanh(x)).map_or(x, |(cap, tanh)| f64::from(cap) * tanh)).collect();
                let sum: f64 = logits.iter().map(|x| x.exp()).sum();
                let log_probability = logits[target as usize] - sum.ln();
                assert!((f64::from(scores[row].log_probability) - log_probability).abs() < 1e-5);
                assert_eq!(scores[row].is_max, logits.iter().all(|x| *x <= logits[target as usize]));
                let expected = logits.iter().zip(slopes).enumerate().map(|(token, (x, slope))| {
                    let is_target = f64::from(u8::from(token == target as usize));
                    f64::from(weight) * (is_target - x.exp() / sum) * slope
                });
                let expected: Vec<f64> = expected.collect();
                assert_close(&found[row * vocabulary..][..vocabulary], &expected, 1e-5, "gradients");
            }
        }
    }
}

#[test]
fn dropout_keeps_the_expectation() {
    let count = 40_000;
    let dropout = Dropout { rate: 0.25, key: 9 };
    let mut first = None;
    for pool in pools() {
        let mut out = vec![1.; count];
        dropout.apply(&pool, &vec![1.; count], false, &mut out);
        let zeros = out.iter().filter(|x| **x == 0.).count() as f64 / count as f64;
        assert!((zeros - 0.25).abs() < 0.01, "{zeros}");
        assert!(out.iter().enumerate().all(|(index, x)| *x == dropout.factor(index) && (*x == 0. || *x == 1. / 0.75)));
        let other = Dropout { key: 10, ..dropout };
        assert!((0..64).any(|index| other.factor(index) != dropout.factor(index)));
        let mut twice = out.clone();
        dropout.apply(&pool, &vec![1.; count], true, &mut twice);
        assert!(twice.iter().zip(&out).all(|(twice, once)| *twice == 2. * once));
        assert_eq!(first.get_or_insert(out.clone()), &out);
        Dropout { rate: 0., ..dropout }.apply(&pool, &vec![3.; count], false, &mut out);
        assert!(out.iter().all(|x| *x == 3.));
    }
}
