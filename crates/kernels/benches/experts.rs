//! A mixture of experts with gates, in milliseconds a layer: every expert by itself, and all experts of a batch in sections of their own.
//! Both are measured in alternation; the figures are minima.
//!
//! `cargo bench -p outpost-kernels --bench experts -- [type] [threads] [rows of a batch] [shape] [tokens]`
#![expect(clippy::print_stdout, clippy::expect_used, reason = "a benchmark prints")]

#[path = "../tests/common/rng.rs"]
mod rng;
mod timing;
#[path = "../tests/common/weights.rs"]
mod weights;

use outpost_kernels::{
    Activation, Activations, DType, Linear, Pool, RowShare, activate, add_shares, matmul_all, matmul_parts,
};
use rng::Rng;
use timing::best;
use weights::random_weights;

/// Width, inner width, experts, and experts of a token, as in Granite 4 H tiny, LFM2 8B-A1B and Qwen3.5 35B-A3B.
const SHAPES: [(&str, usize, usize, usize, usize); 3] = [
    ("granite-4-h-tiny", 1536, 512, 64, 6),
    ("lfm2-8b-a1b", 2048, 1792, 32, 4),
    ("qwen3.5-35b-a3b", 2048, 512, 256, 8),
];

struct Layer {
    /// Gate, up and down.
    experts: Vec<[Linear; 3]>,
    width: usize,
    inner: usize,
    /// Rows of a batch.
    batch: usize,
}

fn main() {
    let words: Vec<String> = std::env::args().skip(1).filter(|word| !word.starts_with("--")).collect();
    let type_name = words.first().map_or("Q4K", String::as_str);
    let dtype = DType::ALL.into_iter().find(|dtype| format!("{dtype:?}") == type_name).unwrap_or(DType::Q4K);
    let threads = words.get(1).and_then(|word| word.parse().ok()).unwrap_or(2);
    let batch = words.get(2).and_then(|word| word.parse().ok()).unwrap_or(64 * threads);
    let (shape, count) = (words.get(3), words.get(4).and_then(|word| word.parse().ok()));
    let pool = Pool::new(threads);
    println!("{pool:?} {dtype:?}");
    println!("{:>18} {:>6} {:>10} {:>10} {:>6}", "shape", "tokens", "one by one", "together", "ratio");
    for (name, width, inner, experts, used) in SHAPES {
        if shape.is_some_and(|shape| shape != name) {
            continue;
        }
        let mut rng = Rng(1);
        let mut matrix = |n: usize, k: usize| {
            let bytes = random_weights(&mut rng, dtype, n * k);
            Linear::from_gguf(dtype, n, k, &bytes).expect("whole blocks")
        };
        let experts = (0..experts).map(|_| [matrix(inner, width), matrix(inner, width), matrix(width, inner)]);
        let layer = Layer { experts: experts.collect(), width, inner, batch };
        for tokens in [1, 8, 64, 256, 512, 1024] {
            if count.is_some_and(|count: usize| count != tokens) {
                continue;
            }
            let x: Vec<f32> = (0..tokens * width).map(|_| rng.normal()).collect();
            let tokens_of = route(&mut rng, tokens, layer.experts.len(), used);
            let (mut out, mut other) = (vec![0.; tokens * width], vec![0.; tokens * width]);
            let buffers = &mut Buffers::default();
            let (mut apart, mut together) = (f64::INFINITY, f64::INFINITY);
            for _ in 0..5 {
                apart = apart.min(best(&pool, 3, || layer.one_by_one(&pool, &x, &tokens_of, &mut out, buffers)));
                together = together.min(best(&pool, 3, || layer.together(&pool, &x, &tokens_of, &mut other, buffers)));
            }
            assert_eq!(out, other, "both compute the same bits");
            let ratio = apart / together;
            println!("{name:>18} {tokens:>6} {:>10.3} {:>10.3} {ratio:>6.2}", apart * 1e3, together * 1e3);
        }
    }
}

/// The tokens of each expert; all experts are equally likely.
fn route(rng: &mut Rng, tokens: usize, experts: usize, used: usize) -> Vec<Vec<usize>> {
    let mut tokens_of = vec![Vec::new(); experts];
    for token in 0..tokens {
        let mut chosen = Vec::new();
        while chosen.len() < used {
            let expert = rng.next() as usize % experts;
            if !chosen.contains(&expert) {
                chosen.push(expert);
                tokens_of[expert].push(token);
            }
        }
    }
    tokens_of
}

/// The weight of a token for an expert.
fn factor(token: usize, expert: usize) -> f32 {
    1. / (1 + (token + expert) % 7) as f32
}

/// Memory that is allocated once, as a server does.
#[derive(Default)]
struct Buffers {
    input: Vec<f32>,
    gate_out: Vec<f32>,
    up_out: Vec<f32>,
    y: Vec<f32>,
}

