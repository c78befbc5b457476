//! Convolutions of images, channels last.
//!
//! An output is the product of its window with the weights. A window consists of contiguous segments of the padded
//! image, one for each kernel row. Products read it in place, so there is no im2col matrix. Images are padded, and
//! rounded to bf16 if the weights require it, strip by strip.

use std::ops::Range;

use crate::buffer::SharedSlice;
use crate::gemm::activations::{RowLayout, Strip, round_to_bf16, uses_bf16_pairs};
use crate::group_norm::FusedNorm;
use crate::pack::FLOATS;
use crate::{Activations, DType, Error, Linear, Pool, matmul_all};

/// Elements of a strip, unless one output line needs more.
const STRIP_ELEMENTS: usize = 1 << 20;

/// The shape of a convolution.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ConvShape {
    /// Input and output channels.
    pub inputs: usize,
    pub outputs: usize,
    /// `[height, width]`
    pub kernel: [usize; 2],
    pub stride: usize,
    /// Zeros before and after the image, in both axes.
    pub padding: [usize; 2],
}

impl ConvShape {
    /// Input channels, padded to whole spans of floats.
    fn padded_channels(&self) -> usize {
        self.inputs.next_multiple_of(FLOATS)
    }

    /// The output's `[height, width]` for an input of `size`, `[height, width]`; `None` if no window fits.
    pub fn output(&self, size: [usize; 2]) -> Option<[usize; 2]> {
        let outputs_along = |axis: usize| {
            let padded = size[axis].checked_add(self.padding[0])?.checked_add(self.padding[1])?;
            Some(padded.checked_sub(self.kernel[axis])? / self.stride + 1)
        };
        Some([outputs_along(0)?, outputs_along(1)?])
    }
}

/// The input of a convolution.
#[derive(Clone, Copy, Debug)]
pub struct ConvInput<'a> {
    /// `[images, height, width, inputs]`
    pub x: &'a [f32],
    /// `[height, width]`
    pub size: [usize; 2],
    /// A norm that is applied to pixels before the convolution; padding stays zero.
    pub norm: Option<FusedNorm<'a>>,
}

impl<'a> ConvInput<'a> {
    pub fn new(x: &'a [f32], size: [usize; 2]) -> Self {
        Self { x, size, norm: None }
    }

    /// Splits the input into chunks of `count` images.
    pub fn chunks(self, channels: usize, count: usize) -> impl Iterator<Item = Self> {
        let image_len = (self.size[0] * self.size[1] * channels).max(1);
        self.x.chunks(image_len * count).enumerate().map(move |(chunk, x)| {
            let factors = |norm: FusedNorm<'a>| &norm.factors[chunk * count..][..x.len() / image_len];
            Self { x, norm: self.norm.map(|norm| FusedNorm { factors: factors(norm), ..norm }), ..self }
        })
    }
}

/// A 2D convolution without groups or dilation, and its weights.
#[derive(Debug)]
pub struct Conv2d {
    shape: ConvShape,
    weight: Linear,
}

impl Conv2d {
    /// Packs the weights. `bytes` are `[outputs, inputs, height, width]` floats of `dtype`, as in PyTorch; `bias` is
    /// `[outputs]`.
    ///
    /// # Errors
    /// If a size is zero, the type is quantised, or a length does not match.
    pub fn new(pool: &Pool, dtype: DType, shape: ConvShape, bytes: &[u8], bias: Option<&[f32]>) -> Result<Self, Error> {
        let ConvShape { inputs, outputs, kernel: [height, width], stride, .. } = shape;
        let (channels, size) = (shape.padded_channels(), dtype.block_bytes());
        let taps = height.saturating_mul(width);
        let row_bytes = inputs.saturating_mul(taps).saturating_mul(size);
        let total = row_bytes.checked_mul(outputs);
        let (Some(total), false) = (total, inputs == 0 || taps == 0 || stride == 0 || dtype.is_quantised()) else {
            return Err(Error::Shape { dtype, n: outputs, k: inputs.saturating_mul(taps) });
        };
        if bytes.len() != total {
            return Err(Error::Length { expected: total, found: bytes.len() });
        }
        let weight = Linear::pack(pool, dtype, outputs, taps * channels, |first, out| {
            let rows = bytes[first * row_bytes..].chunks_exact(row_bytes);
            for (row, out) in rows.zip(out.chunks_exact_mut(taps * channels * size)) {
                for (index, element) in row.chunks_exact(size).enumerate() {
                    let (input, tap) = (index / taps, index % taps);
                    let offset = (tap * channels + input) * size;
                    out[offset..offset + size].copy_from_slice(element);
                }
            }
            Ok::<(), Error>(())
        })?;
        let weight = if let Some(bias) = bias { weight.with_bias(bias)? } else { weight };
        Ok(Self { shape, weight })
    }

