//! Group normalisation of images, channels last (Wu and He 2018, <https://arxiv.org/abs/1803.08494>).
//!
//! Statistics are computed for chunks of pixels: each channel's mean, then its squared deviations while the chunk is in
//! the cache. Chunks are merged in order (Chan et al. 1979, "Updating Formulae and a Pairwise Algorithm for Computing
//! Sample Variances"), and channels are merged into groups at the end. The statistics are therefore precise for any
//! number of pixels, and results do not depend on the number of threads.

use crate::buffer::SharedSlice;
use crate::rows::{by_rows, load_up_to, store_up_to};
use crate::simd::{Isa, Kernel, LANES, Simd, bf16_bits, load_partial, run, run_bf16, store_partial};
use crate::{Activation, Pool};

/// Approximate number of elements of a chunk.
const CHUNK_ELEMENTS: usize = 32 * 1024;
/// Maximum pixels of a chunk: the number of values that one f32 sum adds.
const MAX_CHUNK_PIXELS: usize = 256;

/// `activation((x − mean) / √(variance + epsilon) · weight + bias)`, with the mean and the (population) variance over
/// all pixels and channels of a group.
#[derive(Clone, Copy, Debug)]
pub struct GroupNorm<'a> {
    /// Must divide the channels.
    pub groups: usize,
    /// `[channels]`
    pub weight: &'a [f32],
    /// `[channels]`
    pub bias: &'a [f32],
    pub epsilon: f32,
    pub activation: Option<Activation>,
}

/// A group norm that a convolution applies to its input. The result is that of [`GroupNorm::apply`], without a copy of
/// the image.
#[derive(Clone, Copy, Debug)]
pub struct FusedNorm<'a> {
    /// Scales and offsets of each image: `[images]`.
    pub factors: &'a [ScaleShift],
    pub activation: Option<Activation>,
}

impl FusedNorm<'_> {
    /// Applies the norm to pixels of an image; `x` and `out` are `[pixels, channels]`.
    pub(crate) fn apply<T: OutputElement>(&self, isa: Isa, image: usize, x: &[f32], out: &mut [T]) {
        let (scales, offsets) = self.factors[image].scales_and_offsets();
        assert!(
            x.len() == out.len() && x.len().is_multiple_of(scales.len()),
            "x and out are [pixels, {}]",
            scales.len()
        );
        let pixels = x.len() / scales.len();
        let (x, out) = (x.as_ptr(), out.as_mut_ptr());
        T::run(isa, ApplyKernel { scales, offsets, pixels, activation: self.activation, x, out });
    }
}

/// Running moments of one image: each channel's mean and sum of squared deviations.
#[derive(Clone, Debug)]
pub struct Moments {
    pixels: usize,
    /// `[2, channels]`
    channel_moments: Vec<f64>,
}

impl Moments {
    pub fn new(channels: usize) -> Self {
        Self { pixels: 0, channel_moments: vec![0.0; 2 * channels] }
    }

    /// Pixels of a chunk. An image that is added in ranges that start at multiples of this gives the same bits as a whole
    /// image.
    pub fn pixels_per_chunk(channels: usize) -> usize {
        (CHUNK_ELEMENTS / channels.max(1)).clamp(1, MAX_CHUNK_PIXELS)
    }

    /// Adds the next pixels, `[pixels, channels]`.
    ///
    /// # Panics
    /// If `x` does not consist of whole pixels.
    pub fn add(&mut self, pool: &Pool, x: &[f32]) {
        let channels = self.channel_moments.len() / 2;
        assert!(channels > 0 && x.len().is_multiple_of(channels), "x is [pixels, {channels}]");
        let chunk_len = Self::pixels_per_chunk(channels) * channels;
        let chunks = x.len().div_ceil(chunk_len);
        let mut states = pool.buffers().take_floats();
        states.resize(chunks * 2 * channels, 0.0);
        let shared = SharedSlice::new(&mut states);
        pool.run(chunks, |chunk| {
            let x = &x[chunk * chunk_len..x.len().min((chunk + 1) * chunk_len)];
            // SAFETY: no other task accesses this chunk's state.
            let state = unsafe { shared.get(chunk * 2 * channels, 2 * channels) };
            run(pool.isa(), MomentsKernel { x, state });
        });
        for (x, state) in x.chunks(chunk_len).zip(states.chunks_exact(2 * channels)) {
            self.merge(x.len() / channels, state);
            self.pixels += x.len() / channels;
        }
        pool.buffers().recycle_floats(states);
    }