/// Makes buffers long enough.
fn buffers_of<const N: usize>(buffers: [&mut Vec<f32>; N], len: usize) {
    for buffer in buffers {
        buffer.resize(buffer.len().max(len), 0.);
    }
}

impl Layer {
    fn one_by_one(&self, pool: &Pool, x: &[f32], tokens_of: &[Vec<usize>], out: &mut [f32], buffers: &mut Buffers) {
        let Self { width, inner, .. } = *self;
        let most = tokens_of.iter().map(Vec::len).max().unwrap_or(0);
        let Buffers { input, y, gate_out, up_out } = buffers;
        buffers_of([input, y], most * width);
        buffers_of([gate_out, up_out], most * inner);
        out.fill(0.);
        for (expert, tokens) in tokens_of.iter().enumerate().filter(|(_, tokens)| !tokens.is_empty()) {
            let [gate, up, down] = &self.experts[expert];
            let m = tokens.len();
            for (token, row) in tokens.iter().zip(input.chunks_exact_mut(width)) {
                row.copy_from_slice(&x[token * width..][..width]);
            }
            let (gate_out, up_out, y) = (&mut gate_out[..m * inner], &mut up_out[..m * inner], &mut y[..m * width]);
            let activations = Activations::new(pool, &input[..m * width], m, width);
            matmul_all(&activations, &mut [(gate, &mut *gate_out), (up, &mut *up_out)]);
            drop(activations);
            activate(pool, Activation::Silu, gate_out, Some(up_out));
            down.forward(pool, gate_out, m, y);
            for (token, y) in tokens.iter().zip(y.chunks_exact(width)) {
                let factor = factor(*token, expert);
                out[token * width..][..width].iter_mut().zip(y).for_each(|(out, y)| *out += y * factor);
            }
        }
    }

    fn together(&self, pool: &Pool, x: &[f32], tokens_of: &[Vec<usize>], out: &mut [f32], buffers: &mut Buffers) {
        let limit = self.batch;
        out.fill(0.);
        let (mut start, mut rows) = (0, 0);
        for end in 1..=tokens_of.len() {
            rows += tokens_of[end - 1].len();
            let next = tokens_of.get(end).map_or(usize::MAX, Vec::len);
            if rows.saturating_add(next) > limit {
                self.batch(pool, x, (start, &tokens_of[start..end]), out, buffers);
                (start, rows) = (end, 0);
            }
        }
        assert_eq!(start, tokens_of.len());
    }

    fn batch(
        &self,
        pool: &Pool,
        x: &[f32],
        (first, tokens_of): (usize, &[Vec<usize>]),
        out: &mut [f32],
        buffers: &mut Buffers,
    ) {
        let Self { width, inner, .. } = *self;
        let experts: Vec<usize> =
            (first..first + tokens_of.len()).filter(|e| !tokens_of[e - first].is_empty()).collect();
        let sizes: Vec<usize> = experts.iter().map(|expert| tokens_of[expert - first].len()).collect();
        let rows: Vec<usize> = tokens_of.iter().flatten().copied().collect();
        let matrices = |index: usize| experts.iter().map(|expert| &self.experts[*expert][index]).collect::<Vec<_>>();
        let [gates, ups, downs] = [0, 1, 2].map(matrices);
        let Buffers { y, gate_out, up_out, .. } = buffers;
        buffers_of([gate_out, up_out], rows.len() * inner);
        buffers_of([y], rows.len() * width);
        let (gate_out, up_out, y) =
            (&mut gate_out[..rows.len() * inner], &mut up_out[..rows.len() * inner], &mut y[..rows.len() * width]);
        let activations = Activations::gathered(pool, x, width, &rows, &sizes);
        matmul_parts(&activations, &mut [(&gates[..], &mut gate_out[..]), (&ups[..], &mut up_out[..])]);
        drop(activations);
        activate(pool, Activation::Silu, gate_out, Some(up_out));
        matmul_parts(&Activations::in_parts(pool, gate_out, inner, &sizes), &mut [(&downs[..], &mut y[..])]);
        let mut shares: Vec<(usize, RowShare)> = Vec::with_capacity(rows.len());
        let mut row = 0;
        for expert in &experts {
            for token in &tokens_of[expert - first] {
                shares.push((*token, RowShare { row, factor: factor(*token, *expert) }));
                row += 1;
            }
        }
        shares.sort_by_key(|(token, share)| (*token, share.row));
        let ends: Vec<usize> =
            (0..x.len() / width).map(|token| shares.partition_point(|(other, _)| *other <= token)).collect();
        let shares: Vec<RowShare> = shares.into_iter().map(|(_, share)| share).collect();
        add_shares(pool, out, y, width, &shares, &ends);
    }
}
