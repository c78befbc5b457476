//! Speed of attention in the shapes of a small decoder: 9 heads over 3 of width 64, in f16.
//!
//! `cargo bench -p outpost-kernels --bench attention -- [threads] [start]`
#![expect(clippy::print_stdout, reason = "a benchmark prints")]

mod timing;

use half::f16;
use outpost_kernels::{Blocks, POSITIONS, Pair, Pool, Sequence, Shape, attend};
use timing::best;

const LAYERS: usize = 30;

fn main() {
    let mut numbers = std::env::args().skip(1).filter_map(|word| word.parse().ok());
    let (threads, only) = (numbers.next().unwrap_or(2), numbers.next());
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
        if only.is_none_or(|only| only == start) {
            measure(&pool, sequences, rows, start);
        }
    }
}

fn measure(pool: &Pool, sequences: usize, rows: usize, start: usize) {
    let (heads, kv_heads, width) = (9, 3, 64);
    let shape = Shape { heads, kv_heads, width, scale: 0.125, causal: true, window: None, soft_cap: None };
    let total = rows + start;
    // Every layer and sequence has its own blocks, as in a model, so that depth means memory.
    let blocks = total.div_ceil(POSITIONS) * LAYERS * sequences;
    let number = |index: usize| f16::from_f32((index * 37 % 101) as f32 / 50.0 - 1.0);
    let cache = |seed: usize| -> Vec<Vec<f16>> {
        (0..blocks)
            .map(|block| (0..kv_heads * POSITIONS * width).map(|at| number(at + block + seed)).collect())
            .collect()
    };
    let (keys, values) = (cache(1), cache(2));
    let (keys, values): (Vec<_>, Vec<_>) =
        (keys.iter().map(Vec::as_slice).collect(), values.iter().map(Vec::as_slice).collect());
    let queries: Vec<f32> = (0..rows * heads * width).map(|at| (at * 17 % 89) as f32 / 40.0 - 1.0).collect();
    let mut out = vec![0f32; sequences * rows * heads * width];
    let step = || {
        for layer in 0..LAYERS {
            let place = |sequence: usize| {
                let at = (layer * sequences + sequence) * total.div_ceil(POSITIONS);
                at..at + total.div_ceil(POSITIONS)
            };
            let part = |sequence: usize| Sequence {
                queries: &queries,
                rows,
                start,
                blocks: Blocks::F16(Pair { keys: &keys[place(sequence)], values: &values[place(sequence)] }),
            };
            let parts: Vec<_> = (0..sequences).map(part).collect();
            attend(pool, &parts, &shape, &mut out);
        }
    };
    let time = best(pool, 8, step);
    let pairs: usize = (0..rows).map(|row| start + row + 1).sum();
    let flop = (4 * pairs * heads * width * sequences * LAYERS) as f64;
    let bytes = (total * kv_heads * width * 4 * sequences * LAYERS) as f64;
    println!(
        "{sequences:>9} {rows:>6} {start:>6} {:>10.3} {:>8.0} {:>8.1}",
        time * 1e3,
        flop / time / 1e9,
        bytes / time / 1e9
    );
}
