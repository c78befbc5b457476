//! Attention of a small decoder (9 heads over 3 of width 64, f16) and of a small encoder (12 heads of width 32, f32,
//! bidirectional).
//!
//! `cargo bench -p outpost-kernels --bench attention -- [threads] [start] [encoder]`
#![expect(clippy::print_stdout, reason = "a benchmark prints")]

mod timing;

use half::f16;
use outpost_kernels::{AttentionSequence, AttentionShape, BLOCK_POSITIONS, KvBlocks, KvSlices, Pool, attend};
use timing::best;

const LAYERS: usize = 30;
const ENCODER_LAYERS: usize = 6;

/// Cases: rows after a number of positions.
struct Case {
    sequences: usize,
    rows: usize,
    start: usize,
    causal: bool,
}

fn main() {
    let mut numbers = std::env::args().skip(1).filter_map(|word| word.parse().ok());
    let (threads, only) = (numbers.next().unwrap_or(2), numbers.next());
    let encoder = std::env::args().any(|word| word == "encoder");
    let pool = Pool::new(threads);
    println!("{pool:?}");
    println!("{:>9} {:>6} {:>6} {:>10} {:>8} {:>8}", "sequences", "rows", "start", "ms/step", "GFLOP/s", "KV GB/s");
    for (sequences, rows, start) in [
        (1, 1, 128),
        (1, 1, 2048),
        (1, 1, 8192),
        (8, 1, 264),
        (32, 1, 264),
        (8, 6, 264),
        (1, 200, 0),
        (1, 512, 0),
        (1, 512, 1536),
    ] {
        if !encoder && only.is_none_or(|only| only == start) {
            measure::<f16>(&pool, &Case { sequences, rows, start, causal: true }, f16::from_f32);
        }
    }
    for (sequences, rows) in [(32, 16), (4, 128), (2, 256), (1, 512)] {
        if encoder || only.is_none_or(|only| only == 0) {
            measure::<f32>(&pool, &Case { sequences, rows, start: 0, causal: false }, |number| number);
        }
    }
}

trait Number: Copy {
    fn blocks<'a>(pair: KvSlices<'a, &'a [Self]>) -> KvBlocks<'a>;
}

impl Number for f16 {
    fn blocks<'a>(pair: KvSlices<'a, &'a [Self]>) -> KvBlocks<'a> {
        KvBlocks::F16(pair)
    }
}

impl Number for f32 {
    fn blocks<'a>(pair: KvSlices<'a, &'a [Self]>) -> KvBlocks<'a> {
        KvBlocks::F32(pair)
    }
}

fn measure<T: Number>(pool: &Pool, case: &Case, make: fn(f32) -> T) {
    let Case { sequences, rows, start, causal } = *case;
    let [heads, kv_heads, width] = if causal { [9, 3, 64] } else { [12, 12, 32] };
    let layers = if causal { LAYERS } else { ENCODER_LAYERS };
    let shape = AttentionShape { heads, kv_heads, width, scale: 0.125, causal, window: None, soft_cap: None };
    let total = rows + start;
    // Every layer and sequence has its own blocks, as in a model, so long contexts come from memory.
    let blocks = total.div_ceil(BLOCK_POSITIONS) * layers * sequences;
    let number = |index: usize| make((index * 37 % 101) as f32 / 50.0 - 1.0);
    let cache = |seed: usize| -> Vec<Vec<T>> {
        (0..blocks)
            .map(|block| (0..kv_heads * BLOCK_POSITIONS * width).map(|at| number(at + block + seed)).collect())
            .collect()
    };
    let (keys, values) = (cache(1), cache(2));
    let (keys, values): (Vec<_>, Vec<_>) =
        (keys.iter().map(Vec::as_slice).collect(), values.iter().map(Vec::as_slice).collect());
    let queries: Vec<f32> = (0..rows * heads * width).map(|at| (at * 17 % 89) as f32 / 40.0 - 1.0).collect();
    let mut out = vec![0f32; sequences * rows * heads * width];
    let step = || {
        for layer in 0..layers {
            let place = |sequence: usize| {
                let at = (layer * sequences + sequence) * total.div_ceil(BLOCK_POSITIONS);
                at..at + total.div_ceil(BLOCK_POSITIONS)
            };
            let part = |sequence: usize| AttentionSequence {
                queries: &queries,
                rows,
                start,
                positions: total,
                blocks: T::blocks(KvSlices { keys: &keys[place(sequence)], values: &values[place(sequence)] }),
            };
            let parts: Vec<_> = (0..sequences).map(part).collect();
            attend(pool, &parts, &shape, None, &mut out);
        }
    };
    let time = best(pool, 8, step);
    let pairs: usize = (0..rows).map(|row| if causal { start + row + 1 } else { total }).sum();
    let flop = (4 * pairs * heads * width * sequences * layers) as f64;
    let bytes = (2 * total * kv_heads * width * size_of::<T>() * sequences * layers) as f64;
    println!(
        "{sequences:>9} {rows:>6} {start:>6} {:>10.3} {:>8.0} {:>8.1}",
        time * 1e3,
        flop / time / 1e9,
        bytes / time / 1e9
    );
}
