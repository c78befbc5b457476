//! Elementwise operations, norms, convolutions and layout.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use super::{candle, compare, random, random_tensor};
use crate::backend::convolutions::{Convolutions, GroupNorm};
use crate::backend::interface::{Angles, Backend, Norm, RequestOptions};
use crate::backend::types::{Activation, ConvShape, DType, NormKind, RopeLayout};
use crate::backend::{ExpertGroups, RouterWeights, Routing};
use crate::error::ModelError;
use crate::weights::Rows;

#[test]
fn elementwise_operations_match() {
    let shape = [2, 3, 5, 7];
    compare!("add", 1e-7, |b| {
        let mut x = random_tensor(b, shape, 1);
        b.add(&mut x, &random_tensor(b, shape, 2)).unwrap();
        x
    });
    compare!("multiply and divide", 1e-7, |b| {
        let mut x = random_tensor(b, shape, 1);
        b.multiply(&mut x, 0.3).unwrap();
        b.divide(&mut x, 1.7).unwrap();
        x
    });
    for activation in Activation::ALL {
        for with_factors in [false, true] {
            // The CPU's GELU is an approximation with an error of 6e-7 · |x|.
            compare!(format!("{activation:?}"), 1e-6, |b| {
                let mut x = random_tensor(b, shape, 1);
                b.multiply(&mut x, 6.).unwrap();
                let factors = random_tensor(b, shape, 2);
                b.activate(activation, &mut x, with_factors.then_some(&factors)).unwrap();
                x
            });
        }
    }
    let groups = Some(ExpertGroups { count: 2, used: 1 });
    let sigmoid = Routing { weights: RouterWeights::Sigmoid, scale: 2.5, groups, ..Routing::softmax(2) };
    for routing in [Routing::softmax(2), Routing { normalise_weights: false, ..Routing::softmax(2) }, sigmoid] {
        compare!("mixture of experts", 1e-6, |b| {
            let mut x = random_tensor(b, [1, 6, 1, 7], 1);
            let scores = random_tensor(b, [1, 6, 1, 4], 2);
            let routed = b.route(&routing, Some(&[0., 0.1, 0.2, 0.]), scores).unwrap();
            for (expert, tokens) in routed.tokens.iter().enumerate() {
                let y = b.gather_rows(&random_tensor(b, [1, 6, 1, 7], 3 + expert as u64), tokens).unwrap();
                b.add_expert(&mut x, &y, tokens, &routed.weights, expert).unwrap();
            }
            x
        });
    }
}

#[test]
fn modulation_matches() {
    let (shape, vectors) = ([2, 3, 5, 7], [2, 1, 1, 4 * 7]);
    compare!("modulate", 1e-6, |b| {
        let mut x = random_tensor(b, shape, 1);
        b.modulate(&mut x, &random_tensor(b, vectors, 2), [3, 1]).unwrap();
        x
    });
    compare!("modulated_norm", 2e-6, |b| {
        b.modulated_norm(1e-6, &random_tensor(b, shape, 1), &random_tensor(b, vectors, 2), [0, 2]).unwrap()
    });
    compare!("add_gated", 1e-6, |b| {
        let mut x = random_tensor(b, shape, 1);
        b.add_gated(&mut x, &random_tensor(b, shape, 3), &random_tensor(b, vectors, 2), 2).unwrap();
        x
    });
    let b = candle();
    let (mut x, y) = (random_tensor(&b, shape, 1), random_tensor(&b, vectors, 2));
    assert!(b.modulate(&mut x, &y, [0, 4]).is_err(), "there is no vector 4");
    assert!(b.modulate(&mut x, &random_tensor(&b, [1, 1, 1, 28], 2), [0, 1]).is_err(), "there is one image");
}

