//! Group normalisation of images, channels last (Wu and He 2018, <https://arxiv.org/abs/1803.08494>).
//!
//! Statistics are computed by chunks of pixels: each channel's mean, then its squared deviations while the chunk is in
//! the cache. Chunks are joined in order (Chan et al. 1979, "Updating Formulae and a Pairwise Algorithm for Computing
//! Sample Variances"), and channels are joined into groups at the end. So precision holds over many pixels, and results
//! do not depend on the number of threads.

use crate::buffer::Shards;
use crate::ops::{by_rows, load_up_to, store_up_to};
use crate::simd::{Isa, Kernel, LANES, Simd, bf16_bits, load_part, run, run_bf16, store_part};
use crate::{Activation, Pool};

/// Approximate elements of a chunk: half of a small core's L1 cache.
const CHUNK: usize = 32 * 1024;
/// Maximum pixels of a chunk: the number of values that are summed directly.
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

/// A norm that is fused into a convolution's input: what [`GroupNorm::apply`] computes, without a full copy.
#[derive(Clone, Copy, Debug)]
pub struct FusedNorm<'a> {
    /// One for each image.
    pub factors: &'a [ScaleShift],
    pub activation: Option<Activation>,
}

impl FusedNorm<'_> {
    /// Applies the norm to some pixels of an image, `x` and `out`: `[pixels, channels]`.
    pub(crate) fn apply<T: OutputNumber>(&self, isa: Isa, image: usize, x: &[f32], out: &mut [T]) {
        let (scales, offsets) = self.factors[image].halves();
        assert!(x.len() == out.len() && x.len().is_multiple_of(scales.len()), "pixels of {} channels", scales.len());
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

    /// Pixels of a chunk. Parts of an image that start at a multiple give the same bits as the whole.
    pub fn pixels_per_chunk(channels: usize) -> usize {
        (CHUNK / channels.max(1)).clamp(1, MAX_CHUNK_PIXELS)
    }

    /// Adds the next pixels, `[pixels, channels]`.
    ///
    /// # Panics
    /// If these are not whole pixels.
    pub fn add(&mut self, pool: &Pool, x: &[f32]) {
        let channels = self.channel_moments.len() / 2;
        assert!(channels > 0 && x.len().is_multiple_of(channels), "pixels of {channels} channels");
        let each = Self::pixels_per_chunk(channels) * channels;
        let chunks = x.len().div_ceil(each);
        let mut states = pool.buffers().take_floats();
        states.resize(chunks * 2 * channels, 0.0);
        let to = Shards::new(&mut states);
        pool.run(chunks, |chunk| {
            let x = &x[chunk * each..x.len().min((chunk + 1) * each)];
            // SAFETY: a chunk's state is one task's.
            let state = unsafe { to.get(chunk * 2 * channels, 2 * channels) };
            run(pool.isa(), MomentsKernel { x, state });
        });
        for (x, state) in x.chunks(each).zip(states.chunks_exact(2 * channels)) {
            self.join(x.len() / channels, state);
            self.pixels += x.len() / channels;
        }
        pool.buffers().give_floats(states);
    }

    fn join(&mut self, more: usize, state: &[f32]) {
        let (before, more) = (self.pixels as f64, more as f64);
        let (share, weight) = (more / (before + more), before * more / (before + more));
        let (means, squares) = self.channel_moments.split_at_mut(state.len() / 2);
        let others = state.iter().zip(&state[means.len()..]);
        for ((mean, square), (other, other_square)) in means.iter_mut().zip(squares).zip(others) {
            let off = f64::from(*other) - *mean;
            *mean += off * share;
            *square += f64::from(*other_square) + off * off * weight;
        }
    }
}

/// Scales and offsets of an image: `[2, channels]`.
#[derive(Clone, Debug)]
pub struct ScaleShift(Vec<f32>);

impl ScaleShift {
    pub fn channels(&self) -> usize {
        self.0.len() / 2
    }

    fn halves(&self) -> (&[f32], &[f32]) {
        self.0.split_at(self.channels())
    }
}

