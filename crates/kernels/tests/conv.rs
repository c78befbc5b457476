//! Convolutions on every instruction set of this CPU, compared with f64 arithmetic.

#[path = "common/rng.rs"]
mod rng;

use half::{bf16, f16};
use outpost_kernels::{
    Activation, Conv2d, ConvInput, ConvShape, DType, Error, FusedNorm, GroupNorm, Isa, Moments, Pool,
};
use rng::Rng;

fn to_bytes(dtype: DType, values: &[f32]) -> Vec<u8> {
    let convert = |x: &f32| match dtype {
        DType::F16 => f16::from_f32(*x).to_le_bytes().to_vec(),
        DType::BF16 => bf16::from_f32(*x).to_le_bytes().to_vec(),
        _ => x.to_le_bytes().to_vec(),
    };
    values.iter().flat_map(convert).collect()
}

/// A value after conversion to a type.
fn round_to(dtype: DType, x: f32) -> f64 {
    f64::from(match dtype {
        DType::F16 => f16::from_f32(x).to_f32(),
        DType::BF16 => bf16::from_f32(x).to_f32(),
        _ => x,
    })
}

/// A random convolution and its input.
struct Case {
    window: ConvShape,
    images: usize,
    size: [usize; 2],
    weights: Vec<f32>,
    bias: Vec<f32>,
    x: Vec<f32>,
}

impl Case {
    fn new(rng: &mut Rng) -> Self {
        let mut below = |limit: usize| (rng.next() % limit as u64) as usize;
        let kernel = [[1, 1], [3, 3], [2, 3], [4, 4]][below(4)];
        let window = ConvShape {
            inputs: 1 + below(20),
            outputs: 1 + below(40),
            kernel,
            stride: 1 + below(2),
            padding: [[0, 0], [1, 1], [0, 1]][below(3)],
        };
        let (images, size) = (1 + below(3), [kernel[0] + below(30), kernel[1] + below(30)]);
        let mut normal = |count: usize| (0..count).map(|_| rng.normal()).collect::<Vec<f32>>();
        let weights = normal(window.outputs * window.inputs * kernel[0] * kernel[1]);
        let x = normal(images * size[0] * size[1] * window.inputs);
        Self { window, images, size, weights, bias: normal(window.outputs), x }
    }

    /// An output in f64, and the sum of the magnitudes of its terms.
    fn reference(
        &self,
        [image, row, column, output]: [usize; 4],
        weight: impl Fn(f32) -> f64,
        x: impl Fn(f32) -> f64,
    ) -> (f64, f64) {
        let ConvShape { inputs, kernel: [height, width], stride, padding: [before, _], .. } = self.window;
        let mut sums = (f64::from(self.bias[output]), 0.0);
        for (down, right) in (0..height).flat_map(|down| (0..width).map(move |right| (down, right))) {
            let input_index = |output: usize, tap: usize, len: usize| {
                (output * stride + tap).checked_sub(before).filter(|i| *i < len)
            };
            let (Some(row), Some(column)) =
                (input_index(row, down, self.size[0]), input_index(column, right, self.size[1]))
            else {
                continue;
            };
            for input in 0..inputs {
                let w = weight(self.weights[((output * inputs + input) * height + down) * width + right]);
                let x = x(self.x[((image * self.size[0] + row) * self.size[1] + column) * inputs + input]);
                sums = (sums.0 + w * x, sums.1 + (w * x).abs());
            }
        }
        sums
    }
}

#[test]
fn convolutions_match_f64() {
    let mut rng = Rng(1);
    for round in 0..40 {
        let case = Case::new(&mut rng);
        let dtype = [DType::F32, DType::F16, DType::BF16][round % 3];
        let [height, width] = case.window.output(case.size).unwrap();
        for isa in Isa::available() {
            let pool = Pool::with_isa(2, isa);
            let conv =
                Conv2d::new(&pool, dtype, case.window, &to_bytes(dtype, &case.weights), Some(&case.bias)).unwrap();
            let mut out = vec![f32::NAN; case.images * height * width * case.window.outputs];
            conv.forward(&pool, ConvInput::new(&case.x, case.size), &mut out);
            let rounds = dtype == DType::BF16 && isa == Isa::Avx512Bf16;
            let round_input = |x: f32| if rounds { round_to(DType::BF16, x) } else { f64::from(x) };
            for (at, found) in out.iter().enumerate() {
                let (output, pixel) = (at % case.window.outputs, at / case.window.outputs);
                let index = [pixel / (height * width), pixel / width % height, pixel % width, output];
                let (exact, size) = case.reference(index, |w| round_to(dtype, w), round_input);
                let error = (f64::from(*found) - exact).abs();
                assert!(
                    error <= 4e-6 * (size + 1.0),
                    "{isa:?} {dtype:?} {:?} of {:?} at {index:?}: {found}, expected {exact}",
                    case.window,
                    case.size
                );
            }
        }
    }
}

#[test]
fn large_images_are_computed_in_strips() {
    let mut rng = Rng(2);
    let window = ConvShape { inputs: 8, outputs: 5, kernel: [3, 3], stride: 1, padding: [1, 1] };
    let size = [700, 400];
    let x: Vec<f32> = (0..size[0] * size[1] * 8).map(|_| rng.normal()).collect();
    let weights: Vec<f32> = (0..5 * 8 * 9).map(|_| rng.normal()).collect();
    let pool = Pool::new(2);
    let conv = Conv2d::new(&pool, DType::F32, window, &to_bytes(DType::F32, &weights), None).unwrap();
    let mut whole = vec![0f32; size[0] * size[1] * 5];
    conv.forward(&pool, ConvInput::new(&x, size), &mut whole);
    // The inner lines of a part of the image do not depend on its borders.
    for first in (0..600).step_by(97) {
        let part = &x[first * size[1] * 8..(first + 100) * size[1] * 8];
        let mut out = vec![0f32; 100 * size[1] * 5];
        conv.forward(&pool, ConvInput::new(part, [100, size[1]]), &mut out);
        let line = size[1] * 5;
        assert_eq!(out[line..99 * line], whole[(first + 1) * line..(first + 99) * line]);
    }
}

