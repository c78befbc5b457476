//! The products of a small decoder: 30 layers of width 576, and a head of 49,152 rows. Its weights exceed any cache.

#[path = "../../tests/common/rng.rs"]
mod rng;
#[path = "../../tests/common/weights.rs"]
mod weights;

use outpost_kernels::{Activations, DType, Linear, Pool, matmul_all};
use rng::Rng;
use weights::random_weights;

const LAYERS: usize = 30;
pub const WIDTH: usize = 576;
const KV: usize = 192;
const INNER: usize = 1536;
pub const VOCABULARY: usize = 49_152;

struct Layer {
    q: Linear,
    k: Linear,
    v: Linear,
    o: Linear,
    gate: Linear,
    up: Linear,
    down: Linear,
}

pub struct Model {
    layers: Vec<Layer>,
    head: Linear,
}

fn matrix(rng: &mut Rng, dtype: DType, n: usize, k: usize) -> Linear {
    Linear::from_gguf(dtype, n, k, &random_weights(rng, dtype, n * k)).expect("a valid shape")
}

impl Model {
    pub fn new(dtype: DType, head: DType) -> Self {
        let mut rng = Rng(1);
        // The K types need rows of whole 256s.
        let width = if dtype.block() == 256 { 512 } else { WIDTH };
        let layer = |rng: &mut Rng| Layer {
            q: matrix(rng, dtype, WIDTH, width),
            k: matrix(rng, dtype, KV, width),
            v: matrix(rng, dtype, KV, width),
            o: matrix(rng, dtype, WIDTH, width),
            gate: matrix(rng, dtype, INNER, width),
            up: matrix(rng, dtype, INNER, width),
            down: matrix(rng, dtype, WIDTH, INNER),
        };
        let layers = (0..LAYERS).map(|_| layer(&mut rng)).collect();
        Self { layers, head: matrix(&mut rng, head, VOCABULARY, WIDTH) }
    }

    pub fn matrices(&self) -> impl Iterator<Item = &Linear> {
        self.layers.iter().flat_map(|l| [&l.q, &l.k, &l.v, &l.o, &l.gate, &l.up, &l.down])
    }

    pub fn bytes(&self) -> usize {
        self.matrices().map(Linear::bytes).sum::<usize>() + self.head.bytes()
    }

    /// All products of a step of `m` rows; `logits` of them go through the head.
    pub fn step(&self, pool: &Pool, m: usize, logits: usize, buffers: &mut Buffers) {
        let Buffers { x, out: [q, k, v, o, gate, up, down] } = buffers;
        for layer in &self.layers {
            let width = layer.q.k();
            let input = Activations::new(pool, &x[..m * width], m, width);
            let mut three =
                [(&layer.q, &mut q[..m * WIDTH]), (&layer.k, &mut k[..m * KV]), (&layer.v, &mut v[..m * KV])];
            matmul_all(&input, &mut three);
            layer.o.forward(pool, &x[..m * width], m, &mut o[..m * WIDTH]);
            let input = Activations::new(pool, &x[..m * width], m, width);
            matmul_all(&input, &mut [(&layer.gate, &mut gate[..m * INNER]), (&layer.up, &mut up[..m * INNER])]);
            layer.down.forward(pool, &x[..m * INNER], m, &mut down[..m * WIDTH]);
        }
        let mut out = std::mem::take(gate);
        out.resize(out.len().max(logits * VOCABULARY), 0.0);
        self.head.forward(pool, &x[..logits * WIDTH], logits, &mut out[..logits * VOCABULARY]);
        *gate = out;
    }
}

/// Inputs and output buffers of each matrix.
pub struct Buffers {
    x: Vec<f32>,
    out: [Vec<f32>; 7],
}

impl Buffers {
    /// For `m` rows.
    pub fn new(rows: usize) -> Self {
        let mut rng = Rng(2);
        let x = (0..rows * INNER).map(|_| rng.normal()).collect();
        Self { x, out: [WIDTH, KV, KV, WIDTH, INNER, INNER, WIDTH].map(|size| vec![0f32; rows * size]) }
    }
}
