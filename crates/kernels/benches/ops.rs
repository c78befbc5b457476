//! Small operations in a layer of a small decoder (width 576, 9 heads over 3 of width 64, 1,536 hidden), in
//! microseconds. "write f32" is for an encoder of the same width with heads of 32.
//!
//! `cargo bench -p outpost-kernels --bench ops -- [threads]`
#![expect(clippy::print_stdout, clippy::expect_used, reason = "a benchmark prints")]

#[path = "../tests/common/rng.rs"]
mod rng;
mod timing;

use half::f16;
use outpost_kernels::{
    Activation, Activations, BLOCK_POSITIONS, DType, KvBlockMut, KvPair, KvWrite, Linear, Norm, NormKind, Pool,
    RopeLayout, activate, kv_write, matmul_all, rope,
};
use rng::Rng;
use timing::best;

const WIDTH: usize = 576;
const INNER: usize = 1536;
const HEAD: usize = 64;

fn main() {
    let threads = std::env::args().skip(1).find_map(|word| word.parse().ok()).unwrap_or(2);
    let pool = Pool::new(threads);
    println!("{pool:?}, microseconds");
    println!(
        "{:>5} {:>8} {:>8} {:>8} {:>8} {:>8} {:>8} {:>8} {:>9} {:>8}",
        "rows", "norm", "add+norm", "silu", "gelu", "rope q", "rope k", "kv write", "write f32", "quantise"
    );
    let mut rng = Rng(1);
    for m in [1, 4, 8, 32, 512] {
        let mut numbers = |count: usize| (0..count).map(|_| rng.normal()).collect::<Vec<f32>>();
        let (x, weight, gate, up) = (numbers(m * WIDTH), numbers(WIDTH), numbers(m * INNER), numbers(m * INNER));
        let (cos, sin) = (numbers(m * HEAD / 2), numbers(m * HEAD / 2));
        let (mut out, mut inner) = (vec![0f32; m * WIDTH], gate.clone());
        let micros = |work: &mut dyn FnMut()| best(&pool, 50, || (0..20).for_each(|_| work())) * 1e6 / 20.0;
        let rms = Norm { kind: NormKind::Rms, weight: &weight, bias: None, epsilon: 1e-5 };
        let mut stream = vec![0f32; m * WIDTH];
        let norm = micros(&mut || rms.forward(&pool, &x, &mut out));
        let sum = micros(&mut || rms.add_forward(&pool, &mut stream, &x, &mut out));
        let mut activated = |activation, factors| {
            micros(&mut || {
                // Repeated in place, the values would become denormal or infinite.
                inner.copy_from_slice(&gate);
                activate(&pool, activation, &mut inner, factors)
            })
        };
        let (silu, gelu) = (activated(Activation::Silu, Some(&up[..])), activated(Activation::Gelu, None));
        let [mut q, mut k] = [numbers(m * WIDTH), numbers(m * 3 * HEAD)];
        let queries = micros(&mut || rope(&pool, &mut q, 9, HEAD, RopeLayout::Halves, &cos, &sin));
        let keys = micros(&mut || rope(&pool, &mut k, 3, HEAD, RopeLayout::Halves, &cos, &sin));
        // A prompt's rows are consecutive; others belong to many requests.
        let each = if m > 32 { BLOCK_POSITIONS } else { 1 };
        let mut halves = vec![[(); 2].map(|()| vec![f16::ZERO; 3 * HEAD * BLOCK_POSITIONS]); m / each];
        let f16_writes = micros(&mut || {
            kv_write(&pool, [3, HEAD], &k, &k, &mut block_writes(&mut halves, each, KvBlockMut::F16));
        });
        let mut floats = vec![[(); 2].map(|()| vec![0f32; WIDTH * BLOCK_POSITIONS]); m / each];
        let f32_writes = micros(&mut || {
            kv_write(&pool, [WIDTH / 32, 32], &x, &x, &mut block_writes(&mut floats, each, KvBlockMut::F32));
        });
        // One group of weights, so that their cost is negligible.
        let small = Linear::from_gguf(DType::Q8_0, 1, INNER, &[0; INNER / 32 * 34]).expect("a valid shape");
        let mut one = vec![0f32; m];
        let quantise = micros(&mut || matmul_all(&Activations::new(&pool, &gate, m, INNER), &mut [(&small, &mut one)]));
        println!(
            "{m:>5} {norm:>8.2} {sum:>8.2} {silu:>8.2} {gelu:>8.2} {queries:>8.2} {keys:>8.2} {f16_writes:>8.2} {f32_writes:>9.2} {quantise:>8.2}"
        );
    }
}

/// `each` consecutive rows into every block.
fn block_writes<'a, T>(
    blocks: &'a mut [[Vec<T>; 2]],
    each: usize,
    to_block: impl Fn(KvPair<&'a mut [T]>) -> KvBlockMut<'a>,
) -> Vec<KvWrite<'a>> {
    let fill = |(index, [keys, values]): (usize, &'a mut [Vec<T>; 2])| KvWrite {
        block: to_block(KvPair { keys, values }),
        row: index * each,
        slot: 0,
        count: each,
    };
    blocks.iter_mut().enumerate().map(fill).collect()
}