#[test]
fn norms_match() {
    // The norm of 8 elements normalises parts of rows.
    for (kind, width, with_bias) in
        [(NormKind::Rms, 48, false), (NormKind::Rms, 8, true), (NormKind::Layer, 48, true), (NormKind::Layer, 8, false)]
    {
        compare!(format!("{kind:?} {width}"), 3e-6, |b| {
            let weight = b.vector(random(width, 3)).unwrap();
            let bias = with_bias.then(|| b.vector(random(width, 4)).unwrap());
            let norm = Norm { kind, weight, bias, epsilon: 0.1 };
            let mut x = random_tensor(b, [2, 40, 1, 48], 1);
            let normed = b.norm(&norm, &x).unwrap();
            let again = b.add_norm(&norm, &mut x, &normed).unwrap();
            b.concat_channels(&b.concat_channels(&normed, &x).unwrap(), &again).unwrap()
        });
    }
}

#[test]
fn group_norms_match() {
    for (groups, images, silu, with_shift) in [(3, 2, true, true), (12, 1, false, true), (1, 3, true, false)] {
        compare!(format!("{groups} groups of {images} images"), 3e-6, |b| {
            let vector = |seed| b.vector(random(12, seed)).unwrap();
            let norm = GroupNorm { groups, weight: vector(3), bias: vector(4), epsilon: 1e-3 };
            let mut x = random_tensor(b, [images, 5, 6, 12], 1);
            // Far from zero, so that the variance is small beside the mean.
            let far = b.tensor(&vec![10.; x.len()], x.shape()).unwrap();
            b.add(&mut x, &far).unwrap();
            let shift = random_tensor(b, [images, 1, 1, 12], 2);
            b.group_norm(&norm, &x, with_shift.then_some(&shift), silu).unwrap()
        });
    }
}

#[test]
fn convolutions_match() {
    let floats = |dtype: DType, count: usize, columns: usize, seed: u64| {
        let values = random(count * columns, seed);
        let bytes: Vec<u8> = match dtype {
            DType::F16 => values.iter().flat_map(|x| half::f16::from_f32(*x).to_le_bytes()).collect(),
            DType::BF16 => values.iter().flat_map(|x| half::bf16::from_f32(*x).to_le_bytes()).collect(),
            _ => values.iter().flat_map(|x| x.to_le_bytes()).collect(),
        };
        Rows::from_bytes(dtype, count, columns, bytes).unwrap()
    };
    for (kernel, stride, padding, dtype, with_bias) in [
        ([3, 3], 1, [1, 1], DType::F32, true),
        ([3, 3], 2, [0, 1], DType::F32, true),
        ([3, 2], 1, [2, 0], DType::F16, false),
        ([1, 1], 1, [0, 0], DType::F32, true),
        ([1, 1], 2, [0, 0], DType::F32, false),
        ([5, 5], 3, [2, 2], DType::BF16, true),
    ] {
        let shape = ConvShape { inputs: 6, outputs: 9, kernel, stride, padding };
        // The CPU may round activations to bf16 if weights are bf16.
        let tolerance = if dtype == DType::BF16 { 0.01 } else { 1e-5 };
        compare!(format!("{shape:?} {dtype:?}"), tolerance, |b| {
            let weight = floats(dtype, 9, 6 * kernel[0] * kernel[1], 5);
            let bias = random(9, 6);
            let conv = b.read_conv(&weight, shape, with_bias.then_some(&bias)).unwrap();
            b.conv(&conv, &random_tensor(b, [2, 7, 9, 6], 1)).unwrap()
        });
        compare!(format!("norm and {shape:?}"), tolerance.max(1e-5), |b| {
            let conv = b.read_conv(&floats(dtype, 9, 6 * kernel[0] * kernel[1], 5), shape, None).unwrap();
            let vector = |seed| b.vector(random(6, seed)).unwrap();
            let norm = GroupNorm { groups: 2, weight: vector(3), bias: vector(4), epsilon: 1e-5 };
            let shift = random_tensor(b, [2, 1, 1, 6], 2);
            b.norm_conv(&norm, &random_tensor(b, [2, 7, 9, 6], 1), Some(&shift), &conv).unwrap()
        });
    }
    let b = candle();
    let shape = ConvShape { inputs: 6, outputs: 9, kernel: [3, 3], stride: 1, padding: [0, 0] };
    let conv = b.read_conv(&floats(DType::F32, 9, 54, 5), shape, None).unwrap();
    assert!(b.conv(&conv, &random_tensor(&b, [1, 2, 9, 6], 1)).is_err(), "no window fits");
    assert!(b.conv(&conv, &random_tensor(&b, [1, 7, 9, 5], 1)).is_err(), "there are five channels");
    let other = ConvShape { inputs: 7, ..shape };
    assert!(b.read_conv(&floats(DType::F32, 9, 54, 5), other, None).is_err(), "there are too few weights");
    assert!(b.read_conv(&floats(DType::F32, 9, 54, 5), shape, Some(&[0.; 8])).is_err(), "the bias is too short");
}