    /// Merges the moments of a chunk of `pixels` pixels; `chunk` is `[2, channels]`.
    fn merge(&mut self, pixels: usize, chunk: &[f32]) {
        let (old_pixels, new_pixels) = (self.pixels as f64, pixels as f64);
        let total = old_pixels + new_pixels;
        let (mean_weight, square_weight) = (new_pixels / total, old_pixels * new_pixels / total);
        let (means, squares) = self.channel_moments.split_at_mut(chunk.len() / 2);
        let (chunk_means, chunk_squares) = chunk.split_at(means.len());
        let new = chunk_means.iter().zip(chunk_squares);
        for ((mean, square), (new_mean, new_square)) in means.iter_mut().zip(squares).zip(new) {
            let delta = f64::from(*new_mean) - *mean;
            *mean += delta * mean_weight;
            *square += f64::from(*new_square) + delta * delta * square_weight;
        }
    }
}

/// The scales and offsets that normalize an image: `[2, channels]`.
#[derive(Clone, Debug)]
pub struct ScaleShift(Vec<f32>);

impl ScaleShift {
    pub fn channels(&self) -> usize {
        self.0.len() / 2
    }

    pub(crate) fn scales_and_offsets(&self) -> (&[f32], &[f32]) {
        self.0.split_at(self.channels())
    }
}

impl GroupNorm<'_> {
    /// `out = norm(x + shift)`. `x` and `out` are `[images, pixels, channels]`; `shift` is `[images, channels]`, such as a
    /// timestep embedding. The shift only changes the means, so it costs no pass over the image.
    ///
    /// # Panics
    /// If lengths do not match.
    pub fn forward(&self, pool: &Pool, x: &[f32], images: usize, shift: Option<&[f32]>, out: &mut [f32]) {
        let channels = self.weight.len();
        assert!(
            x.len() == out.len() && images > 0 && x.len().is_multiple_of(images),
            "x and out are [{images}, pixels, channels]"
        );
        assert!(shift.is_none_or(|shift| shift.len() == images * channels), "shifts are [images, channels]");
        let image_len = (x.len() / images).max(1);
        for (index, (x, out)) in x.chunks_exact(image_len).zip(out.chunks_exact_mut(image_len)).enumerate() {
            let mut moments = Moments::new(channels);
            moments.add(pool, x);
            let shift = shift.map(|shift| &shift[index * channels..][..channels]);
            self.apply(pool, &self.factors(&moments, shift), x, out);
        }
    }

    /// The scales and offsets for an image with these moments; `shift`, `[channels]`, is added to the image first.
    ///
    /// # Panics
    /// If lengths do not match.
    pub fn factors(&self, moments: &Moments, shift: Option<&[f32]>) -> ScaleShift {
        let channels = self.weight.len();
        assert!(
            self.groups > 0 && channels.is_multiple_of(self.groups),
            "{} groups do not divide {channels} channels",
            self.groups
        );
        assert!(
            self.bias.len() == channels && moments.channel_moments.len() == 2 * channels,
            "weights or moments are not of {channels} channels"
        );
        assert!(shift.is_none_or(|shift| shift.len() == channels), "the shift is not [{channels}]");
        let (means, squares) = moments.channel_moments.split_at(channels);
        let shift = |channel: usize| shift.map_or(0.0, |shift| f64::from(shift[channel]));
        let mean_of = |channel: usize| means[channel] + shift(channel);
        let (width, pixels) = (channels / self.groups, moments.pixels as f64);
        let mut factors = vec![0.0; 2 * channels];
        let (scales, offsets) = factors.split_at_mut(channels);
        for first in (0..channels).step_by(width.max(1)) {
            let group = first..first + width;
            let mean = group.clone().map(mean_of).sum::<f64>() / width as f64;
            let channel_variance =
                |channel: usize| (mean_of(channel) - mean).powi(2) + squares[channel] / pixels.max(1.0);
            let variance = group.clone().map(channel_variance).sum::<f64>() / width as f64;
            let inverse = 1.0 / (variance + f64::from(self.epsilon)).sqrt();
            for channel in group {
                let scale = inverse * f64::from(self.weight[channel]);
                scales[channel] = scale as f32;
                offsets[channel] = (f64::from(self.bias[channel]) + (shift(channel) - mean) * scale) as f32;
            }
        }
        ScaleShift(factors)
    }

    /// Applies the norm to pixels of an image; `x` and `out` are `[pixels, channels]`.
    ///
    /// # Panics
    /// If lengths do not match.
    pub fn apply(&self, pool: &Pool, factors: &ScaleShift, x: &[f32], out: &mut [f32]) {
        assert_eq!(x.len(), out.len(), "x and out have different lengths");
        self.apply_raw(pool, factors, (SharedSlice::new(out), x.len()), |index| x[index..].as_ptr());
    }

    /// Applies the norm in place.
    ///
    /// # Panics
    /// If `x` does not consist of whole pixels.
    pub fn apply_in_place(&self, pool: &Pool, factors: &ScaleShift, x: &mut [f32]) {
        let (x, len) = (SharedSlice::new(x), x.len());
        self.apply_raw(pool, factors, (x, len), |index| x.at(index, 0));
    }

    /// Applies the norm; `x` returns the address of an element of the input.
    fn apply_raw(
        &self,
        pool: &Pool,
        factors: &ScaleShift,
        (out, len): (SharedSlice<f32>, usize),
        x: impl Fn(usize) -> *const f32 + Sync,
    ) {
        let channels = factors.channels();
        assert!(channels > 0 && len.is_multiple_of(channels), "x is [pixels, {channels}]");
        let (scales, offsets) = factors.scales_and_offsets();
        by_rows(pool, len / channels, channels, |first, pixels| {
            let start = first * channels;
            let (x, out) = (x(start), out.at(start, pixels * channels));
            run(pool.isa(), ApplyKernel { scales, offsets, pixels, activation: self.activation, x, out });
        });
    }
}

