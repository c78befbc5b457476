//! Gradients, compared with finite differences.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use candle_core::{Tensor as Array, Var};

use super::super::{Candle, CandleLinear};
use super::products::random_rows;
use super::{assert_close, candle, random, random_tensor};
use crate::backend::convolutions::{Convolutions, GroupNorm};
use crate::backend::interface::{Angles, Backend, FeedForward, LowRankUpdate, Norm, RequestOptions, Tensor};
use crate::backend::types::{Activation, AttentionShape, ConvShape, DType, Dropout, NormKind, RopeLayout};
use crate::backend::{ExpertGroups, RouterWeights, Routing};
use crate::devices::under_test;
use crate::error::ModelError;

const SHAPE: [usize; 4] = [2, 4, 1, 16];

type Operation<'a> = Box<dyn Fn(&Tensor<Candle>) -> Tensor<Candle> + 'a>;

/// The sum of `y`, weighted, so that its elements have different gradients.
fn loss(y: &Tensor<Candle>) -> Array {
    let weights = Array::from_vec(random(y.len(), 77), y.data.shape(), y.data.device()).unwrap();
    (&y.data * weights).unwrap().sum_all().unwrap()
}

/// `x` as a variable, and the tensor.
fn variable(values: &[f32]) -> (Var, Tensor<Candle>) {
    let [images, height, width, channels] = SHAPE;
    let array = Array::from_slice(values, (images * height * width, channels), &under_test()).unwrap();
    let variable = Var::from_tensor(&array).unwrap();
    let data = variable.as_tensor().clone();
    (variable, Tensor { images, size: [height, width], channels, data })
}

fn check(b: &Candle, name: &str, operation: &Operation<'_>) {
    let values = random(SHAPE.iter().product(), 1);
    let (variable, x) = variable(&values);
    let y = operation(&x);
    let gradients = loss(&y).backward().unwrap();
    let gradient = gradients.get(&variable).unwrap_or_else(|| panic!("{name} has no gradient"));
    let found: Vec<f32> = gradient.flatten_all().unwrap().to_vec1().unwrap();
    let step = 5e-3;
    let loss_with = |index: usize, step: f32| {
        let mut values = values.clone();
        values[index] += step;
        // Without a variable, which may choose other kernels.
        f64::from(loss(&operation(&b.tensor(&values, SHAPE).unwrap())).to_scalar::<f32>().unwrap())
    };
    let slope = |index| ((loss_with(index, step) - loss_with(index, -step)) / f64::from(2. * step)) as f32;
    let expected: Vec<f32> = (0..values.len()).map(slope).collect();
    assert_close(&found, &expected, 5e-3, name);
}

#[test]
fn gradients_match_finite_differences() {
    check_all(&candle());
    check_all(&candle().without_host_gradients());
}