    /// Bytes of the packed weights.
    pub fn packed_bytes(dtype: DType, shape: &ConvShape) -> usize {
        let ConvShape { outputs, kernel: [height, width], .. } = *shape;
        Linear::packed_bytes(dtype, outputs, height * width * shape.padded_channels())
    }

    pub fn shape(&self) -> &ConvShape {
        &self.shape
    }

    /// Bytes of the packed weights.
    pub fn bytes(&self) -> usize {
        self.weight.bytes()
    }

    /// Computes the convolution. `out` is `[images, height, width, outputs]`, with the height and width of
    /// [`ConvShape::output`].
    ///
    /// # Panics
    /// If lengths do not match, or an image is smaller than a window.
    pub fn forward(&self, pool: &Pool, images: ConvInput<'_>, out: &mut [f32]) {
        let ConvInput { x, size, .. } = images;
        let (image_len, [lines, line_pixels]) = (self.image_len(size), self.output_size(size));
        assert!(x.len().is_multiple_of(image_len), "images are [.., height, width, inputs]");
        self.check(&images);
        let output_len = lines * line_pixels * self.shape.outputs;
        assert_eq!(out.len(), x.len() / image_len * output_len, "outputs are [.., height, width, outputs]");
        if self.is_matrix(&images) {
            return self.weight.forward(pool, x, x.len() / self.shape.inputs, out);
        }
        // Weights are read once for all images of a strip.
        let strip_images = STRIP_ELEMENTS / (self.padded_line_len(size) * self.input_lines(&(0..lines)).len());
        if strip_images > 1 {
            let strips = images.chunks(self.shape.inputs, strip_images);
            for (images, out) in strips.zip(out.chunks_mut(output_len * strip_images)) {
                self.forward_strip(pool, images, 0..lines, out);
            }
            return;
        }
        for (image, out) in images.chunks(self.shape.inputs, 1).zip(out.chunks_exact_mut(output_len)) {
            self.forward_rows(pool, image, 0..lines, out);
        }
    }

    /// Computes some output lines of one image, with the same bits as [`Conv2d::forward`]. `out` is `[lines, width,
    /// outputs]`. A long convolution can thus be split; each call reads all weights.
    ///
    /// # Panics
    /// If lengths do not match, or the lines do not exist.
    pub fn forward_rows(&self, pool: &Pool, image: ConvInput<'_>, lines: Range<usize>, out: &mut [f32]) {
        let ConvInput { x, size, .. } = image;
        let [height, width] = self.output_size(size);
        assert_eq!(x.len(), self.image_len(size), "an image is [height, width, inputs]");
        self.check(&image);
        assert!(lines.start <= lines.end && lines.end <= height, "{lines:?} of {height} lines");
        let line_len = width * self.shape.outputs;
        assert_eq!(out.len(), lines.len() * line_len, "outputs are [lines, width, outputs]");
        if self.is_matrix(&image) {
            let x = &x[lines.start * size[1] * self.shape.inputs..lines.end * size[1] * self.shape.inputs];
            return self.weight.forward(pool, x, x.len() / self.shape.inputs, out);
        }
        let strip_lines = (STRIP_ELEMENTS / (self.shape.stride * self.padded_line_len(size))).max(1);
        for (first, out) in lines.clone().step_by(strip_lines).zip(out.chunks_mut(strip_lines * line_len)) {
            self.forward_strip(pool, image, first..lines.end.min(first + strip_lines), out);
        }
    }

    /// Whether the convolution is a plain matrix product.
    fn is_matrix(&self, images: &ConvInput<'_>) -> bool {
        let ConvShape { inputs, kernel, stride, padding, .. } = self.shape;
        images.norm.is_none() && kernel == [1, 1] && stride == 1 && padding == [0, 0] && inputs.is_multiple_of(FLOATS)
    }

    fn check(&self, images: &ConvInput<'_>) {
        let Some(norm) = images.norm else { return };
        assert_eq!(norm.factors.len(), images.x.len() / self.image_len(images.size), "norm factors are not [images]");
        assert!(
            norm.factors.iter().all(|image| image.channels() == self.shape.inputs),
            "norm factors are not [channels]"
        );
    }

