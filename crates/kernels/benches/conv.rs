//! Convolutions of a diffusion network (SD 1.5 at 512 × 512: its layers and its decoder's), with BF16 and F32 weights.
//!
//! `cargo bench -p outpost-kernels --bench conv -- [threads]`
#![expect(clippy::print_stdout, clippy::expect_used, reason = "a benchmark prints")]

#[path = "../tests/common/rng.rs"]
mod rng;
mod timing;

use half::bf16;
use outpost_kernels::{Conv2d, ConvInput, ConvShape, DType, Pool};
use rng::Rng;
use timing::best;

/// Images, inputs, outputs, kernel, stride, side of the image.
const CASES: [[usize; 6]; 20] = [
    [2, 4, 320, 3, 1, 64],
    [2, 320, 320, 3, 1, 64],
    [2, 960, 320, 3, 1, 64],
    [2, 640, 640, 3, 1, 32],
    [2, 1920, 640, 3, 1, 32],
    [2, 1280, 1280, 3, 1, 16],
    [2, 2560, 1280, 3, 1, 16],
    [2, 1280, 1280, 3, 1, 8],
    [2, 2560, 1280, 3, 1, 8],
    [2, 320, 320, 3, 2, 64],
    [2, 320, 4, 3, 1, 64],
    [2, 960, 320, 1, 1, 64],
    [2, 1920, 640, 1, 1, 32],
    [2, 2560, 1280, 1, 1, 8],
    [1, 4, 512, 3, 1, 64],
    [1, 512, 512, 3, 1, 64],
    [1, 512, 512, 3, 1, 128],
    [1, 256, 256, 3, 1, 256],
    [1, 128, 128, 3, 1, 512],
    [1, 128, 3, 3, 1, 512],
];

fn main() {
    let threads = std::env::args().skip(1).find_map(|word| word.parse().ok()).unwrap_or(2);
    let pool = Pool::new(threads);
    println!("{pool:?}");
    println!(
        "{:>6} {:>5} {:>5} {:>6} {:>6} {:>5} {:>10} {:>9} {:>10} {:>9}",
        "images", "in", "out", "kernel", "stride", "side", "F32 ms", "GFLOP/s", "BF16 ms", "GFLOP/s"
    );
    let mut rng = Rng(1);
    for [images, inputs, outputs, side, stride, size] in CASES {
        let window = ConvShape { inputs, outputs, kernel: [side; 2], stride, padding: [side / 2; 2] };
        let numbers: Vec<f32> = (0..outputs * inputs * side * side).map(|_| rng.normal() * 0.05).collect();
        let x: Vec<f32> = (0..images * size * size * inputs).map(|_| rng.normal()).collect();
        let [lines, line] = window.output([size; 2]).expect("a window fits");
        let mut out = vec![0f32; images * lines * line * outputs];
        let flop = 2.0 * (out.len() * inputs * side * side) as f64;
        print!("{images:>6} {inputs:>5} {outputs:>5} {side:>6} {stride:>6} {size:>5}");
        for dtype in [DType::F32, DType::BF16] {
            let bytes: Vec<u8> = match dtype {
                DType::F32 => numbers.iter().flat_map(|x| x.to_le_bytes()).collect(),
                _ => numbers.iter().flat_map(|x| bf16::from_f32(*x).to_le_bytes()).collect(),
            };
            let conv = Conv2d::new(&pool, dtype, window, &bytes, None).expect("a valid shape");
            let time = best(&pool, 5, || conv.forward(&pool, ConvInput::new(&x, [size; 2]), &mut out));
            print!(" {:>10.2} {:>9.0}", time * 1e3, flop / time / 1e9);
        }
        println!();
    }
}
