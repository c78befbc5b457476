//! Operations of diffusion networks besides convolutions: attention, products, group norms, and writing keys and
//! values, in the shapes of SD 1.5, SDXL, SD3 and FLUX.
//!
//! `cargo bench -p outpost-kernels --bench diffusion -- [threads] [attention] [linear] [norm] [kv-write] [peak]`
#![expect(clippy::print_stdout, clippy::expect_used, reason = "a benchmark prints")]

#[path = "../tests/common/rng.rs"]
mod rng;
mod timing;

use half::bf16;
use outpost_kernels::{
    Activation, AttentionSequence, AttentionShape, BLOCK_POSITIONS, DType, GroupNorm, KvBlockMut, KvBlocks, KvPair,
    KvSlices, KvWrite, Linear, Pool, activate, attend, kv_write,
};
use rng::Rng;
use timing::best;

/// Heads, their width, rows and positions.
const ATTENTION: [[usize; 4]; 14] = [
    [8, 40, 4096, 4096],
    [8, 80, 1024, 1024],
    [8, 160, 256, 256],
    [8, 160, 64, 64],
    [8, 40, 4096, 77],
    [8, 80, 1024, 77],
    [8, 160, 256, 77],
    [10, 64, 4096, 4096],
    [20, 64, 1024, 1024],
    [24, 64, 1178, 1178],
    [24, 64, 4250, 4250],
    [24, 128, 1536, 1536],
    [24, 128, 4608, 4608],
    [1, 512, 4096, 4096],
];
/// Rows, inputs, outputs.
const LINEAR: [[usize; 3]; 8] = [
    [8192, 320, 320],
    [8192, 320, 2560],
    [8192, 1280, 320],
    [2048, 640, 640],
    [2048, 640, 5120],
    [512, 1280, 1280],
    [512, 1280, 10240],
    [154, 768, 320],
];
/// Pixels, channels.
const NORMS: [[usize; 2]; 6] = [[4096, 320], [1024, 640], [256, 1280], [64, 2560], [16384, 512], [262_144, 128]];

fn main() {
    let words: Vec<String> = std::env::args().skip(1).filter(|word| !word.starts_with("--")).collect();
    let threads = words.iter().find_map(|word| word.parse().ok()).unwrap_or(2);
    let is_selected =
        |name: &str| words.iter().all(|word| word.parse::<usize>().is_ok()) || words.iter().any(|w| w == name);
    let pool = Pool::new(threads);
    println!("{pool:?}");
    if is_selected("peak") {
        peaks(&pool);
    }
    if is_selected("attention") {
        ATTENTION.into_iter().for_each(|case| attention(&pool, case));
    }
    if is_selected("linear") {
        LINEAR.into_iter().for_each(|case| linear(&pool, case));
    }
    if is_selected("norm") {
        NORMS.into_iter().for_each(|case| norms(&pool, case));
    }
    if is_selected("kv-write") {
        ATTENTION.into_iter().for_each(|case| kv_writes(&pool, case));
    }
}

fn normals(count: usize) -> Vec<f32> {
    let mut rng = Rng(1);
    let some: Vec<f32> = (0..4099).map(|_| rng.normal()).collect();
    some.into_iter().cycle().take(count).collect()
}

fn attention(pool: &Pool, [heads, width, rows, positions]: [usize; 4]) {
    let scale = (width as f32).sqrt().recip();
    let shape = AttentionShape { heads, kv_heads: heads, width, scale, causal: false, window: None, soft_cap: None };
    let block = heads * BLOCK_POSITIONS * width;
    let numbers = normals(positions.div_ceil(BLOCK_POSITIONS) * block);
    let pairs: Vec<bf16> = numbers.iter().copied().map(bf16::from_f32).collect();
    let floats: Vec<&[f32]> = numbers.chunks(block).collect();
    let pairs: Vec<&[bf16]> = pairs.chunks(block).collect();
    let queries = normals(rows * heads * width);
    let mut out = vec![0f32; queries.len()];
    let flop = (4 * rows * positions * heads * width) as f64;
    let runs = (2e11 / flop).clamp(3.0, 50.0) as usize;
    print!("{heads:>3} × {width:<4} {rows:>5} of {positions:>5}:");
    let kv_types = [
        ("F32", KvBlocks::F32(KvSlices { keys: &floats, values: &floats })),
        ("BF16", KvBlocks::Bf16(KvSlices { keys: &pairs, values: &pairs })),
    ];
    for (name, blocks) in kv_types {
        let sequence = AttentionSequence { queries: &queries, rows, start: 0, positions, blocks };
        let time = best(pool, runs, || attend(pool, &[sequence], &shape, None, &mut out));
        print!("  {name} {:>9.3} ms {:>6.0} GFLOP/s", time * 1e3, flop / time / 1e9);
    }
    println!();
}