impl GroupNorm<'_> {
    /// `out = norm(x + shift)`; `x`, `out`: `[images, pixels, channels]`; `shift`: `[images, channels]`, such as a
    /// timestep embedding; it costs nothing.
    ///
    /// # Panics
    /// If lengths do not match.
    pub fn forward(&self, pool: &Pool, x: &[f32], images: usize, shift: Option<&[f32]>, out: &mut [f32]) {
        let channels = self.weight.len();
        assert!(x.len() == out.len() && images > 0 && x.len().is_multiple_of(images), "{images} images in and out");
        assert!(shift.is_none_or(|shift| shift.len() == images * channels), "shifts are [images, channels]");
        let image = (x.len() / images).max(1);
        for (index, (x, out)) in x.chunks_exact(image).zip(out.chunks_exact_mut(image)).enumerate() {
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
        assert!(self.groups > 0 && channels.is_multiple_of(self.groups), "{} groups of {channels}", self.groups);
        assert!(self.bias.len() == channels && moments.channel_moments.len() == 2 * channels, "{channels} channels");
        assert!(shift.is_none_or(|shift| shift.len() == channels), "a shift of {channels} channels");
        let (means, squares) = moments.channel_moments.split_at(channels);
        let shift = |channel: usize| shift.map_or(0.0, |shift| f64::from(shift[channel]));
        let mean_of = |channel: usize| means[channel] + shift(channel);
        let (width, pixels) = (channels / self.groups, moments.pixels as f64);
        let mut factors = vec![0.0; 2 * channels];
        let (scales, offsets) = factors.split_at_mut(channels);
        for first in (0..channels).step_by(width.max(1)) {
            let group = first..first + width;
            let mean = group.clone().map(mean_of).sum::<f64>() / width as f64;
            let off = |channel: usize| (mean_of(channel) - mean).powi(2) + squares[channel] / pixels.max(1.0);
            let variance = group.clone().map(off).sum::<f64>() / width as f64;
            let inverse = 1.0 / (variance + f64::from(self.epsilon)).sqrt();
            for channel in group {
                let scale = inverse * f64::from(self.weight[channel]);
                scales[channel] = scale as f32;
                offsets[channel] = (f64::from(self.bias[channel]) + (shift(channel) - mean) * scale) as f32;
            }
        }
        ScaleShift(factors)
    }

    /// Applies the norm to some pixels of an image, `x` and `out`: `[pixels, channels]`.
    ///
    /// # Panics
    /// If lengths do not match.
    pub fn apply(&self, pool: &Pool, factors: &ScaleShift, x: &[f32], out: &mut [f32]) {
        assert_eq!(x.len(), out.len(), "as many numbers out as in");
        self.write(pool, factors, (Shards::new(out), x.len()), |at| x[at..].as_ptr());
    }

    /// The same in place.
    ///
    /// # Panics
    /// If these are not whole pixels.
    pub fn apply_in_place(&self, pool: &Pool, factors: &ScaleShift, x: &mut [f32]) {
        let (x, len) = (Shards::new(x), x.len());
        self.write(pool, factors, (x, len), |at| x.at(at, 0));
    }

    fn write(
        &self,
        pool: &Pool,
        factors: &ScaleShift,
        (out, len): (Shards<f32>, usize),
        x: impl Fn(usize) -> *const f32 + Sync,
    ) {
        let channels = factors.channels();
        assert!(channels > 0 && len.is_multiple_of(channels), "pixels of {channels} channels");
        let (scales, offsets) = factors.halves();
        by_rows(pool, len / channels, channels, |first, pixels| {
            let (at, numbers) = (first * channels, pixels * channels);
            let (x, out) = (x(at), out.at(at, numbers));
            run(pool.isa(), ApplyKernel { scales, offsets, pixels, activation: self.activation, x, out });
        });
    }
}

/// The moments of one chunk.
struct MomentsKernel<'a> {
    x: &'a [f32],
    state: &'a mut [f32],
}

impl Kernel for MomentsKernel<'_> {
    type Output = ();

    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        let (channels, mut at) = (self.state.len() / 2, 0);
        // SAFETY: the columns are there; features as `Kernel` says.
        unsafe {
            while at < channels {
                let columns = (channels - at) / LANES;
                if columns >= 8 {
                    columns_of::<S, 8>(self.x, at, self.state);
                    at += 8 * LANES;
                } else if columns >= 2 {
                    columns_of::<S, 2>(self.x, at, self.state);
                    at += 2 * LANES;
                } else {
                    columns_of::<S, 1>(self.x, at, self.state);
                    at += LANES;
                }
            }
        }
    }
}

