//! A device with nothing but the required methods of [`Backend`] computes the rest like the CPU.

use std::ops::Range;

use super::cpu::Cpu;
use super::interface::{Angles, Backend, FeedForward, LowRankUpdate, Norm, RequestOptions, RoutedExpert, Tensor};
use super::routing::Routing;
use super::types::{Activation, DType, NormKind, Pool, RopeLayout};
use crate::error::Result;
use crate::weights::Rows;

/// The CPU without the operations that it computes at once.
#[derive(Clone, Debug)]
struct Minimal(Cpu);

fn wrap(data: Tensor<Cpu>) -> Tensor<Minimal> {
    Tensor { images: data.images, size: data.size, channels: data.channels, data }
}

impl Backend for Minimal {
    type Data = Tensor<Cpu>;
    type Vector = Vec<f32>;
    type Linear = <Cpu as Backend>::Linear;
    type ThreadBinding = ();

    fn for_request(&self, options: RequestOptions) -> Self {
        Self(self.0.for_request(options))
    }

    fn thread_binding(&self) {}

    fn pause(&self) -> Result<()> {
        self.0.pause()
    }

    fn pool(&self) -> &Pool {
        self.0.pool()
    }

    fn read_linear(&self, weight: &Rows<'_>, bias: Option<&[f32]>, embedding: bool) -> Result<Self::Linear> {
        self.0.read_linear(weight, bias, embedding)
    }

    fn vector(&self, values: Vec<f32>) -> Result<Vec<f32>> {
        Ok(values)
    }

    fn linear_bytes(&self, dtype: DType, rows: usize, columns: usize) -> usize {
        self.0.linear_bytes(dtype, rows, columns)
    }

    fn loading_bytes(&self, dtype: DType, rows: usize, columns: usize) -> usize {
        self.0.loading_bytes(dtype, rows, columns)
    }

    fn upload(&self, shape: [usize; 4], fill: &mut dyn FnMut(&mut [f32]) -> Result<()>) -> Result<Tensor<Self>> {
        self.0.upload(shape, fill).map(wrap)
    }

    fn to_vec(&self, x: &Tensor<Self>) -> Result<Vec<f32>> {
        self.0.to_vec(&x.data)
    }

    fn reshape(&self, x: Tensor<Self>, shape: [usize; 4]) -> Result<Tensor<Self>> {
        self.0.reshape(x.data, shape).map(wrap)
    }

    fn gather_rows(&self, x: &Tensor<Self>, rows: &[usize]) -> Result<Tensor<Self>> {
        self.0.gather_rows(&x.data, rows).map(wrap)
    }

    fn write_rows(&self, x: &mut Tensor<Self>, first: usize, y: &Tensor<Self>) -> Result<()> {
        self.0.write_rows(&mut x.data, first, &y.data)
    }

    fn embedding(&self, weight: &Self::Linear, ids: &[u32]) -> Result<Tensor<Self>> {
        self.0.embedding(weight, ids).map(wrap)
    }

    fn linears<const N: usize>(&self, weights: [&Self::Linear; N], x: &Tensor<Self>) -> Result<[Tensor<Self>; N]> {
        Ok(self.0.linears(weights, &x.data)?.map(wrap))
    }

    fn norm(&self, norm: &Norm<Self>, x: &Tensor<Self>) -> Result<Tensor<Self>> {
        let Norm { kind, weight, bias, epsilon } = norm;
        let norm = Norm { kind: *kind, weight: weight.clone(), bias: bias.clone(), epsilon: *epsilon };
        self.0.norm(&norm, &x.data).map(wrap)
    }

    fn add(&self, x: &mut Tensor<Self>, y: &Tensor<Self>) -> Result<()> {
        self.0.add(&mut x.data, &y.data)
    }

    fn multiply_by(&self, x: &mut Tensor<Self>, y: &Tensor<Self>) -> Result<()> {
        self.0.multiply_by(&mut x.data, &y.data)
    }

    fn multiply(&self, x: &mut Tensor<Self>, factor: f32) -> Result<()> {
        self.0.multiply(&mut x.data, factor)
    }

    fn activate(&self, activation: Activation, x: &mut Tensor<Self>, factors: Option<&Tensor<Self>>) -> Result<()> {
        self.0.activate(activation, &mut x.data, factors.map(|factors| &factors.data))
    }

    fn rope(&self, x: &mut Tensor<Self>, heads: usize, layout: RopeLayout, angles: &Angles<Self>) -> Result<()> {
        let [cos, sin] = [&angles.cos, &angles.sin].map(|angles| self.0.copy(&angles.data));
        self.0.rope(&mut x.data, heads, layout, &Angles { cos: cos?, sin: sin? })
    }

    fn attention(&self, qkv: [&Tensor<Self>; 3], heads: usize, causal: bool) -> Result<Tensor<Self>> {
        self.0.attention(qkv.map(|x| &x.data), heads, causal).map(wrap)
    }