fn check_all(b: &Candle) {
    let linear = |outputs, inputs, seed| {
        let bias = random(outputs, seed + 10);
        b.read_linear(&random_rows(DType::F32, outputs, inputs, seed), Some(&bias), false).unwrap()
    };
    let in_place = |operation: fn(&Candle, &mut Tensor<Candle>, &Tensor<Candle>)| -> Operation<'_> {
        Box::new(move |x| {
            let (mut copy, y) = (b.copy(x).unwrap(), random_tensor(b, SHAPE, 9));
            operation(b, &mut copy, &y);
            copy
        })
    };
    let norm = |kind, width, with_bias: bool| {
        let bias = with_bias.then(|| b.vector(random(width, 4)).unwrap());
        Norm { kind, weight: b.vector(random(width, 3)).unwrap(), bias, epsilon: 0.01 }
    };
    let rope = |layout, pairs| -> Operation<'_> {
        let angles = move |seed| random_tensor(b, [1, 8, 1, pairs], seed);
        Box::new(move |x| {
            let mut x = b.copy(x).unwrap();
            b.rope(&mut x, 2, layout, &Angles { cos: angles(5), sin: angles(6) }).unwrap();
            x
        })
    };
    let (gate, up, down, fused) = (linear(24, 16, 1), linear(24, 16, 2), linear(12, 24, 3), linear(20, 16, 4));
    let experts = |routing: Routing| -> Operation<'_> {
        Box::new(move |x| {
            let mut sum = b.copy(x).unwrap();
            let bias: Vec<f32> = (0..16).map(|expert| if expert % 5 == 0 { 0.1 } else { 0. }).collect();
            let routed = b.route(&routing, Some(&bias), b.copy(x).unwrap()).unwrap();
            for (expert, tokens) in routed.tokens.iter().enumerate().filter(|(_, tokens)| !tokens.is_empty()) {
                let y = b.gather_rows(x, tokens).unwrap();
                b.add_expert(&mut sum, &y, tokens, &routed.weights, expert).unwrap();
            }
            sum
        })
    };
    let unscaled = Routing { normalise_weights: false, ..Routing::softmax(2) };
    let groups = Some(ExpertGroups { count: 4, used: 2 });
    let sigmoid = Routing { weights: RouterWeights::Sigmoid, scale: 2.5, groups, ..Routing::softmax(3) };
    let (gate, up, down, fused) = (&gate, &up, &down, &fused);
    let mut operations: Vec<(String, Operation<'_>)> = vec![
        (
            "linears".into(),
            Box::new(|x| {
                let [first, second] = b.linears([gate, fused], x).unwrap();
                b.concat_channels(&first, &second).unwrap()
            }),
        ),
        (
            "feed_forward".into(),
            Box::new(|x| {
                b.feed_forward(FeedForward { gate: Some(gate), up, down, activation: Activation::Silu }, x).unwrap()
            }),
        ),
        ("rms norm".into(), Box::new(|x| b.norm(&norm(NormKind::Rms, 16, false), x).unwrap())),
        ("rms norm of heads".into(), Box::new(|x| b.norm(&norm(NormKind::Rms, 8, true), x).unwrap())),
        ("layer norm".into(), Box::new(|x| b.norm(&norm(NormKind::Layer, 16, true), x).unwrap())),
        ("layer norm without bias".into(), Box::new(|x| b.norm(&norm(NormKind::Layer, 16, false), x).unwrap())),
        (
            "add_norm".into(),
            Box::new(|x| {
                let mut sum = random_tensor(b, SHAPE, 9);
                let normed = b.add_norm(&norm(NormKind::Rms, 16, false), &mut sum, x).unwrap();
                b.concat_channels(&sum, &normed).unwrap()
            }),
        ),
        ("rope halves".into(), rope(RopeLayout::Halves, 4)),
        ("rope interleaved".into(), rope(RopeLayout::Interleaved, 4)),
        ("partial rope".into(), rope(RopeLayout::Halves, 3)),
        ("add".into(), in_place(|b, x, y| b.add(x, y).unwrap())),
        ("multiply".into(), in_place(|b, x, _| b.multiply(x, 0.7).unwrap())),
        ("divide".into(), in_place(|b, x, _| b.divide(x, 0.7).unwrap())),
        ("rows".into(), Box::new(|x| b.rows(x, 2..7).unwrap())),
        ("gather_rows".into(), Box::new(|x| b.gather_rows(x, &[7, 0, 7]).unwrap())),
        ("write_rows".into(), in_place(|b, x, y| b.write_rows(x, 3, &b.rows(y, 0..2).unwrap()).unwrap())),
        (
            "written rows".into(),
            Box::new(|x| {
                let mut out = b.zeros([1, 12, 1, 16]).unwrap();
                b.write_rows(&mut out, 3, x).unwrap();
                out
            }),
        ),
        ("add_rows".into(), in_place(|b, x, y| b.add_rows(x, 3, &b.rows(y, 0..2).unwrap()).unwrap())),
        ("experts by a scaled softmax".into(), experts(Routing::softmax(2))),
        ("experts by a softmax".into(), experts(unscaled)),
        ("experts by a sigmoid in groups".into(), experts(sigmoid)),
        (
            "concat and split".into(),
            Box::new(|x| {
                let [first, second] = b.split_tokens(x, 1).unwrap();
                b.concat_tokens(&second, &first).unwrap()
            }),
        ),
        ("attention".into(), Box::new(|x| b.attention([x, x, x], 2, true).unwrap())),
        (
            "biased attention".into(),
            Box::new(|x| b.biased_attention([x, x, x], 2, &random_tensor(b, [1, 2, 1, 7], 5)).unwrap()),
        ),
        (
            "modulated norm".into(),
            Box::new(|x| b.modulated_norm(1e-3, x, &random_tensor(b, [2, 1, 1, 32], 5), [0, 1]).unwrap()),
        ),
        (
            "group norm".into(),
            Box::new(|x| {
                let [weight, bias] = [3, 4].map(|seed| b.vector(random(16, seed)).unwrap());
                b.group_norm(&GroupNorm { groups: 4, weight, bias, epsilon: 1e-3 }, x, None, true).unwrap()
            }),
        ),
        (
            "convolution".into(),
            Box::new(|x| {
                let shape = ConvShape { inputs: 16, outputs: 6, kernel: [3, 1], stride: 1, padding: [1, 1] };
                let conv = b.read_conv(&random_rows(DType::F32, 6, 48, 5), shape, None).unwrap();
                b.conv(&conv, x).unwrap()
            }),
        ),
    ];
    for (sinks, window) in [(None, None), (Some(random(4, 7)), None), (Some(random(4, 8)), Some(2))] {
        let sinks = sinks.map(|sinks| b.vector(sinks).unwrap());
        let (soft_cap, half, other) = (None, linear(8, 16, 5), linear(8, 16, 6));
        let shape = AttentionShape { heads: 4, kv_heads: 2, width: 4, scale: 0.5, causal: true, window, soft_cap };
        operations.push((
            format!("attention of texts with sinks {sinks:?}"),
            Box::new(move |x| {
                let [keys, values] = b.linears([&half, &other], x).unwrap();
                b.text_attention(&[0..5, 5..8], &shape, sinks.as_ref(), [x, &keys, &values]).unwrap()
            }),
        ));
    }
    for activation in Activation::ALL {
        operations.push((
            format!("{activation:?}"),
            Box::new(move |x| {
                let mut copy = b.copy(x).unwrap();
                b.activate(activation, &mut copy, Some(x)).unwrap();
                copy
            }),
        ));
    }
    for (name, operation) in &operations {
        check(b, name, operation);
    }
}

