//! The operations that diffusion networks are built from.
//!
//! Text generation shares the CPU with image generation, so work is split into chunks of a few milliseconds. Between
//! chunks, [`OpContext::pause`] may block, and it returns an error once the request is cancelled.

mod lora;

use std::cell::RefCell;
use std::fmt;
use std::sync::Arc;

use half::bf16;
use outpost_kernels::{
    self as kernels, Activation, AttentionSequence, AttentionShape, BLOCK_POSITIONS, ConvInput, FusedNorm, KvBlockMut,
    KvBlocks, KvPair, KvSlices, KvWrite, Moments, Pool, ScaleShift,
};

use super::adapters::LoraDeltas;
use super::feature_map::{BufferPool, FeatureMap};
use super::layers::{Conv, GroupNorm};
use crate::models::error::ModelError;
pub use crate::models::error::Result;
use crate::models::linear::Linear;
use crate::models::mlp::Mlp;
use crate::models::norm::Norm;

/// Multiply-adds in a chunk of work, for each thread: a few milliseconds.
const CHUNK_MACS: usize = 200_000_000;
/// Minimum rows of a matrix product, because its weights are read once for all of them.
const MIN_ROWS: usize = 64;
/// Elements of a feed-forward network's hidden layer that are computed at once; they stay in the cache.
const FFN_CHUNK: usize = 2 << 20;
/// Elements of a memory-bound chunk of work, for each thread.
const CHUNK_ELEMENTS: usize = 4 << 20;

pub struct OpContext<'a> {
    pub pool: &'a Pool,
    pub buffers: BufferPool,
    /// Whether attention rounds to bf16, as products with bf16 weights do.
    bf16_attention: bool,
    /// Scratch for keys and values in blocks; kept so that the allocation is reused.
    kv_f32: RefCell<Vec<f32>>,
    kv_bf16: RefCell<Vec<bf16>>,
    /// LoRA deltas that are added to products.
    lora: LoraDeltas,
    pause: &'a dyn Fn() -> Result<()>,
}

impl<'a> OpContext<'a> {
    pub fn new(pool: &'a Pool, pause: &'a dyn Fn() -> Result<()>) -> Self {
        Self {
            pool,
            buffers: BufferPool::default(),
            bf16_attention: false,
            kv_f32: RefCell::default(),
            kv_bf16: RefCell::default(),
            lora: LoraDeltas::default(),
            pause,
        }
    }

    /// Sets whether attention rounds to bf16.
    pub fn with_bf16_attention(self, bf16_attention: bool) -> Self {
        Self { bf16_attention, ..self }
    }

    /// Adds LoRA adapters.
    pub fn with_lora(self, lora: LoraDeltas) -> Self {
        Self { lora, ..self }
    }

    /// Peak bytes held at once, without the kernels' own scratch.
    pub fn peak_bytes(&self) -> usize {
        let kv = size_of::<f32>() * self.kv_f32.borrow().len() + size_of::<bf16>() * self.kv_bf16.borrow().len();
        size_of::<f32>() * self.buffers.peak() + kv
    }

    /// Lets other work run.
    pub fn pause(&self) -> Result<()> {
        (self.pause)()
    }

    pub fn alloc(&self, images: usize, size: [usize; 2], channels: usize) -> FeatureMap {
        self.buffers.alloc(images, size, channels)
    }

    /// A feature map with this data; an error where the lengths differ.
    pub fn feature_map(&self, numbers: &[f32], images: usize, size: [usize; 2], channels: usize) -> Result<FeatureMap> {
        let mut map = self.alloc(images, size, channels);
        if map.len() != numbers.len() {
            return Err(ModelError::Compute(format!("{} elements for a feature map of {}", numbers.len(), map.len())));
        }
        map.data_mut().copy_from_slice(numbers);
        Ok(map)
    }

    /// How many rows make a chunk of work; `cost`: multiply-adds of a row.
    fn chunk_rows(&self, cost: usize) -> usize {
        (CHUNK_MACS * self.pool.threads() / cost.max(1)).max(1)
    }

    pub(in crate::models) fn conv(&self, conv: &Conv, x: &FeatureMap) -> Result<FeatureMap> {
        let mut out = self.conv_without_lora(conv, x, None)?;
        for (delta, factor) in self.lora.of(conv_id(conv)) {
            self.add_lora_conv(delta, x, *factor, &mut out)?;
        }
        Ok(out)
    }