/// Computes the moments of one chunk: `state` is `[2, channels]`.
struct MomentsKernel<'a> {
    x: &'a [f32],
    state: &'a mut [f32],
}

impl Kernel for MomentsKernel<'_> {
    type Output = ();

    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        let (channels, mut first) = (self.state.len() / 2, 0);
        // SAFETY: the channels exist; features as `Kernel` says.
        unsafe {
            while first < channels {
                let vectors = (channels - first) / LANES;
                if vectors >= 8 {
                    channel_moments::<S, 8>(self.x, first, self.state);
                    first += 8 * LANES;
                } else if vectors >= 2 {
                    channel_moments::<S, 2>(self.x, first, self.state);
                    first += 2 * LANES;
                } else {
                    channel_moments::<S, 1>(self.x, first, self.state);
                    first += LANES;
                }
            }
        }
    }
}

/// Computes the moments of `16 C` channels from `first` on, or of the remaining ones if `C` is 1.
///
/// # Safety
/// As [`Simd`] says; `state` is `[2, channels]`, and `x` is `[pixels, channels]`.
#[inline(always)]
unsafe fn channel_moments<S: Simd, const C: usize>(x: &[f32], first: usize, state: &mut [f32]) {
    let channels = state.len() / 2;
    let count = (channels - first).min(C * LANES);
    let (means, squares) = state.split_at_mut(channels);
    let (means, squares) = (&mut means[first..first + count], &mut squares[first..first + count]);
    // SAFETY: as the caller says.
    unsafe {
        let inverse = S::splat(1.0 / (x.len() / channels) as f32);
        let mut sums = [S::splat(0.0); C];
        for pixel in x.chunks_exact(channels) {
            let pixel = &pixel[first..first + count];
            for column in 0..C {
                sums[column] = S::add(sums[column], load_up_to::<S>(pixel, column * LANES));
            }
        }
        for column in 0..C {
            sums[column] = S::mul(sums[column], inverse);
            store_up_to::<S>(means, column * LANES, sums[column]);
        }
        let mut deviations = [S::splat(0.0); C];
        for pixel in x.chunks_exact(channels) {
            let pixel = &pixel[first..first + count];
            for column in 0..C {
                let deviation = S::sub(load_up_to::<S>(pixel, column * LANES), sums[column]);
                deviations[column] = S::fma(deviation, deviation, deviations[column]);
            }
        }
        for column in 0..C {
            store_up_to::<S>(squares, column * LANES, deviations[column]);
        }
    }
}