#[test]
fn lines_of_one_image_give_the_same_bits_as_all_images() {
    let mut rng = Rng(3);
    for _ in 0..20 {
        let case = Case::new(&mut rng);
        let [height, width] = case.window.output(case.size).unwrap();
        let (image_len, line) = (case.x.len() / case.images, width * case.window.outputs);
        for isa in Isa::available() {
            let (pool, other) = (Pool::with_isa(2, isa), Pool::with_isa(1, isa));
            let dtype = DType::BF16;
            let conv =
                Conv2d::new(&pool, dtype, case.window, &to_bytes(dtype, &case.weights), Some(&case.bias)).unwrap();
            let mut whole = vec![f32::NAN; case.images * height * line];
            conv.forward(&pool, ConvInput::new(&case.x, case.size), &mut whole);
            for (x, whole) in case.x.chunks(image_len).zip(whole.chunks(height * line)) {
                for first in (0..height).step_by(5) {
                    let lines = first..height.min(first + 5);
                    let mut out = vec![f32::NAN; lines.len() * line];
                    conv.forward_rows(&other, ConvInput::new(x, case.size), lines.clone(), &mut out);
                    assert_eq!(out, whole[lines.start * line..lines.end * line], "{isa:?} {:?}", case.window);
                }
                conv.forward_rows(&pool, ConvInput::new(x, case.size), height..height, &mut []);
            }
        }
    }
}

#[test]
fn a_fused_norm_gives_the_same_bits_as_a_separate_norm() {
    let mut rng = Rng(4);
    for round in 0..20 {
        let mut case = Case::new(&mut rng);
        // Also with whole vectors of channels, and with 1 × 1 kernels.
        if round % 3 == 0 {
            case.window.inputs = 16 * (1 + round / 3 % 2);
            case.x =
                (0..case.images * case.size[0] * case.size[1] * case.window.inputs).map(|_| rng.normal()).collect();
            let taps = case.window.kernel.iter().product::<usize>();
            case.weights = (0..case.window.outputs * case.window.inputs * taps).map(|_| rng.normal()).collect();
        }
        let (channels, image) = (case.window.inputs, case.x.len() / case.images);
        let [weight, bias] = [(); 2].map(|()| (0..channels).map(|_| rng.normal()).collect::<Vec<f32>>());
        let [height, width] = case.window.output(case.size).unwrap();
        for (isa, dtype) in Isa::available().into_iter().flat_map(|isa| [(isa, DType::F32), (isa, DType::BF16)]) {
            let pool = Pool::with_isa(2, isa);
            let activation = Some(Activation::Silu);
            let norm = GroupNorm { groups: 1, weight: &weight, bias: &bias, epsilon: 1e-5, activation };
            let factors: Vec<_> = (case.x.chunks(image))
                .map(|x| {
                    let mut moments = Moments::new(channels);
                    moments.add(&pool, x);
                    norm.factors(&moments, None)
                })
                .collect();
            let mut normed = vec![0.0; case.x.len()];
            norm.forward(&pool, &case.x, case.images, None, &mut normed);
            let conv =
                Conv2d::new(&pool, dtype, case.window, &to_bytes(dtype, &case.weights), Some(&case.bias)).unwrap();
            let mut outs = [(); 2].map(|()| vec![f32::NAN; case.images * height * width * case.window.outputs]);
            let before = Some(FusedNorm { factors: &factors, activation });
            conv.forward(&pool, ConvInput::new(&normed, case.size), &mut outs[0]);
            conv.forward(&pool, ConvInput { norm: before, ..ConvInput::new(&case.x, case.size) }, &mut outs[1]);
            let [separate, fused] = outs;
            // A 1 × 1 kernel reads images in place, as rows of a matrix product.
            let max_error = separate.iter().zip(&fused).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
            let exact = case.window.kernel != [1, 1];
            assert!(
                if exact { max_error == 0.0 } else { max_error < 1e-4 },
                "{isa:?} {dtype:?} {:?}: {max_error}",
                case.window
            );
        }
    }
}

#[test]
fn invalid_convolutions_are_rejected() {
    let pool = Pool::new(1);
    let window = ConvShape { inputs: 2, outputs: 3, kernel: [3, 3], stride: 1, padding: [0, 0] };
    let error = |dtype, window, count| Conv2d::new(&pool, dtype, window, &vec![0; count], None).map(drop).unwrap_err();
    assert!(matches!(error(DType::Q8_0, window, 54 * 4), Error::Shape { .. }));
    assert!(matches!(error(DType::F32, ConvShape { stride: 0, ..window }, 54 * 4), Error::Shape { .. }));
    assert_eq!(error(DType::F32, window, 53 * 4), Error::Length { expected: 216, found: 212 });
    let wrong = Conv2d::new(&pool, DType::F32, window, &[0; 216], Some(&[0.0; 4])).unwrap_err();
    assert_eq!(wrong, Error::Bias { expected: 3, found: 4 });
    assert_eq!(window.output([2, 9]), None);
    assert_eq!(window.output([3, 9]), Some([1, 7]));
}