    /// `conv(silu(norm(x + shift)))`; `shift`: `[images, 1, 1, channels]`.
    pub(in crate::models) fn norm_conv(
        &self,
        norm: &GroupNorm,
        x: &FeatureMap,
        shift: Option<&FeatureMap>,
        conv: &Conv,
    ) -> Result<FeatureMap> {
        // With LoRA, the normalised input is needed too; otherwise it is never materialised.
        if !self.lora.of(conv_id(conv)).is_empty() {
            let x = self.group_norm(norm, x, shift, true)?;
            return self.conv(conv, &x);
        }
        let activation = Some(Activation::Silu);
        let factors = self.norm_factors(&norm.kernel(activation), x, shift)?;
        self.conv_without_lora(conv, x, Some(FusedNorm { factors: &factors, activation }))
    }

    /// The convolution without LoRA deltas.
    pub(super) fn conv_without_lora(
        &self,
        conv: &Conv,
        x: &FeatureMap,
        norm: Option<FusedNorm<'_>>,
    ) -> Result<FeatureMap> {
        let window = *conv.shape();
        let Some(size) = window.output(x.size).filter(|_| x.channels == window.inputs) else {
            return Err(ModelError::Compute(format!(
                "{window:?} does not take {} channels of {:?}",
                x.channels, x.size
            )));
        };
        let mut out = self.alloc(x.images, size, window.outputs);
        let row = size[1] * window.outputs;
        let lines = self.chunk_rows(row * window.inputs * window.kernel[0] * window.kernel[1]);
        let images = ConvInput { x: x.data(), size: x.size, norm };
        if lines >= x.images * size[0] {
            conv.forward(self.pool, images, out.data_mut());
            self.pause()?;
            return Ok(out);
        }
        let outs = out.data_mut().chunks_exact_mut((size[0] * row).max(1));
        for (one, out) in images.chunks(x.channels, 1).zip(outs) {
            for (first, out) in (0..size[0]).step_by(lines).zip(out.chunks_mut(lines * row)) {
                conv.forward_rows(self.pool, one, first..size[0].min(first + lines), out);
                self.pause()?;
            }
        }
        Ok(out)
    }

    pub(in crate::models) fn linear(&self, weight: &Linear, x: &FeatureMap) -> Result<FeatureMap> {
        let [out] = self.linears([weight], x)?;
        Ok(out)
    }

    /// Products of the same `m` rows with several weights, including LoRA deltas.
    fn matmuls(&self, x: &[f32], m: usize, all: &mut [(&Linear, &mut [f32])]) -> Result<()> {
        Linear::forward_all(self.pool, x, m, all)?;
        for (weight, out) in all.iter_mut().filter(|_| !self.lora.is_empty()) {
            for (delta, factor) in self.lora.of(weight.id()) {
                self.add_lora(delta, x, m, *factor, out)?;
            }
        }
        Ok(())
    }

    /// Several products of the same input.
    pub(in crate::models) fn linears<const N: usize>(
        &self,
        weights: [&Linear; N],
        x: &FeatureMap,
    ) -> Result<[FeatureMap; N]> {
        let mut outs = weights.map(|weight| self.alloc(x.images, x.size, weight.rows()));
        let all: usize = weights.iter().map(|weight| weight.rows()).sum();
        let rows = self.chunk_rows(all * x.channels).next_multiple_of(MIN_ROWS);
        for (index, part) in x.data().chunks(rows * x.channels).enumerate() {
            let m = part.len() / x.channels.max(1);
            let mut together = Vec::with_capacity(N);
            for (weight, out) in weights.iter().zip(&mut outs) {
                let width = weight.rows();
                let out = out.data_mut().chunks_mut(rows * width).nth(index).unwrap_or_default();
                together.push((*weight, out));
            }
            self.matmuls(part, m, &mut together)?;
            self.pause()?;
        }
        Ok(outs)
    }

    /// A feed-forward network, computed a few rows at a time because its hidden layer is wide.
    pub(in crate::models) fn feed_forward(&self, mlp: &Mlp, x: &FeatureMap) -> Result<FeatureMap> {
        let Mlp { gate, up, down, activation } = mlp;
        let (width, inner) = (x.channels.max(1), up.rows().max(1));
        let rows = (FFN_CHUNK / inner).clamp(1, self.chunk_rows(inner * width)).next_multiple_of(MIN_ROWS);
        let most = rows.min(x.rows());
        let mut left = self.alloc(1, [most, 1], inner);
        let mut right = gate.is_some().then(|| self.alloc(1, [most, 1], inner));
        let mut out = self.alloc(x.images, x.size, down.rows());
        for (x, out) in x.data().chunks(rows * width).zip(out.data_mut().chunks_mut(rows * down.rows())) {
            let m = x.len() / width;
            let left = left.prefix_mut(m * inner);
            let made = match (gate, &mut right) {
                (Some(gate), Some(right)) => {
                    let right = right.prefix_mut(m * inner);
                    self.matmuls(x, m, &mut [(up, &mut *left), (gate, &mut *right)])?;
                    kernels::activate(self.pool, *activation, right, Some(left));
                    right
                }
                _ => {
                    self.matmuls(x, m, &mut [(up, &mut *left)])?;
                    kernels::activate(self.pool, *activation, left, None);
                    left
                }
            };
            self.pause()?;
            self.matmuls(made, m, &mut [(down, out)])?;
            self.pause()?;
        }
        Ok(out)
    }