/// Applies scales and offsets to pixels, possibly in place.
pub(crate) struct ApplyKernel<'a, T> {
    /// `[channels]`
    scales: &'a [f32],
    offsets: &'a [f32],
    activation: Option<Activation>,
    pixels: usize,
    /// `[pixels, channels]`
    x: *const f32,
    out: *mut T,
}

/// The output type: f32, or the bits of bf16.
pub(crate) trait OutputElement: Copy {
    fn run<K: Kernel<Output = ()>>(isa: Isa, kernel: K);

    /// Stores sixteen elements.
    ///
    /// # Safety
    /// As [`Simd`] says.
    unsafe fn store<S: Simd>(dst: *mut Self, y: S::F);
    /// Stores the first `count` elements.
    ///
    /// # Safety
    /// As [`Simd`] says.
    unsafe fn store_partial<S: Simd>(dst: *mut Self, y: S::F, count: usize);
}

impl OutputElement for f32 {
    fn run<K: Kernel<Output = ()>>(isa: Isa, kernel: K) {
        run(isa, kernel);
    }

    #[inline(always)]
    unsafe fn store<S: Simd>(dst: *mut Self, y: S::F) {
        // SAFETY: as the caller says.
        unsafe { S::store(dst, y) };
    }

    #[inline(always)]
    unsafe fn store_partial<S: Simd>(dst: *mut Self, y: S::F, count: usize) {
        // SAFETY: as the caller says.
        unsafe { store_partial::<S>(dst, y, count) };
    }
}

impl OutputElement for u16 {
    fn run<K: Kernel<Output = ()>>(isa: Isa, kernel: K) {
        run_bf16(isa, kernel);
    }

    #[inline(always)]
    unsafe fn store<S: Simd>(dst: *mut Self, y: S::F) {
        // SAFETY: as the caller says.
        unsafe { S::store_bf16(dst, y) };
    }

    #[inline(always)]
    unsafe fn store_partial<S: Simd>(dst: *mut Self, y: S::F, count: usize) {
        let mut floats = [0.0; LANES];
        // SAFETY: as the caller says; the buffer has sixteen floats.
        unsafe {
            S::store(floats.as_mut_ptr(), y);
            for (lane, float) in floats.iter().enumerate().take(count) {
                *dst.add(lane) = bf16_bits(*float);
            }
        }
    }
}

impl<T: OutputElement> Kernel for ApplyKernel<'_, T> {
    type Output = ();

    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        let (channels, whole) = (self.scales.len(), self.scales.len() / LANES * LANES);
        // SAFETY: the fields describe the pixels, which no other task accesses; each vector is read before it is written.
        unsafe {
            for pixel in 0..self.pixels {
                let (x, out) = (self.x.add(pixel * channels), self.out.add(pixel * channels));
                for channel in (0..whole).step_by(LANES) {
                    let y = self.normalise::<S>(S::load(x.add(channel)), channel);
                    T::store::<S>(out.add(channel), y);
                }
                if whole < channels {
                    let count = channels - whole;
                    let y = self.normalise::<S>(load_partial::<S>(x.add(whole), count), whole);
                    T::store_partial::<S>(out.add(whole), y, count);
                }
            }
        }
    }
}

impl<T> ApplyKernel<'_, T> {
    /// Normalizes the values of up to sixteen channels from `channel` on.
    ///
    /// # Safety
    /// As [`Simd`] says; `channel` exists.
    #[inline(always)]
    unsafe fn normalise<S: Simd>(&self, x: S::F, channel: usize) -> S::F {
        // SAFETY: as the caller says.
        unsafe {
            let y = S::fma(x, load_up_to::<S>(self.scales, channel), load_up_to::<S>(self.offsets, channel));
            match self.activation {
                Some(activation) => activation.apply::<S>(y),
                None => y,
            }
        }
    }
}
