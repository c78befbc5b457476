//! The operations of diffusion models.
//!
//! Text generation shares the CPU with image generation, so work is split into chunks of a few milliseconds. Between
//! chunks, [`OpContext::pause`] may block. It returns an error after the request is cancelled.

mod add_lora;

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

/// Multiply-adds of each thread in a chunk of work: a few milliseconds.
const CHUNK_MACS: usize = 200_000_000;
/// Minimum rows of a matrix product. Each product reads all weights once.
const MIN_ROWS: usize = 64;
/// Elements of the hidden layer of a feed-forward network that are computed at once. They fit in the cache.
const FFN_CHUNK: usize = 2 << 20;
/// Elements of each thread in a memory-bound chunk of work.
const CHUNK_ELEMENTS: usize = 4 << 20;

/// What operations need: the thread pool, reusable buffers, LoRA deltas and a function that pauses.
pub struct OpContext<'a> {
    pub pool: &'a Pool,
    pub buffers: BufferPool,
    /// Whether attention computes in bf16, like products with bf16 weights.
    bf16_attention: bool,
    /// Scratch for keys and values in KV blocks, reused between calls.
    kv_f32: RefCell<Vec<f32>>,
    kv_bf16: RefCell<Vec<bf16>>,
    /// LoRA deltas that are added to the outputs of layers.
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

    /// Sets whether attention computes in bf16.
    pub fn with_bf16_attention(self, bf16_attention: bool) -> Self {
        Self { bf16_attention, ..self }
    }

    /// Sets the LoRA deltas.
    pub fn with_lora(self, lora: LoraDeltas) -> Self {
        Self { lora, ..self }
    }

    /// Peak bytes of all buffers, without the scratch of kernels.
    pub fn peak_bytes(&self) -> usize {
        let kv = size_of::<f32>() * self.kv_f32.borrow().len() + size_of::<bf16>() * self.kv_bf16.borrow().len();
        size_of::<f32>() * self.buffers.peak() + kv
    }

    /// Lets other work run.
    ///
    /// # Errors
    /// The request is cancelled.
    pub fn pause(&self) -> Result<()> {
        (self.pause)()
    }

    /// A feature map of unspecified content.
    pub fn alloc(&self, images: usize, size: [usize; 2], channels: usize) -> FeatureMap {
        self.buffers.alloc(images, size, channels)
    }

    /// A feature map with a copy of `values`.
    ///
    /// # Errors
    /// The lengths differ.
    pub fn feature_map(&self, values: &[f32], images: usize, size: [usize; 2], channels: usize) -> Result<FeatureMap> {
        let mut map = self.alloc(images, size, channels);
        if map.len() != values.len() {
            return Err(ModelError::Compute(format!(
                "{} values do not fit a feature map of {}",
                values.len(),
                map.len()
            )));
        }
        map.data_mut().copy_from_slice(values);
        Ok(map)
    }

    /// Rows in a chunk of work. `row_macs`: multiply-adds of a row.
    fn chunk_rows(&self, row_macs: usize) -> usize {
        (CHUNK_MACS * self.pool.threads() / row_macs.max(1)).max(1)
    }

    /// A convolution with LoRA deltas.
    pub(in crate::models) fn conv(&self, conv: &Conv, x: &FeatureMap) -> Result<FeatureMap> {
        let mut out = self.conv_without_lora(conv, x, None)?;
        for (delta, scale) in self.lora.get(conv_id(conv)) {
            self.add_lora_conv(delta, x, *scale, &mut out)?;
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
        // LoRA deltas need the normalised input. Without them it is never materialised.
        if !self.lora.get(conv_id(conv)).is_empty() {
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
        let shape = *conv.shape();
        let Some(size) = shape.output(x.size).filter(|_| x.channels == shape.inputs) else {
            return Err(ModelError::Compute(format!(
                "{shape:?} does not take {} channels of {:?}",
                x.channels, x.size
            )));
        };
        let mut out = self.alloc(x.images, size, shape.outputs);
        let row_elements = size[1] * shape.outputs;
        let rows = self.chunk_rows(row_elements * shape.inputs * shape.kernel[0] * shape.kernel[1]);
        let input = ConvInput { x: x.data(), size: x.size, norm };
        if rows >= x.images * size[0] {
            conv.forward(self.pool, input, out.data_mut());
            self.pause()?;
            return Ok(out);
        }
        let outs = out.data_mut().chunks_exact_mut((size[0] * row_elements).max(1));
        for (image, out) in input.chunks(x.channels, 1).zip(outs) {
            for (first, out) in (0..size[0]).step_by(rows).zip(out.chunks_mut(rows * row_elements)) {
                conv.forward_rows(self.pool, image, first..size[0].min(first + rows), out);
                self.pause()?;
            }
        }
        Ok(out)
    }

    /// A projection with LoRA deltas.
    pub(in crate::models) fn linear(&self, weight: &Linear, x: &FeatureMap) -> Result<FeatureMap> {
        let [out] = self.linears([weight], x)?;
        Ok(out)
    }

    /// Products of the same `m` rows with several weights, with LoRA deltas.
    fn matmuls(&self, x: &[f32], m: usize, products: &mut [(&Linear, &mut [f32])]) -> Result<()> {
        Linear::forward_all(self.pool, x, m, products)?;
        for (weight, out) in products.iter_mut().filter(|_| !self.lora.is_empty()) {
            for (delta, scale) in self.lora.get(weight.id()) {
                self.add_lora(delta, x, m, *scale, out)?;
            }
        }
        Ok(())
    }

    /// Several projections of the same input, with LoRA deltas.
    pub(in crate::models) fn linears<const N: usize>(
        &self,
        weights: [&Linear; N],
        x: &FeatureMap,
    ) -> Result<[FeatureMap; N]> {
        let mut outs = weights.map(|weight| self.alloc(x.images, x.size, weight.rows()));
        let outputs: usize = weights.iter().map(|weight| weight.rows()).sum();
        let rows = self.chunk_rows(outputs * x.channels).next_multiple_of(MIN_ROWS);
        for (index, chunk) in x.data().chunks(rows * x.channels).enumerate() {
            let m = chunk.len() / x.channels.max(1);
            let mut products = Vec::with_capacity(N);
            for (weight, out) in weights.iter().zip(&mut outs) {
                let width = weight.rows();
                let out = out.data_mut().chunks_mut(rows * width).nth(index).unwrap_or_default();
                products.push((*weight, out));
            }
            self.matmuls(chunk, m, &mut products)?;
            self.pause()?;
        }
        Ok(outs)
    }

    /// A feed-forward network, computed in chunks of rows because its hidden layer is wide.
    pub(in crate::models) fn feed_forward(&self, mlp: &Mlp, x: &FeatureMap) -> Result<FeatureMap> {
        let Mlp { gate, up, down, activation } = mlp;
        let (width, inner) = (x.channels.max(1), up.rows().max(1));
        let rows = (FFN_CHUNK / inner).clamp(1, self.chunk_rows(inner * width)).next_multiple_of(MIN_ROWS);
        let chunk_rows = rows.min(x.rows());
        let mut up_out = self.alloc(1, [chunk_rows, 1], inner);
        let mut gate_out = gate.is_some().then(|| self.alloc(1, [chunk_rows, 1], inner));
        let mut out = self.alloc(x.images, x.size, down.rows());
        for (x, out) in x.data().chunks(rows * width).zip(out.data_mut().chunks_mut(rows * down.rows())) {
            let m = x.len() / width;
            let up_out = up_out.prefix_mut(m * inner);
            let hidden = match (gate, &mut gate_out) {
                (Some(gate), Some(gate_out)) => {
                    let gate_out = gate_out.prefix_mut(m * inner);
                    self.matmuls(x, m, &mut [(up, &mut *up_out), (gate, &mut *gate_out)])?;
                    kernels::activate(self.pool, *activation, gate_out, Some(up_out));
                    gate_out
                }
                _ => {
                    self.matmuls(x, m, &mut [(up, &mut *up_out)])?;
                    kernels::activate(self.pool, *activation, up_out, None);
                    up_out
                }
            };
            self.pause()?;
            self.matmuls(hidden, m, &mut [(down, out)])?;
            self.pause()?;
        }
        Ok(out)
    }

    /// `norm(x + shift)`, followed by SiLU if `silu` is set. `shift`: `[images, 1, 1, channels]`.
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
        let (image_elements, chunk) = ((x.pixels() * x.channels).max(1), self.elements_per_chunk(x.channels));
        for ((image, out), factors) in x.per_image().zip(out.data_mut().chunks_exact_mut(image_elements)).zip(&factors)
        {
            for (x, out) in image.chunks(chunk).zip(out.chunks_mut(chunk)) {
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
        let chunk = self.elements_per_chunk(x.channels);
        let mut shifts = shift.map(FeatureMap::per_image);
        let mut factors = Vec::with_capacity(x.images);
        for image in x.per_image() {
            let mut moments = Moments::new(x.channels);
            for x in image.chunks(chunk) {
                moments.add(self.pool, x);
                self.pause()?;
            }
            factors.push(kernel.factors(&moments, shifts.as_mut().and_then(Iterator::next)));
        }
        Ok(factors)
    }

    /// Elements in a memory-bound chunk of work, a multiple of the pixels whose moments are computed together.
    fn elements_per_chunk(&self, channels: usize) -> usize {
        let moments_elements = Moments::pixels_per_chunk(channels) * channels;
        (CHUNK_ELEMENTS * self.pool.threads()).next_multiple_of(moments_elements.max(1))
    }

    /// `norm(x)` for each pixel. The norm may be a layer norm or an RMS norm.
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

    /// `x += y`
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

    /// Concatenates along channels.
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

    /// Attention of the pixels of `q` over those of `k` and `v`, image by image. Channels are `[heads, head_dim]`.
    pub(in crate::models) fn attention(
        &self,
        [q, k, v]: [&FeatureMap; 3],
        heads: usize,
        causal: bool,
    ) -> Result<FeatureMap> {
        let head_dim = q.channels / heads.max(1);
        let fits = head_dim * heads == q.channels && k.channels == q.channels && v.channels == q.channels;
        if !fits || k.len() != v.len() || q.images != k.images || head_dim == 0 {
            return Err(ModelError::Compute(format!(
                "queries of {} channels and keys of {} do not fit {heads} heads",
                q.channels, k.channels
            )));
        }
        let shape = AttentionShape {
            heads,
            kv_heads: heads,
            width: head_dim,
            scale: (head_dim as f32).sqrt().recip(),
            causal,
            window: None,
            soft_cap: None,
        };
        let mut out = self.alloc(q.images, q.size, q.channels);
        let row = q.channels;
        // A causal mask requires all rows at once. Only texts are causal, and they are short.
        let rows = if causal { q.pixels() } else { self.chunk_rows(2 * k.pixels() * row).next_multiple_of(MIN_ROWS) };
        let images =
            q.per_image().zip(k.per_image().zip(v.per_image())).zip(out.data_mut().chunks_exact_mut(q.pixels() * row));
        for ((queries, (k, v)), out) in images {
            let input = AttentionInput { shape, positions: k.len() / row, rows, queries };
            match self.bf16_attention && self.pool.isa().has_bf16_dot() && head_dim.is_multiple_of(2) {
                true => self.attend(input, [k, v], &mut self.kv_bf16.borrow_mut(), out)?,
                false => self.attend(input, [k, v], &mut self.kv_f32.borrow_mut(), out)?,
            }
        }
        Ok(out)
    }

    /// Attention of one image. Copies keys and values, `[positions, heads, head_dim]`, into KV blocks first.
    fn attend<T: KvElement>(
        &self,
        AttentionInput { shape, positions, rows, queries }: AttentionInput<'_>,
        [k, v]: [&[f32]; 2],
        kv: &mut Vec<T>,
        out: &mut [f32],
    ) -> Result<()> {
        let row = shape.heads * shape.width;
        let block = BLOCK_POSITIONS * row;
        let padded_len = positions.next_multiple_of(BLOCK_POSITIONS) * row;
        kv.resize(kv.len().max(2 * padded_len), T::default());
        let (keys, rest) = kv.split_at_mut(padded_len);
        let (values, _) = rest.split_at_mut(padded_len);
        let mut writes = Vec::with_capacity(padded_len / block);
        for (index, (keys, values)) in keys.chunks_exact_mut(block).zip(values.chunks_exact_mut(block)).enumerate() {
            let first = index * BLOCK_POSITIONS;
            let count = BLOCK_POSITIONS.min(positions - first);
            writes.push(KvWrite { block: T::cells(KvPair { keys, values }), row: first, slot: 0, count });
        }
        kernels::kv_write(self.pool, [shape.heads, shape.width], k, v, &mut writes);
        drop(writes);
        let [keys, values] = [&*keys, &*values].map(|elements| elements.chunks_exact(block).collect::<Vec<_>>());
        for (queries, out) in queries.chunks(rows * row).zip(out.chunks_mut(rows * row)) {
            let blocks = T::blocks(KvSlices { keys: &keys, values: &values });
            let sequence = AttentionSequence { queries, rows: queries.len() / row, start: 0, positions, blocks };
            kernels::attend(self.pool, &[sequence], &shape, out);
            self.pause()?;
        }
        Ok(())
    }
}

/// The ID by which LoRA deltas refer to a convolution: its address.
fn conv_id(conv: &Conv) -> usize {
    Arc::as_ptr(conv).addr()
}

/// The type in which keys and values are stored.
trait KvElement: Copy + Default {
    fn cells(pair: KvPair<&mut [Self]>) -> KvBlockMut<'_>;
    fn blocks<'a>(pair: KvSlices<'a, &'a [Self]>) -> KvBlocks<'a>;
}

impl KvElement for f32 {
    fn cells(pair: KvPair<&mut [f32]>) -> KvBlockMut<'_> {
        KvBlockMut::F32(pair)
    }

    fn blocks<'a>(pair: KvSlices<'a, &'a [f32]>) -> KvBlocks<'a> {
        KvBlocks::F32(pair)
    }
}

impl KvElement for bf16 {
    fn cells(pair: KvPair<&mut [bf16]>) -> KvBlockMut<'_> {
        KvBlockMut::Bf16(pair)
    }

    fn blocks<'a>(pair: KvSlices<'a, &'a [bf16]>) -> KvBlocks<'a> {
        KvBlocks::Bf16(pair)
    }
}

/// The attention input of one image.
struct AttentionInput<'a> {
    shape: AttentionShape,
    /// Positions of keys and values.
    positions: usize,
    /// Query rows in a chunk of work.
    rows: usize,
    /// `[pixels, heads, head_dim]`
    queries: &'a [f32],
}

impl fmt::Debug for OpContext<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("OpContext").field("pool", &self.pool).finish_non_exhaustive()
    }
}