    fn biased_attention(&self, qkv: [&Tensor<Self>; 3], heads: usize, bias: &Tensor<Self>) -> Result<Tensor<Self>> {
        self.0.biased_attention(qkv.map(|x| &x.data), heads, &bias.data).map(wrap)
    }
}

fn minimal() -> Minimal {
    Minimal(Cpu::new(1))
}

/// Numbers of both signs.
fn values(len: usize, seed: usize) -> Vec<f32> {
    (0..len).map(|index| ((index * 7 + seed * 31) as f32 * 0.37).sin()).collect()
}

fn tensor<B: Backend>(backend: &B, shape: [usize; 4], seed: usize) -> Tensor<B> {
    backend.tensor(&values(shape.iter().product(), seed), shape).unwrap()
}

fn linear<B: Backend>(backend: &B, [rows, columns]: [usize; 2], seed: usize) -> B::Linear {
    let bytes = values(rows * columns, seed).into_iter().flat_map(f32::to_le_bytes).collect();
    backend.read_linear(&Rows::from_bytes(DType::F32, rows, columns, bytes).unwrap(), None, false).unwrap()
}

/// Computes the same on both devices and compares shapes and elements.
macro_rules! compare {
    ($what:expr, |$backend:ident| $body:expr) => {{
        let expected = {
            let $backend = &Cpu::new(1);
            let tensor = $body;
            (tensor.shape(), $backend.to_vec(&tensor).unwrap())
        };
        let found = {
            let $backend = &minimal();
            let tensor = $body;
            (tensor.shape(), $backend.to_vec(&tensor).unwrap())
        };
        assert_eq!(found.0, expected.0, "{}", $what);
        let differences = found.1.iter().zip(&expected.1).map(|(found, expected)| (found - expected).abs());
        let most = differences.fold(0., f32::max);
        assert!(most < 1e-5 && found.1.iter().all(|x| x.is_finite()), "{}: a difference of {most:e}", $what);
    }};
}

const SHAPE: [usize; 4] = [2, 3, 5, 4];

#[test]
fn rows_and_layout_are_composed() {
    compare!("zeros", |b| b.zeros(SHAPE).unwrap());
    compare!("copy", |b| b.copy(&tensor(b, SHAPE, 1)).unwrap());
    compare!("rows", |b| b.rows(&tensor(b, SHAPE, 1), 4..19).unwrap());
    compare!("add_rows", |b| {
        let mut x = tensor(b, SHAPE, 1);
        b.add_rows(&mut x, 7, &tensor(b, [1, 9, 1, 4], 2)).unwrap();
        x
    });
    compare!("concat_channels", |b| { b.concat_channels(&tensor(b, SHAPE, 1), &tensor(b, [2, 3, 5, 3], 2)).unwrap() });
    compare!("concat_tokens", |b| {
        b.concat_tokens(&tensor(b, [3, 5, 1, 4], 1), &tensor(b, [3, 2, 1, 4], 2)).unwrap()
    });
    for part in 0..2 {
        for count in [0, 2, 5] {
            compare!("split_tokens", |b| {
                let parts = b.split_tokens(&tensor(b, [3, 5, 1, 4], 1), count).unwrap();
                parts.into_iter().nth(part).unwrap()
            });
        }
    }
    compare!("repeat", |b| b.repeat(&tensor(b, [1, 3, 5, 4], 1), 3).unwrap());
    for size in [[7, 2], [6, 10], [1, 1]] {
        compare!("resize", |b| b.resize(&tensor(b, SHAPE, 1), size).unwrap());
    }
    let order: Vec<u32> = (0..60).map(|index| index * 7 % 60).collect();
    compare!("permute", |b| b.permute(&tensor(b, SHAPE, 1), &order, [10, 2], 3).unwrap());
}

#[test]
fn elementwise_operations_and_modulation_are_composed() {
    compare!("divide", |b| {
        let mut x = tensor(b, SHAPE, 1);
        b.divide(&mut x, 1.7).unwrap();
        x
    });
    compare!("leaky_relu", |b| {
        let mut x = tensor(b, SHAPE, 1);
        b.leaky_relu(&mut x, 0.1).unwrap();
        x
    });
    let vectors = [2, 1, 1, 12];
    compare!("modulate", |b| {
        let mut x = tensor(b, SHAPE, 1);
        b.modulate(&mut x, &tensor(b, vectors, 2), [2, 0]).unwrap();
        x
    });
    compare!("modulated_norm", |b| {
        b.modulated_norm(1e-3, &tensor(b, SHAPE, 1), &tensor(b, vectors, 2), [0, 1]).unwrap()
    });
    compare!("add_gated", |b| {
        let mut x = tensor(b, SHAPE, 1);
        b.add_gated(&mut x, &tensor(b, SHAPE, 3), &tensor(b, vectors, 2), 1).unwrap();
        x
    });
}