    /// Elements of an image.
    fn image_len(&self, [height, width]: [usize; 2]) -> usize {
        height * width * self.shape.inputs
    }

    /// Output `[height, width]`.
    fn output_size(&self, size: [usize; 2]) -> [usize; 2] {
        let output = self.shape.output(size);
        assert!(
            output.is_some() && self.image_len(size) > 0,
            "no window of {:?} fits an image of {size:?}",
            self.shape
        );
        output.unwrap_or_default()
    }

    /// Elements of a padded input line.
    fn padded_line_len(&self, size: [usize; 2]) -> usize {
        (size[1] + self.shape.padding[0] + self.shape.padding[1]) * self.shape.padded_channels()
    }

    /// Padded input lines that these output lines need.
    fn input_lines(&self, lines: &Range<usize>) -> Range<usize> {
        let ConvShape { kernel: [height, _], stride, .. } = self.shape;
        lines.start * stride..(lines.end - 1) * stride + height
    }

    /// Computes these output lines of each image.
    fn forward_strip(&self, pool: &Pool, images: ConvInput<'_>, lines: Range<usize>, out: &mut [f32]) {
        let ConvShape { kernel: [height, width], stride, .. } = self.shape;
        let (channels, line_len) = (self.shape.padded_channels(), self.padded_line_len(images.size));
        let input_lines = self.input_lines(&lines);
        let count = images.x.len() / self.image_len(images.size);
        let layout = RowLayout {
            row_stride: stride * channels,
            line_stride: stride * line_len,
            lines_per_image: lines.len(),
            image_stride: input_lines.len() * line_len,
            segment_stride: line_len,
            segments: height,
        };
        let k = height * width * channels;
        let rows = [count * lines.len(), self.output_size(images.size)[1]];
        let mut floats = Vec::new();
        let strip = if uses_bf16_pairs(self.weight.dtype(), pool.isa()) {
            let mut pairs = pool.buffers().take_pairs();
            self.pad(pool, images, input_lines, &mut pairs, |image, x, out| match images.norm {
                Some(norm) => norm.apply(pool.isa(), image, x, out),
                None => round_to_bf16(pool.isa(), x, out),
            });
            Strip::Pairs(pairs)
        } else {
            floats = pool.buffers().take_floats();
            self.pad(pool, images, input_lines, &mut floats, |image, x, out| match images.norm {
                Some(norm) => norm.apply(pool.isa(), image, x, out),
                None => out.copy_from_slice(x),
            });
            Strip::Floats(&floats)
        };
        matmul_all(&Activations::windows(pool, strip, rows, k, layout), &mut [(&self.weight, out)]);
        pool.buffers().recycle_floats(floats);
    }

    /// Writes these lines of the padded images to `strip`. `write` gets the index of the image, input pixels, and the
    /// output.
    fn pad<T: Copy + Default + Send>(
        &self,
        pool: &Pool,
        images: ConvInput<'_>,
        lines: Range<usize>,
        strip: &mut Vec<T>,
        write: impl Fn(usize, &[f32], &mut [T]) + Sync,
    ) {
        let ConvShape { inputs, padding: [before, _], .. } = self.shape;
        let ([height, width], image_len) = (images.size, self.image_len(images.size));
        let (channels, line_len) = (self.shape.padded_channels(), self.padded_line_len(images.size));
        let count = images.x.len() / image_len * lines.len();
        strip.resize(count * line_len, T::default());
        let shared = SharedSlice::new(strip);
        pool.run(count, |line| {
            // SAFETY: no other task accesses this line.
            let out = unsafe { shared.get(line * line_len, line_len) };
            let (image, line) = (line / lines.len(), lines.start + line % lines.len());
            let Some(line) = line.checked_sub(before).filter(|line| *line < height) else {
                return out.fill(T::default());
            };
            let x = &images.x[image * image_len + line * width * inputs..][..width * inputs];
            let (left, rest) = out.split_at_mut(before * channels);
            let (middle, right) = rest.split_at_mut(width * channels);
            left.fill(T::default());
            right.fill(T::default());
            if inputs == channels {
                return write(image, x, middle);
            }
            for (x, out) in x.chunks_exact(inputs).zip(middle.chunks_exact_mut(channels)) {
                let (out, padding) = out.split_at_mut(inputs);
                write(image, x, out);
                padding.fill(T::default());
            }
        });
    }
}