#[test]
fn operations_that_move_elements_match() {
    let shape = [2, 3, 5, 4];
    compare!("rows", 0., |b| b.rows(&random_tensor(b, shape, 1), 4..17).unwrap());
    compare!("gather_rows", 0., |b| b.gather_rows(&random_tensor(b, shape, 1), &[29, 0, 7, 7]).unwrap());
    compare!("write_rows", 0., |b| {
        let mut x = random_tensor(b, shape, 1);
        b.write_rows(&mut x, 23, &random_tensor(b, [1, 7, 1, 4], 2)).unwrap();
        x
    });
    compare!("add_rows", 1e-7, |b| {
        let mut x = random_tensor(b, shape, 1);
        b.add_rows(&mut x, 5, &random_tensor(b, [1, 7, 1, 4], 2)).unwrap();
        x
    });
    compare!("concat_channels", 0., |b| {
        b.concat_channels(&random_tensor(b, shape, 1), &random_tensor(b, [2, 3, 5, 2], 2)).unwrap()
    });
    compare!("concat_tokens", 0., |b| {
        b.concat_tokens(&random_tensor(b, [2, 3, 1, 4], 1), &random_tensor(b, [2, 5, 1, 4], 2)).unwrap()
    });
    for (count, part) in [(2, 0), (2, 1), (6, 0)] {
        compare!(format!("split_tokens {count}"), 0., |b| {
            let [head, tail] = b.split_tokens(&random_tensor(b, [3, 6, 1, 4], 1), count).unwrap();
            [head, tail].into_iter().nth(part).unwrap()
        });
    }
    for images in [1, 3] {
        compare!("repeat", 0., |b| b.repeat(&random_tensor(b, [1, 3, 5, 4], 1), images).unwrap());
    }
    for size in [[6, 10], [3, 5], [7, 4], [2, 13], [1, 1]] {
        compare!(format!("resize to {size:?}"), 0., |b| b.resize(&random_tensor(b, shape, 1), size).unwrap());
    }
    let order: Vec<u32> = (0..60).map(|i| i * 7 % 60).collect();
    compare!("permute", 0., |b| b.permute(&random_tensor(b, shape, 1), &order, [10, 2], 3).unwrap());
}

#[test]
fn tensors_do_not_share_memory_that_is_written() {
    let b = candle();
    let x = random_tensor(&b, [1, 4, 1, 3], 1);
    let before = b.to_vec(&x).unwrap();
    let y = random_tensor(&b, [1, 4, 1, 3], 2);
    let mut copies = vec![b.copy(&x).unwrap(), b.rows(&x, 0..4).unwrap(), b.repeat(&x, 1).unwrap()];
    copies.push(b.resize(&x, [4, 1]).unwrap());
    copies.extend(b.split_tokens(&x, 4).unwrap().into_iter().take(1));
    for mut copy in copies {
        b.write_rows(&mut copy, 0, &y).unwrap();
        assert_eq!(b.to_vec(&copy).unwrap(), b.to_vec(&y).unwrap());
    }
    assert_eq!(b.to_vec(&x).unwrap(), before);
}

#[test]
fn rotary_embeddings_match() {
    for (layout, pairs) in
        [(RopeLayout::Halves, 8), (RopeLayout::Interleaved, 8), (RopeLayout::Halves, 5), (RopeLayout::Interleaved, 3)]
    {
        for rows in [1, 7] {
            compare!(format!("{layout:?} {pairs}"), 1e-6, |b| {
                let mut x = random_tensor(b, [1, rows, 1, 3 * 16], 1);
                let angles = |seed| random_tensor(b, [1, rows, 1, pairs], seed);
                b.rope(&mut x, 3, layout, &Angles { cos: angles(2), sin: angles(3) }).unwrap();
                x
            });
        }
    }
}