#[test]
fn products_norms_and_experts_are_composed() {
    compare!("add_norm", |b| {
        let weight = b.vector(values(4, 5)).unwrap();
        let norm = Norm { kind: NormKind::Rms, weight, bias: None, epsilon: 1e-3 };
        let mut x = tensor(b, SHAPE, 1);
        let normed = b.add_norm(&norm, &mut x, &tensor(b, SHAPE, 2)).unwrap();
        b.concat_channels(&x, &normed).unwrap()
    });
    for has_gate in [true, false] {
        compare!("feed_forward", |b| {
            let [gate, up, down] = [([6, 4], 1), ([6, 4], 2), ([3, 6], 3)].map(|(sizes, seed)| linear(b, sizes, seed));
            let gate = has_gate.then_some(&gate);
            let mlp = FeedForward { gate, up: &up, down: &down, activation: Activation::Silu };
            b.feed_forward(mlp, &tensor(b, [1, 7, 1, 4], 4)).unwrap()
        });
    }
    compare!("adapted_linears", |b| {
        let [weight, down, up] = [([6, 4], 1), ([2, 4], 2), ([6, 2], 3)].map(|(sizes, seed)| linear(b, sizes, seed));
        let update = |rows: Range<usize>, scale| LowRankUpdate { output: 0, rows, down: &down, up: &up, scale };
        let updates = [update(0..3, 0.5), update(5..7, 2.)];
        let [out] = b.adapted_linears([&weight], &updates, &tensor(b, [1, 7, 1, 4], 4)).unwrap();
        out
    });
    for (has_gate, tokens) in [(true, 90), (true, 3), (false, 90)] {
        compare!("experts", |b| {
            let experts: Vec<_> = (0..5)
                .map(|seed| {
                    [([6, 4], 1), ([6, 4], 2), ([4, 6], 3)].map(|(sizes, own)| linear(b, sizes, 10 * seed + own))
                })
                .collect();
            let routed = b.route(&Routing::softmax(2), None, tensor(b, [1, tokens, 1, 5], 1)).unwrap();
            let (x, mut out) = (tensor(b, [1, tokens, 1, 4], 2), tensor(b, [1, tokens, 1, 4], 3));
            let experts = experts.iter().zip(&routed.tokens).enumerate().map(|(index, ([gate, up, down], tokens))| {
                let gate = has_gate.then_some(gate);
                RoutedExpert { index, network: FeedForward { gate, up, down, activation: Activation::Silu }, tokens }
            });
            b.add_experts(&mut out, &experts.collect::<Vec<_>>(), &x, &routed.weights).unwrap();
            out
        });
    }
    for normalise_weights in [true, false] {
        compare!("mixture of experts", |b| {
            let routing = Routing { normalise_weights, ..Routing::softmax(2) };
            let routed = b.route(&routing, Some(&[0., 0.5, 0., 0., 0.5]), tensor(b, [1, 6, 1, 5], 1)).unwrap();
            let (x, mut out) = (tensor(b, [1, 6, 1, 4], 2), tensor(b, [1, 6, 1, 4], 3));
            for (expert, tokens) in routed.tokens.iter().enumerate().filter(|(_, tokens)| !tokens.is_empty()) {
                let y = b.gather_rows(&x, tokens).unwrap();
                b.add_expert(&mut out, &y, tokens, &routed.weights, expert).unwrap();
            }
            out
        });
    }
}

#[test]
fn shapes_that_do_not_fit_are_errors() {
    let b = &minimal();
    let mut x = tensor(b, SHAPE, 1);
    let text = tensor(b, [2, 5, 1, 4], 1);
    assert!(b.rows(&x, 29..31).is_err());
    assert!(b.add_rows(&mut x, 29, &text).is_err());
    assert!(b.add_rows(&mut x, usize::MAX, &text).is_err());
    assert!(b.concat_channels(&x, &text).is_err());
    assert!(b.concat_tokens(&text, &tensor(b, [1, 5, 1, 4], 1)).is_err());
    assert!(b.concat_tokens(&text, &tensor(b, [2, 5, 1, 2], 1)).is_err());
    assert!(b.split_tokens(&text, 6).is_err());
    assert!(b.repeat(&x, 2).is_err());
    assert!(b.permute(&x, &[60; 60], [3, 5], 4).is_err());
    assert!(b.permute(&x, &[0; 59], [3, 5], 4).is_err());
    let vectors = tensor(b, [2, 1, 1, 8], 2);
    assert!(b.modulate(&mut x, &vectors, [0, 2]).is_err());
    assert!(b.modulate(&mut x, &tensor(b, [1, 1, 1, 8], 2), [0, 1]).is_err());
    assert!(b.add_expert(&mut x, &text, &[0; 10], &tensor(b, [1, 30, 1, 3], 1), 3).is_err());
    assert!(b.add_expert(&mut x, &text, &[30; 10], &tensor(b, [1, 30, 1, 3], 1), 0).is_err());
}
