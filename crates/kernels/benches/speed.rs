//! Products of one step of a small decoder, and the peaks of this machine.
//!
//! `cargo bench -p outpost-kernels --bench speed -- [type] [threads]`; the environment variable `OUTPOST_KERNELS` picks
//! the instruction set.
#![expect(clippy::print_stdout, clippy::expect_used, reason = "a benchmark prints")]

mod decoder;
mod timing;

use decoder::{Buffers, Model, VOCABULARY, WIDTH};
use outpost_kernels::{DType, Pool};
use timing::best;

fn main() {
    let words: Vec<String> = std::env::args().skip(1).filter(|word| !word.starts_with("--")).collect();
    let type_name = words.first().map_or("Q4_1", String::as_str);
    let dtype = DType::ALL.into_iter().find(|dtype| format!("{dtype:?}") == type_name).unwrap_or(DType::Q4_1);
    let threads = words.get(1).and_then(|word| word.parse().ok()).unwrap_or(2);
    let pool = Pool::new(threads);
    let (bandwidth, peak) = (memory(&pool), multiplications(&pool));
    println!("{pool:?} {dtype:?}: memory {bandwidth:.1} GB/s, dot products {peak:.0} GOP/s");

    let head = if dtype.is_quantised() { DType::Q8_0 } else { dtype };
    let model = Model::new(dtype, head);
    let bytes = model.bytes();
    println!("weights {:.1} MB", bytes as f64 / 1e6);
    let layers: f64 = model.matrices().map(|matrix| (2 * matrix.n() * matrix.k()) as f64).sum();
    let mut buffers = Buffers::new(512);
    println!(
        "{:>4} {:>10} {:>9} {:>6} {:>6} {:>8} {:>6}",
        "m", "ms/step", "tokens/s", "GB/s", "of max", "GOP/s", "of max"
    );
    for m in [1, 2, 3, 4, 8, 16, 32, 64, 128, 512] {
        // A prefill chunk needs one row's logits; a batch of decodes needs all.
        let logits = if m > 32 { 1 } else { m };
        let runs = if m > 32 { 8 } else { 25 };
        let time = best(&pool, runs, || model.step(&pool, m, logits, &mut buffers));
        let gb = bytes as f64 / time / 1e9;
        let gop = (layers * m as f64 + (2 * VOCABULARY * WIDTH * logits) as f64) / time / 1e9;
        println!(
            "{m:>4} {:>10.3} {:>9.0} {gb:>6.1} {:>5.0}% {gop:>8.0} {:>5.0}%",
            time * 1e3,
            m as f64 / time,
            gb / bandwidth * 100.0,
            gop / peak * 100.0
        );
    }
    empty_section(&pool);
}

/// The cost of an empty parallel section.
fn empty_section(pool: &Pool) {
    let time = best(pool, 50, || (0..100).for_each(|_| pool.run(8, |_| {})));
    println!("an empty section of 8 tasks: {:.2} µs", time * 1e4);
}

/// Reads 256 MiB; GB/s.
fn memory(pool: &Pool) -> f64 {
    let data = vec![1u64; 32 << 20];
    let part = data.len() / 64;
    let time = best(pool, 8, || {
        pool.run(64, |task| {
            let sums = data[task * part..(task + 1) * part].chunks_exact(32).fold([0u64; 32], |mut sums, chunk| {
                sums.iter_mut().zip(chunk).for_each(|(sum, x)| *sum = sum.wrapping_add(*x));
                sums
            });
            std::hint::black_box(sums);
        });
    });
    (data.len() * 8) as f64 / time / 1e9
}

/// Integer dot products from registers, in billions of multiply-adds a second.
#[cfg(target_arch = "x86_64")]
fn multiplications(pool: &Pool) -> f64 {
    const ROUNDS: usize = 200_000;
    if !outpost_kernels::Isa::Avx512.is_available() {
        return f64::NAN;
    }
    #[target_feature(enable = "avx512f,avx512vnni")]
    fn spin() {
        use std::arch::x86_64::{_mm512_dpbusd_epi32, _mm512_set1_epi32};
        let mut sums = [_mm512_set1_epi32(0); 16];
        for round in 0..ROUNDS {
            let x = std::hint::black_box(_mm512_set1_epi32(round as i32));
            for sum in &mut sums {
                *sum = _mm512_dpbusd_epi32(*sum, x, x);
            }
        }
        std::hint::black_box(sums);
    }
    // SAFETY: the features were just checked.
    let time = best(pool, 8, || pool.run(pool.threads() * 4, |_| unsafe { spin() }));
    (pool.threads() * 4 * ROUNDS * 16 * 128) as f64 / time / 1e9
}

#[cfg(not(target_arch = "x86_64"))]
fn multiplications(_: &Pool) -> f64 {
    f64::NAN
}
