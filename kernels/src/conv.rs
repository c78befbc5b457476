//! Convolutions of images, channels last.
//!
//! An output is the product of its window with the weights. A window consists of contiguous segments of the padded
//! image, one for each kernel row, so products read it in place: there is no im2col matrix. Images are padded, and
//! rounded to bf16 where the product uses it, strip by strip.

use std::ops::Range;

use crate::activations::{RowLayout, Strip, to_bf16};
use crate::buffer::Shards;
use crate::gemm::uses_bf16_pairs;
use crate::group_norm::FusedNorm;
use crate::pack::FLOATS;
use crate::{Activations, DType, Error, Linear, Pool, matmul_all};

/// Elements of a strip, unless one output row needs more.
const STRIP: usize = 1 << 20;

/// The shape of a convolution.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ConvShape {
    /// Input and output channels.
    pub inputs: usize,
    pub outputs: usize,
    /// Height and width.
    pub kernel: [usize; 2],
    pub stride: usize,
    /// Zeros before and after, in both axes.
    pub padding: [usize; 2],
}

impl ConvShape {
    /// Channels of a padded image: a multiple of a span of floats.
    fn channels(&self) -> usize {
        self.inputs.next_multiple_of(FLOATS)
    }

    /// Output height and width for an input of this height and width; `None` where no window fits.
    pub fn output(&self, size: [usize; 2]) -> Option<[usize; 2]> {
        let along = |axis: usize| {
            let padded = size[axis].checked_add(self.padding[0])?.checked_add(self.padding[1])?;
            Some(padded.checked_sub(self.kernel[axis])? / self.stride + 1)
        };
        Some([along(0)?, along(1)?])
    }
}

/// The input of a convolution.
#[derive(Clone, Copy, Debug)]
pub struct ConvInput<'a> {
    /// `[images, height, width, inputs]`
    pub x: &'a [f32],
    /// Height and width.
    pub size: [usize; 2],
    /// A norm that is applied to pixels first; padding stays zero.
    pub norm: Option<FusedNorm<'a>>,
}

impl<'a> ConvInput<'a> {
    pub fn new(x: &'a [f32], size: [usize; 2]) -> Self {
        Self { x, size, norm: None }
    }

    /// Splits into groups of `together` images.
    pub fn chunks(self, channels: usize, together: usize) -> impl Iterator<Item = Self> {
        let image = (self.size[0] * self.size[1] * channels).max(1);
        self.x.chunks(image * together).enumerate().map(move |(at, x)| {
            let factors = |norm: FusedNorm<'a>| &norm.factors[at * together..][..x.len() / image];
            Self { x, norm: self.norm.map(|norm| FusedNorm { factors: factors(norm), ..norm }), ..self }
        })
    }
}

/// A 2D convolution without groups or dilation.
#[derive(Debug)]
pub struct Conv2d {
    shape: ConvShape,
    weight: Linear,
}