fn linear(pool: &Pool, [rows, k, n]: [usize; 3]) {
    let (numbers, x) = (normals(n * k), normals(rows * k));
    let mut out = vec![0f32; rows * n];
    let flop = (2 * rows * k * n) as f64;
    print!("{rows:>5} × {k:>5} → {n:>5}:");
    for dtype in [DType::F32, DType::BF16] {
        let linear = Linear::from_gguf(dtype, n, k, &bytes(dtype, &numbers)).expect("a valid shape");
        let time = best(pool, 8, || linear.forward(pool, &x, rows, &mut out));
        print!("  {dtype:?} {:>8.3} ms {:>6.0} GFLOP/s", time * 1e3, flop / time / 1e9);
    }
    println!();
}

fn bytes(dtype: DType, numbers: &[f32]) -> Vec<u8> {
    match dtype {
        DType::F32 => numbers.iter().flat_map(|x| x.to_le_bytes()).collect(),
        _ => numbers.iter().flat_map(|x| bf16::from_f32(*x).to_le_bytes()).collect(),
    }
}

fn norms(pool: &Pool, [pixels, channels]: [usize; 2]) {
    let (x, weight) = (normals(pixels * channels), normals(channels));
    let mut out = vec![0f32; x.len()];
    print!("{pixels:>6} × {channels:>4}:");
    for activation in [None, Some(Activation::Silu)] {
        let norm = GroupNorm { groups: 32, weight: &weight, bias: &weight, epsilon: 1e-5, activation };
        let time = best(pool, 20, || norm.forward(pool, &x, 1, None, &mut out));
        // Read twice, written once.
        let bytes = 12.0 * x.len() as f64;
        print!("  {activation:?} {:>8.3} ms {:>5.1} GB/s", time * 1e3, bytes / time / 1e9);
    }
    let time = best(pool, 20, || activate(pool, Activation::Gelu, &mut out, Some(&x)));
    println!("  gated GELU {:>8.3} ms", time * 1e3);
}

fn kv_writes(pool: &Pool, [heads, width, _, positions]: [usize; 4]) {
    let x = normals(positions * heads * width);
    let block = heads * BLOCK_POSITIONS * width;
    let mut buffers = [(); 2].map(|()| vec![0f32; positions.div_ceil(BLOCK_POSITIONS) * block]);
    let time = best(pool, 20, || {
        let [keys, values] = &mut buffers;
        let blocks = keys.chunks_mut(block).zip(values.chunks_mut(block)).enumerate();
        let mut writes: Vec<_> = blocks
            .map(|(index, (keys, values))| {
                let (row, count) = (index * BLOCK_POSITIONS, BLOCK_POSITIONS.min(positions - index * BLOCK_POSITIONS));
                KvWrite { block: KvBlockMut::F32(KvPair { keys, values }), row, slot: 0, count }
            })
            .collect();
        kv_write(pool, [heads, width], &x, &x, &mut writes);
    });
    println!("{positions:>5} positions of {heads:>2} × {width:<4}: written in {:>7.3} ms", time * 1e3);
}

/// Peak multiply-adds of floats and of bf16 pairs, from registers.
#[cfg(target_arch = "x86_64")]
fn peaks(pool: &Pool) {
    use std::arch::x86_64::{
        __m512bh, __m512i, _mm512_castsi512_ps, _mm512_dpbf16_ps, _mm512_fmadd_ps, _mm512_set1_epi32, _mm512_set1_ps,
    };
    const ROUNDS: usize = 200_000;
    if pool.isa() != outpost_kernels::Isa::Avx512Bf16 {
        return;
    }
    #[target_feature(enable = "avx512f,avx512bf16")]
    fn spin<const PAIRS: bool>() {
        let mut sums = [_mm512_set1_ps(0.0); 16];
        for round in 0..ROUNDS {
            let x = std::hint::black_box(_mm512_set1_epi32(round as i32));
            for sum in &mut sums {
                if PAIRS {
                    // SAFETY: both types have the same size.
                    let x = unsafe { std::mem::transmute::<__m512i, __m512bh>(x) };
                    *sum = _mm512_dpbf16_ps(*sum, x, x);
                } else {
                    let x = _mm512_castsi512_ps(x);
                    *sum = _mm512_fmadd_ps(x, x, *sum);
                }
            }
        }
        std::hint::black_box(sums);
    }
    let tasks = pool.threads() * 4;
    // SAFETY: the features were just checked.
    let floats = best(pool, 8, || pool.run(tasks, |_| unsafe { spin::<false>() }));
    // SAFETY: as above.
    let pairs = best(pool, 8, || pool.run(tasks, |_| unsafe { spin::<true>() }));
    let each = (tasks * ROUNDS * 16 * 32) as f64 / 1e9;
    println!("peaks: F32 {:.0} GFLOP/s, BF16 {:.0} GFLOP/s", each / floats, 2.0 * each / pairs);
}

#[cfg(not(target_arch = "x86_64"))]
fn peaks(_: &Pool) {}