    /// `norm(x + shift)`, optionally through SiLU; `shift`: `[images, 1, 1, channels]`.
    pub(in crate::models) fn group_norm(
        &self,
        norm: &GroupNorm,
        x: &FeatureMap,
        shift: Option<&FeatureMap>,
        silu: bool,
    ) -> Result<FeatureMap> {
        let kernel = norm.kernel(silu.then_some(Activation::Silu));
        let factors = self.norm_factors(&kernel, x, shift)?;
        let mut out = self.alloc(x.images, x.size, x.channels);
        let (image, part) = ((x.pixels() * x.channels).max(1), self.elements_per_chunk(x.channels));
        for ((x_one, out), factors) in x.per_image().zip(out.data_mut().chunks_exact_mut(image)).zip(&factors) {
            for (x, out) in x_one.chunks(part).zip(out.chunks_mut(part)) {
                kernel.apply(self.pool, factors, x, out);
                self.pause()?;
            }
        }
        Ok(out)
    }

    /// The scale and shift that a group norm applies to each image of `x + shift`.
    fn norm_factors(
        &self,
        kernel: &kernels::GroupNorm<'_>,
        x: &FeatureMap,
        shift: Option<&FeatureMap>,
    ) -> Result<Vec<ScaleShift>> {
        let part = self.elements_per_chunk(x.channels);
        let mut shifts = shift.map(FeatureMap::per_image);
        let mut factors = Vec::with_capacity(x.images);
        for x_one in x.per_image() {
            let mut moments = Moments::new(x.channels);
            for x in x_one.chunks(part) {
                moments.add(self.pool, x);
                self.pause()?;
            }
            factors.push(kernel.factors(&moments, shifts.as_mut().and_then(Iterator::next)));
        }
        Ok(factors)
    }

    /// Elements of whole pixels in a memory-bound chunk of work.
    fn elements_per_chunk(&self, channels: usize) -> usize {
        let together = Moments::pixels_per_chunk(channels) * channels;
        (CHUNK_ELEMENTS * self.pool.threads()).next_multiple_of(together.max(1))
    }

    pub(in crate::models) fn layer_norm(&self, norm: &Norm, x: &FeatureMap) -> Result<FeatureMap> {
        let mut out = self.alloc(x.images, x.size, x.channels);
        norm.forward(self.pool, x.data(), out.data_mut());
        self.pause()?;
        Ok(out)
    }

    /// `x += y; norm(x)`
    pub(in crate::models) fn add_norm(&self, norm: &Norm, x: &mut FeatureMap, y: &FeatureMap) -> Result<FeatureMap> {
        let mut out = self.alloc(x.images, x.size, x.channels);
        norm.add_forward(self.pool, x.data_mut(), y.data(), out.data_mut());
        self.pause()?;
        Ok(out)
    }

    pub(in crate::models) fn add(&self, x: &mut FeatureMap, y: &FeatureMap) -> Result<()> {
        if x.len() != y.len() {
            return Err(ModelError::Compute(format!("{} elements cannot be added to {}", y.len(), x.len())));
        }
        kernels::add(self.pool, x.data_mut(), y.data());
        self.pause()
    }

    /// `x = activation(x)`
    pub(in crate::models) fn activate(&self, activation: Activation, x: &mut FeatureMap) -> Result<()> {
        kernels::activate(self.pool, activation, x.data_mut(), None);
        self.pause()
    }

    /// Concatenates channels.
    pub(in crate::models) fn concat(&self, x: &FeatureMap, y: &FeatureMap) -> Result<FeatureMap> {
        if (x.images, x.size) != (y.images, y.size) {
            return Err(ModelError::Compute(format!("{:?} cannot be concatenated with {:?}", x.size, y.size)));
        }
        let mut out = self.alloc(x.images, x.size, x.channels + y.channels);
        let widths = [x.channels, y.channels];
        kernels::concat_channels(self.pool, [x.data(), y.data()], widths, out.data_mut());
        self.pause()?;
        Ok(out)
    }

    /// Resizes with nearest-neighbour interpolation.
    pub(in crate::models) fn resize(&self, x: &FeatureMap, size: [usize; 2]) -> Result<FeatureMap> {
        let mut out = self.alloc(x.images, size, x.channels);
        kernels::resize_nearest(self.pool, x.data(), x.size, size, x.channels, out.data_mut());
        self.pause()?;
        Ok(out)
    }