#[test]
fn shapes_that_do_not_fit_are_errors() {
    let b = &candle();
    let mut x = random_tensor(b, [1, 4, 1, 6], 1);
    let (short, narrow) = (random_tensor(b, [1, 3, 1, 6], 2), random_tensor(b, [1, 4, 1, 5], 3));
    let norm =
        |width| Norm { kind: NormKind::Rms, weight: b.vector(vec![1.; width]).unwrap(), bias: None, epsilon: 0. };
    let group_norm = |groups| GroupNorm {
        groups,
        weight: b.vector(vec![1.; 6]).unwrap(),
        bias: b.vector(vec![0.; 6]).unwrap(),
        epsilon: 0.,
    };
    let angles = |rows, pairs| Angles {
        cos: random_tensor(b, [1, rows, 1, pairs], 1),
        sin: random_tensor(b, [1, rows, 1, pairs], 1),
    };
    let results = [
        b.tensor(&[0.; 5], [1, 2, 1, 3]).map(drop),
        b.add(&mut x, &short),
        b.activate(Activation::Silu, &mut x, Some(&narrow)),
        b.add_expert(&mut x, &short, &[4, 0, 1], &b.zeros([1, 4, 1, 2]).unwrap(), 0),
        b.rows(&x, 3..5).map(drop),
        b.gather_rows(&x, &[4]).map(drop),
        b.write_rows(&mut x, 2, &short),
        b.add_rows(&mut x, usize::MAX, &short),
        b.write_rows(&mut x, 0, &narrow),
        b.concat_channels(&x, &short).map(drop),
        b.concat_tokens(&x, &narrow).map(drop),
        b.split_tokens(&x, 5).map(drop),
        b.permute(&x, &[24; 24], [4, 1], 6).map(drop),
        b.norm(&norm(4), &x).map(drop),
        b.norm(&norm(0), &x).map(drop),
        b.add_norm(&norm(6), &mut x, &short).map(drop),
        b.group_norm(&group_norm(4), &x, None, false).map(drop),
        b.group_norm(&group_norm(2), &x, Some(&short), false).map(drop),
        b.rope(&mut x, 2, RopeLayout::Halves, &angles(4, 2)),
        b.rope(&mut x, 2, RopeLayout::Halves, &angles(3, 1)),
        b.attention([&x, &short, &narrow], 2, false).map(drop),
        b.attention([&x, &short, &short], 4, false).map(drop),
        b.biased_attention([&x, &x, &x], 2, &random_tensor(b, [1, 2, 1, 6], 1)).map(drop),
    ];
    for (index, result) in results.into_iter().enumerate() {
        assert!(matches!(result, Err(ModelError::Compute(_))), "{index}: {result:?}");
    }
    assert_eq!(b.to_vec(&x).unwrap(), random(24, 1), "failed operations change nothing");
}

#[test]
fn requests_pause_and_can_be_cancelled() {
    let calls = Arc::new(AtomicUsize::new(0));
    let pause = {
        let calls = Arc::clone(&calls);
        move || match calls.fetch_add(1, Ordering::Relaxed) {
            0 => Ok(()),
            _ => Err(ModelError::Interrupted),
        }
    };
    let b = candle().for_request(RequestOptions { pause: Arc::new(pause), bf16_attention: false });
    let mut x = random_tensor(&b, [1, 4, 1, 6], 1);
    b.multiply(&mut x, 2.).unwrap();
    assert_eq!(b.multiply(&mut x, 2.), Err(ModelError::Interrupted));
    assert_eq!(calls.load(Ordering::Relaxed), 2);
}

#[test]
fn errors_of_the_device_are_told_from_bugs() {
    let device = || candle_core::Error::Cuda("CUDA_ERROR_OUT_OF_MEMORY".into());
    for error in [device(), device().context("matmul"), device().with_path("x")] {
        assert_eq!(ModelError::from(error), ModelError::Device("CUDA_ERROR_OUT_OF_MEMORY".to_owned()));
    }
    let bug = candle_core::Error::Msg("shape mismatch".to_owned());
    assert_eq!(ModelError::from(bug), ModelError::Compute("shape mismatch".to_owned()));
}