impl Conv2d {
    /// `bytes`: `[outputs, inputs, height, width]` floats of this type, PyTorch's layout; `bias`: `[outputs]`.
    ///
    /// # Errors
    /// If a size is zero, the type is quantised, or a length does not match.
    pub fn new(pool: &Pool, dtype: DType, shape: ConvShape, bytes: &[u8], bias: Option<&[f32]>) -> Result<Self, Error> {
        let ConvShape { inputs, outputs, kernel: [height, width], stride, .. } = shape;
        let (channels, size) = (shape.channels(), dtype.block_bytes());
        let taps = height.saturating_mul(width);
        let row = inputs.saturating_mul(taps).saturating_mul(size);
        let all = row.checked_mul(outputs);
        let (Some(all), false) = (all, inputs == 0 || taps == 0 || stride == 0 || dtype.is_quantised()) else {
            return Err(Error::Shape { dtype, n: outputs, k: inputs.saturating_mul(taps) });
        };
        if bytes.len() != all {
            return Err(Error::Length { expected: all, found: bytes.len() });
        }
        let weight = Linear::pack(pool, dtype, outputs, taps * channels, |first, to| {
            let rows = bytes[first * row..].chunks_exact(row);
            for (from, to) in rows.zip(to.chunks_exact_mut(taps * channels * size)) {
                for (at, number) in from.chunks_exact(size).enumerate() {
                    let place = (at % taps * channels + at / taps) * size;
                    to[place..place + size].copy_from_slice(number);
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
        Linear::packed_bytes(dtype, outputs, height * width * shape.channels())
    }

    pub fn shape(&self) -> &ConvShape {
        &self.shape
    }

    /// Memory of the weights.
    pub fn bytes(&self) -> usize {
        self.weight.bytes()
    }

    /// `out`: `[images, .., .., outputs]`, with the height and width of [`ConvShape::output`].
    ///
    /// # Panics
    /// If lengths do not match, or an image is smaller than a window.
    pub fn forward(&self, pool: &Pool, images: ConvInput<'_>, out: &mut [f32]) {
        let ConvInput { x, size, .. } = images;
        let (image, [lines, line]) = (self.image(size), self.output(size));
        assert!(x.len().is_multiple_of(image), "images are [.., height, width, inputs]");
        self.check(&images);
        let each = lines * line * self.shape.outputs;
        assert_eq!(out.len(), x.len() / image * each, "outputs are [.., height, width, outputs]");
        if self.is_matrix(&images) {
            return self.weight.forward(pool, x, x.len() / self.shape.inputs, out);
        }
        // Weights are read once for all images of a strip.
        let together = STRIP / (self.padded_width(size) * self.needed(&(0..lines)).len());
        if together > 1 {
            for (images, out) in images.chunks(self.shape.inputs, together).zip(out.chunks_mut(each * together)) {
                self.strip(pool, images, 0..lines, out);
            }
            return;
        }
        for (one, out) in images.chunks(self.shape.inputs, 1).zip(out.chunks_exact_mut(each)) {
            self.forward_rows(pool, one, 0..lines, out);
        }
    }

    /// Some output rows of one image, `[lines, .., outputs]`, bit for bit as in the whole. A long convolution can so be
    /// split; each part reads all weights.
    ///
    /// # Panics
    /// If lengths do not match, or there are no such rows.
    pub fn forward_rows(&self, pool: &Pool, one: ConvInput<'_>, lines: Range<usize>, out: &mut [f32]) {
        let ConvInput { x, size, .. } = one;
        let (image, [all, line]) = (self.image(size), self.output(size));
        assert_eq!(x.len(), image, "an image is [height, width, inputs]");
        self.check(&one);
        assert!(lines.start <= lines.end && lines.end <= all, "{lines:?} of {all} lines");
        let row = line * self.shape.outputs;
        assert_eq!(out.len(), lines.len() * row, "outputs are [lines, width, outputs]");
        if self.is_matrix(&one) {
            let x = &x[lines.start * size[1] * self.shape.inputs..lines.end * size[1] * self.shape.inputs];
            return self.weight.forward(pool, x, x.len() / self.shape.inputs, out);
        }
        let together = (STRIP / (self.shape.stride * self.padded_width(size))).max(1);
        for (first, out) in lines.clone().step_by(together).zip(out.chunks_mut(together * row)) {
            self.strip(pool, one, first..lines.end.min(first + together), out);
        }
    }

    /// Whether the convolution is a plain matrix product.
    fn is_matrix(&self, images: &ConvInput<'_>) -> bool {
        let ConvShape { inputs, kernel, stride, padding, .. } = self.shape;
        images.norm.is_none() && kernel == [1, 1] && stride == 1 && padding == [0, 0] && inputs.is_multiple_of(FLOATS)
    }

    fn check(&self, images: &ConvInput<'_>) {
        let Some(norm) = images.norm else { return };
        assert_eq!(norm.factors.len(), images.x.len() / self.image(images.size), "factors of each image");
        assert!(norm.factors.iter().all(|one| one.channels() == self.shape.inputs), "factors of each channel");
    }

    /// Elements of an image.
    fn image(&self, [height, width]: [usize; 2]) -> usize {
        height * width * self.shape.inputs
    }

    /// Output rows, and outputs in a row.
    fn output(&self, size: [usize; 2]) -> [usize; 2] {
        let output = self.shape.output(size);
        assert!(output.is_some() && self.image(size) > 0, "no window of {:?} fits an image of {size:?}", self.shape);
        output.unwrap_or_default()
    }

    /// Elements of a padded row.
    fn padded_width(&self, size: [usize; 2]) -> usize {
        (size[1] + self.shape.padding[0] + self.shape.padding[1]) * self.shape.channels()
    }

    /// Padded rows that these output rows need.
    fn needed(&self, lines: &Range<usize>) -> Range<usize> {
        let ConvShape { kernel: [height, _], stride, .. } = self.shape;
        lines.start * stride..(lines.end - 1) * stride + height
    }

    /// Computes these output rows of each image.
    fn strip(&self, pool: &Pool, images: ConvInput<'_>, lines: Range<usize>, out: &mut [f32]) {
        let ConvShape { kernel: [height, width], stride, .. } = self.shape;
        let (channels, wide) = (self.shape.channels(), self.padded_width(images.size));
        let needed = self.needed(&lines);
        let count = images.x.len() / self.image(images.size);
        let layout = RowLayout {
            row: stride * channels,
            line: stride * wide,
            lines: lines.len(),
            image: needed.len() * wide,
            segment: wide,
            segments: height,
        };
        let k = height * width * channels;
        let lines = [count * lines.len(), self.output(images.size)[1]];
        let mut floats = Vec::new();
        let strip = if uses_bf16_pairs(self.weight.dtype(), pool.isa()) {
            let mut pairs = pool.buffers().take_pairs();
            self.pad(pool, images, needed, &mut pairs, |image, x, to| match images.norm {
                Some(norm) => norm.apply(pool.isa(), image, x, to),
                None => to_bf16(pool.isa(), x, to),
            });
            Strip::Pairs(pairs)
        } else {
            floats = pool.buffers().take_floats();
            self.pad(pool, images, needed, &mut floats, |image, x, to| match images.norm {
                Some(norm) => norm.apply(pool.isa(), image, x, to),
                None => to.copy_from_slice(x),
            });
            Strip::Floats(&floats)
        };
        matmul_all(&Activations::windows(pool, strip, lines, k, layout), &mut [(&self.weight, out)]);
        pool.buffers().give_floats(floats);
    }

    /// Writes these rows of the padded images; `write` gets the image's index.
    fn pad<T: Copy + Default + Send>(
        &self,
        pool: &Pool,
        images: ConvInput<'_>,
        lines: Range<usize>,
        strip: &mut Vec<T>,
        write: impl Fn(usize, &[f32], &mut [T]) + Sync,
    ) {
        let ConvShape { inputs, padding: [before, _], .. } = self.shape;
        let ([height, width], image) = (images.size, self.image(images.size));
        let (channels, wide) = (self.shape.channels(), self.padded_width(images.size));
        let count = images.x.len() / image * lines.len();
        strip.resize(count * wide, T::default());
        let to = Shards::new(strip);
        pool.run(count, |line| {
            // SAFETY: a line's places are its own.
            let to = unsafe { to.get(line * wide, wide) };
            let (index, line) = (line / lines.len(), lines.start + line % lines.len());
            let Some(from) = line.checked_sub(before).filter(|line| *line < height) else {
                return to.fill(T::default());
            };
            let from = &images.x[index * image + from * width * inputs..][..width * inputs];
            let (left, rest) = to.split_at_mut(before * channels);
            let (middle, right) = rest.split_at_mut(width * channels);
            left.fill(T::default());
            right.fill(T::default());
            if inputs == channels {
                return write(index, from, middle);
            }
            for (from, to) in from.chunks_exact(inputs).zip(middle.chunks_exact_mut(channels)) {
                let (to, more) = to.split_at_mut(inputs);
                write(index, from, to);
                more.fill(T::default());
            }
        });
    }
}