    /// Attention of the pixels of `q` over those of `k` and `v`, image by image; channels are `[heads, width]`.
    pub(in crate::models) fn attention(
        &self,
        [q, k, v]: [&FeatureMap; 3],
        heads: usize,
        causal: bool,
    ) -> Result<FeatureMap> {
        let width = q.channels / heads.max(1);
        let fits = width * heads == q.channels && k.channels == q.channels && v.channels == q.channels;
        if !fits || k.len() != v.len() || q.images != k.images || width == 0 {
            return Err(ModelError::Compute(format!("{heads} heads of {} and {} channels", q.channels, k.channels)));
        }
        let shape = AttentionShape {
            heads,
            kv_heads: heads,
            width,
            scale: (width as f32).sqrt().recip(),
            causal,
            window: None,
            soft_cap: None,
        };
        let mut out = self.alloc(q.images, q.size, q.channels);
        let row = q.channels;
        // A causal mask needs all rows at once; such texts are short.
        let rows = if causal { q.pixels() } else { self.chunk_rows(2 * k.pixels() * row).next_multiple_of(MIN_ROWS) };
        let images =
            q.per_image().zip(k.per_image().zip(v.per_image())).zip(out.data_mut().chunks_exact_mut(q.pixels() * row));
        for ((queries, (k, v)), out) in images {
            let input = AttentionInput { shape, positions: k.len() / row, rows, queries };
            match self.bf16_attention && self.pool.isa().has_bf16_dot() && width.is_multiple_of(2) {
                true => self.attend(input, [k, v], &mut self.kv_bf16.borrow_mut(), out)?,
                false => self.attend(input, [k, v], &mut self.kv_f32.borrow_mut(), out)?,
            }
        }
        Ok(out)
    }

    /// Attention of one image. Keys and values, `[positions, heads, width]`, are first written into blocks.
    fn attend<T: KvElement>(
        &self,
        AttentionInput { shape, positions, rows, queries }: AttentionInput<'_>,
        [k, v]: [&[f32]; 2],
        kv: &mut Vec<T>,
        out: &mut [f32],
    ) -> Result<()> {
        let row = shape.heads * shape.width;
        let (block, half) = (BLOCK_POSITIONS * row, positions.next_multiple_of(BLOCK_POSITIONS) * row);
        kv.resize(kv.len().max(2 * half), T::default());
        let (keys, rest) = kv.split_at_mut(half);
        let (values, _) = rest.split_at_mut(half);
        let mut fills = Vec::with_capacity(half / block);
        for (index, (keys, values)) in keys.chunks_exact_mut(block).zip(values.chunks_exact_mut(block)).enumerate() {
            let first = index * BLOCK_POSITIONS;
            let count = BLOCK_POSITIONS.min(positions - first);
            fills.push(KvWrite { block: T::cells(KvPair { keys, values }), row: first, slot: 0, count });
        }
        kernels::kv_write(self.pool, [shape.heads, shape.width], k, v, &mut fills);
        drop(fills);
        let [keys, values] = [&*keys, &*values].map(|half| half.chunks_exact(block).collect::<Vec<_>>());
        for (queries, out) in queries.chunks(rows * row).zip(out.chunks_mut(rows * row)) {
            let blocks = T::blocks(KvSlices { keys: &keys, values: &values });
            let sequence = AttentionSequence { queries, rows: queries.len() / row, start: 0, positions, blocks };
            kernels::attend(self.pool, &[sequence], &shape, out);
            self.pause()?;
        }
        Ok(())
    }
}

/// The identity by which LoRA deltas refer to a convolution.
fn conv_id(conv: &Conv) -> usize {
    Arc::as_ptr(conv).addr()
}

/// The type in which keys and values are stored.
trait KvElement: Copy + Default {
    fn cells(both: KvPair<&mut [Self]>) -> KvBlockMut<'_>;
    fn blocks<'a>(pair: KvSlices<'a, &'a [Self]>) -> KvBlocks<'a>;
}

impl KvElement for f32 {
    fn cells(both: KvPair<&mut [f32]>) -> KvBlockMut<'_> {
        KvBlockMut::F32(both)
    }

    fn blocks<'a>(pair: KvSlices<'a, &'a [f32]>) -> KvBlocks<'a> {
        KvBlocks::F32(pair)
    }
}

impl KvElement for bf16 {
    fn cells(both: KvPair<&mut [bf16]>) -> KvBlockMut<'_> {
        KvBlockMut::Bf16(both)
    }

    fn blocks<'a>(pair: KvSlices<'a, &'a [bf16]>) -> KvBlocks<'a> {
        KvBlocks::Bf16(pair)
    }
}

/// The attention inputs of one image.
struct AttentionInput<'a> {
    shape: AttentionShape,
    positions: usize,
    /// Rows in a chunk of work.
    rows: usize,
    queries: &'a [f32],
}

impl fmt::Debug for OpContext<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("OpContext").field("pool", &self.pool).finish_non_exhaustive()
    }
}