/// Moments of `16 C` channels from `at` on, or of the remaining ones where `C` is 1.
///
/// # Safety
/// As [`Simd`] says; `state` is `[2, channels]`, and all pixels have these channels.
#[inline(always)]
unsafe fn columns_of<S: Simd, const C: usize>(x: &[f32], at: usize, state: &mut [f32]) {
    let channels = state.len() / 2;
    let count = (channels - at).min(C * LANES);
    let (means, squares) = state.split_at_mut(channels);
    let (means, squares) = (&mut means[at..at + count], &mut squares[at..at + count]);
    // SAFETY: as the caller says.
    unsafe {
        let share = S::splat(1.0 / (x.len() / channels) as f32);
        let mut sums = [S::splat(0.0); C];
        for pixel in x.chunks_exact(channels) {
            let pixel = &pixel[at..at + count];
            for column in 0..C {
                sums[column] = S::add(sums[column], load_up_to::<S>(pixel, column * LANES));
            }
        }
        for column in 0..C {
            sums[column] = S::mul(sums[column], share);
            store_up_to::<S>(means, column * LANES, sums[column]);
        }
        let mut deviations = [S::splat(0.0); C];
        for pixel in x.chunks_exact(channels) {
            let pixel = &pixel[at..at + count];
            for column in 0..C {
                let off = S::sub(load_up_to::<S>(pixel, column * LANES), sums[column]);
                deviations[column] = S::fma(off, off, deviations[column]);
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
pub(crate) trait OutputNumber: Copy {
    fn run(isa: Isa, write: ApplyKernel<'_, Self>);

    /// # Safety
    /// As [`Simd`] says; sixteen places, or `count`.
    unsafe fn store<S: Simd>(to: *mut Self, y: S::F);
    /// # Safety
    /// As above.
    unsafe fn store_part<S: Simd>(to: *mut Self, y: S::F, count: usize);
}

impl OutputNumber for f32 {
    fn run(isa: Isa, write: ApplyKernel<'_, Self>) {
        run(isa, write);
    }

    #[inline(always)]
    unsafe fn store<S: Simd>(to: *mut Self, y: S::F) {
        // SAFETY: as the caller says.
        unsafe { S::store(to, y) };
    }

    #[inline(always)]
    unsafe fn store_part<S: Simd>(to: *mut Self, y: S::F, count: usize) {
        // SAFETY: as the caller says.
        unsafe { store_part::<S>(to, y, count) };
    }
}

impl OutputNumber for u16 {
    fn run(isa: Isa, write: ApplyKernel<'_, Self>) {
        run_bf16(isa, write);
    }

    #[inline(always)]
    unsafe fn store<S: Simd>(to: *mut Self, y: S::F) {
        // SAFETY: as the caller says.
        unsafe { S::store_bf16(to, y) };
    }

    #[inline(always)]
    unsafe fn store_part<S: Simd>(to: *mut Self, y: S::F, count: usize) {
        let mut floats = [0.0; LANES];
        // SAFETY: as the caller says, and sixteen floats.
        unsafe {
            S::store(floats.as_mut_ptr(), y);
            for (at, float) in floats.iter().enumerate().take(count) {
                *to.add(at) = bf16_bits(*float);
            }
        }
    }
}

impl<T: OutputNumber> Kernel for ApplyKernel<'_, T> {
    type Output = ();

    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        let (channels, whole) = (self.scales.len(), self.scales.len() / LANES * LANES);
        // SAFETY: pixels as the fields say, which are this task's own, each vector read before it is written.
        unsafe {
            for pixel in 0..self.pixels {
                let (x, out) = (self.x.add(pixel * channels), self.out.add(pixel * channels));
                for at in (0..whole).step_by(LANES) {
                    let y = self.number::<S>(S::load(x.add(at)), at);
                    T::store::<S>(out.add(at), y);
                }
                if whole < channels {
                    let count = channels - whole;
                    let y = self.number::<S>(load_part::<S>(x.add(whole), count), whole);
                    T::store_part::<S>(out.add(whole), y, count);
                }
            }
        }
    }
}

impl<T> ApplyKernel<'_, T> {
    /// # Safety
    /// As [`Simd`] says; there are channels from `at` on.
    #[inline(always)]
    unsafe fn number<S: Simd>(&self, x: S::F, at: usize) -> S::F {
        // SAFETY: as the caller says.
        unsafe {
            let y = S::fma(x, load_up_to::<S>(self.scales, at), load_up_to::<S>(self.offsets, at));
            match self.activation {
                Some(activation) => activation.of::<S>(y),
                None => y,
            }
        }
    }
}