/// Products with quantised weights round activations, so finite differences are too coarse.
#[test]
fn gradients_pass_through_quantised_weights() {
    let b = candle();
    for dtype in DType::ALL {
        let rows = random_rows(dtype, 24, 256, 1);
        let linear = b.read_linear(&rows, None, false).unwrap();
        let values = Array::from_vec(random(3 * 256, 2), (3, 256), b.device()).unwrap();
        let variable = Var::from_tensor(&values).unwrap();
        let x = Tensor { images: 1, size: [3, 1], channels: 256, data: variable.as_tensor().clone() };
        let [y] = b.linears([&linear], &x).unwrap();
        let gradients = loss(&y).backward().unwrap();
        let found = gradients.get(&variable).unwrap().flatten_all().unwrap().to_vec1::<f32>().unwrap();
        let (weight, outer) = (rows.floats().unwrap(), random(3 * 24, 77));
        let expected: Vec<f32> = outer
            .chunks(24)
            .flat_map(|outer| {
                let column = |column: usize| outer.iter().enumerate().map(|(i, g)| g * weight[i * 256 + column]).sum();
                (0..256).map(column).collect::<Vec<f32>>()
            })
            .collect();
        assert_close(&found, &expected, 1e-5, &format!("{dtype:?}"));
    }
}

/// Both ways compute a layer with low-rank updates and dropout, and all gradients.
#[test]
fn kernels_and_candle_compute_the_same_updates() {
    let host = candle();
    let weights = [20, 12].map(|outputs| {
        let bias = random(outputs, 3);
        host.read_linear(&random_rows(DType::Q4_1, outputs, 32, 5), Some(&bias), false).unwrap()
    });
    let matrix = |rows: usize, columns: usize, seed| {
        Var::from_vec(random(rows * columns, seed), (rows, columns), host.device()).unwrap()
    };
    let (x, down, up) = (matrix(7, 32, 1), matrix(3, 32, 2), matrix(20, 3, 4));
    let results = [host.clone(), host.clone().without_host_gradients()].map(|b| {
        let dropouts = [None, Some(Dropout { rate: 0.4, key: 3 }), Some(Dropout { rate: 0.4, key: 4 })];
        dropouts.map(|dropout| {
            let b = b.with_dropout(dropout);
            let down_linear = CandleLinear::trained_down(down.as_tensor().clone(), 5).unwrap();
            let up_linear = CandleLinear::trained(up.as_tensor().clone()).unwrap();
            let (output, scale) = (0, 0.7);
            let update = LowRankUpdate { output, rows: 0..7, down: &down_linear, up: &up_linear, scale };
            let input = Tensor { images: 1, size: [7, 1], channels: 32, data: x.as_tensor().clone() };
            let [first, second] = b.adapted_linears(weights.each_ref(), &[update], &input).unwrap();
            let gradients = (loss(&first) + loss(&second)).unwrap().backward().unwrap();
            let gradients = [&x, &down, &up].map(|variable| gradients.get(variable).unwrap().clone());
            let arrays = [first.data.detach(), second.data.detach()].into_iter().chain(gradients);
            arrays.map(|array| array.flatten_all().unwrap().to_vec1::<f32>().unwrap()).collect::<Vec<_>>()
        })
    });
    for (kernels, candle) in results[0].iter().zip(&results[1]) {
        for (index, (kernels, candle)) in kernels.iter().zip(candle).enumerate() {
            assert_close(kernels, candle, 1e-5, &format!("result {index}"));
        }
    }
    let [without, first, second] = &results[0];
    assert!(without != first && first != second, "the key determines the mask");
}

/// An error of the pause function in a gradient is not turned into another. On a GPU, candle computes gradients, without
/// pauses.
#[test]
fn interrupted_gradients_are_interrupted() {
    if !under_test().is_cpu() {
        return;
    }
    let pauses = Arc::new(AtomicUsize::new(0));
    let counter = Arc::clone(&pauses);
    let pause = move || match counter.fetch_add(1, Ordering::Relaxed) {
        0 => Ok(()),
        _ => Err(ModelError::Interrupted),
    };
    let b = candle().for_request(RequestOptions { pause: Arc::new(pause), bf16_attention: false });
    let weight = b.vector(random(16, 3)).unwrap();
    let norm = Norm { kind: NormKind::Rms, weight, bias: None, epsilon: 0.01 };
    let (_, x) = variable(&random(SHAPE.iter().product(), 1));
    let error = loss(&b.norm(&norm, &x).unwrap()).backward().unwrap_err();
    assert_eq!(ModelError::from(error), ModelError::Interrupted);
    assert_eq!(pauses.load(Ordering::Relaxed), 2);
}
