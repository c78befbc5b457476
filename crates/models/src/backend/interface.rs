//! The interface of devices for networks: tensors, weights, the KV cache, and operations on them.

use std::fmt;
use std::ops::Range;
use std::sync::Arc;

use super::routing::Routing;
use super::types::{Activation, AttentionShape, Conv1dShape, ConvShape, DType, NormKind, Pool, RopeLayout};
use crate::error::{ModelError, Result};
use crate::kv::{KvArena, KvShape, SequenceSlice};
use crate::weights::Rows;

/// Activations, channels last: `[images, height, width, channels]`. A text is an image that is one pixel wide: `[texts,
/// tokens, 1, channels]`. A batch of texts of different lengths is one image: `[1, tokens, 1, channels]`.
#[derive(Debug)]
pub struct Tensor<B: Backend> {
    pub images: usize,
    /// Height and width.
    pub size: [usize; 2],
    pub channels: usize,
    /// The elements on the device.
    pub(crate) data: B::Data,
}

impl<B: Backend> Tensor<B> {
    /// Elements of all images.
    pub fn len(&self) -> usize {
        self.rows() * self.channels
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Pixels of all images.
    pub fn rows(&self) -> usize {
        self.images * self.pixels()
    }

    /// Pixels of one image.
    pub fn pixels(&self) -> usize {
        self.size[0] * self.size[1]
    }

    /// `[images, height, width, channels]`
    pub fn shape(&self) -> [usize; 4] {
        [self.images, self.size[0], self.size[1], self.channels]
    }
}

/// A function that long computations call every few milliseconds. It may block, to let other work run.
///
/// # Errors
/// The computation is cancelled.
pub type Pause = Arc<dyn Fn() -> Result<()> + Send + Sync>;

/// How a request computes.
#[derive(Clone)]
pub struct RequestOptions {
    pub pause: Pause,
    /// Lets attention round queries, keys and values to bf16.
    pub bf16_attention: bool,
}

/// A weight matrix.
pub trait Matrix: fmt::Debug + Send + Sync {
    /// Outputs.
    fn rows(&self) -> usize;

    /// Inputs.
    fn columns(&self) -> usize;
}

/// A layer norm or RMS norm.
#[derive(Debug)]
pub struct Norm<B: Backend> {
    pub kind: NormKind,
    /// Its length is the width of the rows that are normalised.
    pub weight: B::Vector,
    pub bias: Option<B::Vector>,
    pub epsilon: f32,
}

/// A group norm (Wu and He 2018, <https://arxiv.org/abs/1803.08494>).
#[derive(Debug)]
pub struct GroupNorm<B: Backend> {
    pub groups: usize,
    /// `[channels]`
    pub weight: B::Vector,
    /// `[channels]`
    pub bias: B::Vector,
    pub epsilon: f32,
}

/// An instance norm whose weight and bias depend on a style (AdaIN: Huang and Belongie 2017,
/// <https://arxiv.org/abs/1703.06868>), and the activation that follows it.
#[derive(Debug)]
pub struct AdaIn<'a, B: Backend> {
    /// Its groups are single channels.
    pub norm: GroupNorm<B>,
    pub activation: ChannelActivation<'a, B>,
}

/// An activation function, possibly with parameters of each channel.
#[derive(Debug)]
pub enum ChannelActivation<'a, B: Backend> {
    /// `x` if it is positive, else `x` times this slope, which is at most one.
    LeakyRelu(f32),
    /// `x + sin²(αx) / α` (Ziyin et al. 2020, <https://arxiv.org/abs/2006.08195>).
    Snake {
        /// α of each channel: `[channels]`.
        alphas: &'a B::Vector,
        /// 1/α: `[channels]`.
        inverses: &'a B::Vector,
    },
}

/// `down(activation(gate(x)) · up(x))`, or `down(activation(up(x)))` without a gate.
#[derive(Debug)]
pub struct FeedForward<'a, B: Backend> {
    pub gate: Option<&'a B::Linear>,
    pub up: &'a B::Linear,
    pub down: &'a B::Linear,
    pub activation: Activation,
}

/// A LoRA delta of some rows: `out += scale · up(down(x))`.
#[derive(Debug)]
pub struct LowRankUpdate<'a, B: Backend> {
    /// The index of the output.
    pub output: usize,
    /// Rows of the input and of the output.
    pub rows: Range<usize>,
    pub down: &'a B::Linear,
    pub up: &'a B::Linear,
    pub scale: f32,
}

/// The experts of tokens.
#[derive(Debug)]
pub struct RoutedTokens<B: Backend> {
    /// The weight of each expert, and zero if it is not selected: `[1, tokens, 1, experts]`.
    pub weights: Tensor<B>,
    /// The tokens of each expert, in ascending order.
    pub tokens: Vec<Vec<usize>>,
}

/// The angles of a rotary position embedding: cosines and sines, each `[1, rows, 1, pairs]`.
#[derive(Debug)]
pub struct Angles<B: Backend> {
    pub cos: Tensor<B>,
    pub sin: Tensor<B>,
}

/// A device. Clones are handles of the same device.
///
/// Operations return [`ModelError::Compute`] if shapes do not fit, or if the device fails.
pub trait Backend: Clone + fmt::Debug + Send + Sync + Sized + 'static {
    /// The elements of a tensor.
    type Data: fmt::Debug + Send + Sync;
    /// A weight vector.
    type Vector: fmt::Debug + Send + Sync;
    /// A weight matrix with an optional bias: `y = x Wᵀ + b`.
    type Linear: Matrix;
    /// The weights of a convolution with an optional bias.
    type Conv: fmt::Debug + Send + Sync;
    /// The weights of a convolution over time with an optional bias.
    type Conv1d: fmt::Debug + Send + Sync;
    type KvArena: KvArena;
    /// A batch of sequences whose keys and values are in an arena; see [`Backend::batch`].
    type Batch: fmt::Debug + Send + Sync;
    /// The first field of every structure with tensors or weights that may be dropped on any thread.
    type ThreadBinding: fmt::Debug + Send + Sync;

    /// Rows for which a LoRA delta is computed at once.
    const LORA_ROWS: usize;

    /// True if an arena gives the memory of released blocks back. Otherwise its memory is that of the most blocks that were ever
    /// in use, so layers with a window must share their blocks with the others: the arenas of several groups would reach their
    /// peaks at different times, and take more than the blocks that are counted.
    const RELEASES_KV_BLOCKS: bool;

    // Handles.

    /// A handle that loads weights, without waiting for computations.
    fn for_loading(&self) -> Self;

    /// A handle for a request, with buffers of its own. Its operations call [`RequestOptions::pause`].
    fn for_request(&self, options: RequestOptions) -> Self;

    /// Binds the thread that drops the result to the device.
    fn thread_binding(&self) -> Self::ThreadBinding;

    /// Lets other work run.
    ///
    /// # Errors
    /// The request is cancelled.
    fn pause(&self) -> Result<()>;

    /// The threads of the host.
    fn pool(&self) -> &Pool;

    /// The maximum bytes that the tensors of this handle took together.
    fn peak_bytes(&self) -> usize;

    // Weights.

    /// Reads a weight matrix, `[outputs, inputs]`, and its `bias`, `[outputs]`. With `embedding`, [`Self::embedding`] can
    /// return its rows.
    fn read_linear(&self, weight: &Rows<'_>, bias: Option<&[f32]>, embedding: bool) -> Result<Self::Linear>;

    /// Reads the weights of a convolution, `[outputs, inputs, height, width]`, and its `bias`, `[outputs]`.
    fn read_conv(&self, weight: &Rows<'_>, shape: ConvShape, bias: Option<&[f32]>) -> Result<Self::Conv>;

    /// Reads the weights of a convolution over time, `[outputs, inputs, kernel]`, and its `bias`, `[outputs]`.
    fn read_conv1d(&self, weight: &Rows<'_>, shape: Conv1dShape, bias: Option<&[f32]>) -> Result<Self::Conv1d>;

    fn vector(&self, values: Vec<f32>) -> Result<Self::Vector>;

    /// Bytes of a weight matrix of this type in the checkpoint.
    fn linear_bytes(&self, dtype: DType, rows: usize, columns: usize) -> usize;

    /// Temporary bytes of reading such a matrix.
    fn loading_bytes(&self, dtype: DType, rows: usize, columns: usize) -> usize;

    /// Bytes of the weights of a convolution of this type in the checkpoint.
    fn conv_bytes(&self, dtype: DType, shape: &ConvShape) -> usize;

    /// Bytes of the weights of a convolution over time of this type in the checkpoint.
    fn conv1d_bytes(&self, dtype: DType, shape: &Conv1dShape) -> usize;

    // Tensors.

    /// A tensor whose elements `fill` writes, in order. They are undefined before.
    fn upload(&self, shape: [usize; 4], fill: &mut dyn FnMut(&mut [f32]) -> Result<()>) -> Result<Tensor<Self>>;

    /// A tensor of these values.
    fn tensor(&self, values: &[f32], shape: [usize; 4]) -> Result<Tensor<Self>> {
        if values.len() != shape.iter().product::<usize>() {
            return Err(ModelError::Compute(format!("{} values do not fit the shape {shape:?}", values.len())));
        }
        self.upload(shape, &mut |out| {
            out.copy_from_slice(values);
            Ok(())
        })
    }

    fn zeros(&self, shape: [usize; 4]) -> Result<Tensor<Self>>;

    fn copy(&self, x: &Tensor<Self>) -> Result<Tensor<Self>>;

    /// The elements, in order.
    fn to_vec(&self, x: &Tensor<Self>) -> Result<Vec<f32>>;

    /// The elements, in order, without a copy if possible. Elements after those of `x` are undefined.
    fn download(&self, x: Tensor<Self>) -> Result<Vec<f32>>;

    /// Takes back the memory of [`Self::download`] for new tensors.
    fn recycle(&self, values: Vec<f32>);

    // Rows: pixels of all images together.

    /// A range of rows: `[1, rows, 1, channels]`.
    fn rows(&self, x: &Tensor<Self>, rows: Range<usize>) -> Result<Tensor<Self>>;

    /// These rows: `[1, rows, 1, channels]`.
    fn gather_rows(&self, x: &Tensor<Self>, rows: &[usize]) -> Result<Tensor<Self>>;

    /// Replaces the rows of `x` from `first` on.
    fn write_rows(&self, x: &mut Tensor<Self>, first: usize, y: &Tensor<Self>) -> Result<()>;

    /// Adds `y` to the rows of `x` from `first` on.
    fn add_rows(&self, x: &mut Tensor<Self>, first: usize, y: &Tensor<Self>) -> Result<()>;

    // Mixtures of experts.

    /// Selects experts by the scores of a router: `[1, tokens, 1, experts]`.
    fn route(&self, routing: Routing, scores: Tensor<Self>) -> Result<RoutedTokens<Self>>;

    /// Adds each row of `y`, the output of expert `expert` for the tokens `tokens`, to the row of its token in `x`,
    /// multiplied by its weight: `weights` is `[1, tokens of x, 1, experts]`.
    fn add_expert(
        &self,
        x: &mut Tensor<Self>,
        y: &Tensor<Self>,
        tokens: &[usize],
        weights: &Tensor<Self>,
        expert: usize,
    ) -> Result<()>;

    // Products.

    /// The rows `ids` of a weight: `[1, ids, 1, inputs]`.
    fn embedding(&self, weight: &Self::Linear, ids: &[u32]) -> Result<Tensor<Self>>;

    /// Reads the first matrix of a [`LowRankUpdate`], `[rank, inputs]`. It is of no use for other products.
    fn read_low_rank(&self, weight: &Rows<'_>) -> Result<Self::Linear> {
        self.read_linear(weight, None, false)
    }

    /// Bytes that it takes on the device.
    fn low_rank_bytes(&self, dtype: DType, rank: usize, inputs: usize) -> usize {
        self.linear_bytes(dtype, rank, inputs)
    }

    /// Products of the same input with several weights.
    fn linears<const N: usize>(&self, weights: [&Self::Linear; N], x: &Tensor<Self>) -> Result<[Tensor<Self>; N]>;

    /// Adds updates to the products of `x` with several weights. The updates of an output are in the order of their rows,
    /// and have no row in common.
    fn add_low_rank(
        &self,
        updates: &[LowRankUpdate<'_, Self>],
        x: &Tensor<Self>,
        outs: &mut [Tensor<Self>],
    ) -> Result<()> {
        updates.iter().try_for_each(|update| add_update(self, update, &self.rows(x, update.rows.clone())?, outs))
    }

    /// Products of the same input with several weights, with updates.
    fn adapted_linears<const N: usize>(
        &self,
        weights: [&Self::Linear; N],
        updates: &[LowRankUpdate<'_, Self>],
        x: &Tensor<Self>,
    ) -> Result<[Tensor<Self>; N]> {
        let mut outs = self.linears(weights, x)?;
        self.add_low_rank(updates, x, &mut outs)?;
        Ok(outs)
    }

    fn feed_forward(&self, mlp: FeedForward<'_, Self>, x: &Tensor<Self>) -> Result<Tensor<Self>>;

    fn conv(&self, conv: &Self::Conv, x: &Tensor<Self>) -> Result<Tensor<Self>>;

    /// A convolution over the tokens of each text: `[texts, outputs, 1, channels]`.
    fn conv1d(&self, conv: &Self::Conv1d, x: &Tensor<Self>) -> Result<Tensor<Self>>;

    // Norms.

    /// Normalises each row, or parts of rows if the norm is narrower.
    fn norm(&self, norm: &Norm<Self>, x: &Tensor<Self>) -> Result<Tensor<Self>>;

    /// `x += y; norm(x)`
    fn add_norm(&self, norm: &Norm<Self>, x: &mut Tensor<Self>, y: &Tensor<Self>) -> Result<Tensor<Self>>;

    /// `norm(x + shift)`, followed by SiLU if `silu` is set. `shift`: `[images, 1, 1, channels]`.
    fn group_norm(
        &self,
        norm: &GroupNorm<Self>,
        x: &Tensor<Self>,
        shift: Option<&Tensor<Self>>,
        silu: bool,
    ) -> Result<Tensor<Self>>;

    /// `conv(silu(norm(x + shift)))`; `shift`: `[images, 1, 1, channels]`.
    fn norm_conv(
        &self,
        norm: &GroupNorm<Self>,
        x: &Tensor<Self>,
        shift: Option<&Tensor<Self>>,
        conv: &Self::Conv,
    ) -> Result<Tensor<Self>> {
        let x = self.group_norm(norm, x, shift, true)?;
        self.conv(conv, &x)
    }

    /// `activation(norm(x))`
    fn adain(&self, norm: &AdaIn<'_, Self>, x: &Tensor<Self>) -> Result<Tensor<Self>>;

    /// `conv(activation(norm(x)))`
    fn adain_conv1d(&self, norm: &AdaIn<'_, Self>, x: &Tensor<Self>, conv: &Self::Conv1d) -> Result<Tensor<Self>> {
        let x = self.adain(norm, x)?;
        self.conv1d(conv, &x)
    }

    // Modulation: `vectors` are `[images, 1, 1, count · channels]`, and an index selects one of the `count` vectors of
    // each image.

    /// `x = x · (1 + scale) + shift`; `[shift, scale]` are indices.
    fn modulate(&self, x: &mut Tensor<Self>, vectors: &Tensor<Self>, indices: [usize; 2]) -> Result<()>;

    /// `norm(x) · (1 + scale) + shift` with a layer norm without weights; `[shift, scale]` are indices.
    fn modulated_norm(
        &self,
        epsilon: f32,
        x: &Tensor<Self>,
        vectors: &Tensor<Self>,
        indices: [usize; 2],
    ) -> Result<Tensor<Self>>;

    /// `x += gate · y`; `gate` is an index.
    fn add_gated(&self, x: &mut Tensor<Self>, y: &Tensor<Self>, vectors: &Tensor<Self>, gate: usize) -> Result<()>;

    // Elementwise operations.

    /// `x += y`
    fn add(&self, x: &mut Tensor<Self>, y: &Tensor<Self>) -> Result<()>;

    /// `x *= factor`
    fn multiply(&self, x: &mut Tensor<Self>, factor: f32) -> Result<()>;

    /// `x /= divisor`
    fn divide(&self, x: &mut Tensor<Self>, divisor: f32) -> Result<()>;

    /// `x = activation(x)`, multiplied by `factors` if there are any.
    fn activate(&self, activation: Activation, x: &mut Tensor<Self>, factors: Option<&Tensor<Self>>) -> Result<()>;

    /// `x = max(x, slope · x)`, for a slope of at most one.
    fn leaky_relu(&self, x: &mut Tensor<Self>, slope: f32) -> Result<()>;

    // Layout.

    /// The same elements in another shape.
    fn reshape(&self, x: Tensor<Self>, shape: [usize; 4]) -> Result<Tensor<Self>>;

    /// Concatenates along channels.
    fn concat_channels(&self, x: &Tensor<Self>, y: &Tensor<Self>) -> Result<Tensor<Self>>;

    /// Concatenates the tokens of each text: `[texts, x + y, 1, channels]`.
    fn concat_tokens(&self, x: &Tensor<Self>, y: &Tensor<Self>) -> Result<Tensor<Self>>;

    /// Splits the tokens of each text after the first `count`.
    fn split_tokens(&self, x: &Tensor<Self>, count: usize) -> Result<[Tensor<Self>; 2]>;

    /// `images` copies of a tensor with one image.
    fn repeat(&self, x: &Tensor<Self>, images: usize) -> Result<Tensor<Self>>;

    /// Resizes with nearest-neighbour interpolation.
    fn resize(&self, x: &Tensor<Self>, size: [usize; 2]) -> Result<Tensor<Self>>;

    /// Reorders the elements of each image: element `i` of the result is element `order[i]` of `x`.
    fn permute(&self, x: &Tensor<Self>, order: &[u32], size: [usize; 2], channels: usize) -> Result<Tensor<Self>>;

    // Attention. Channels are `[heads, head_width]`.

    /// Rotates queries or keys of `heads` heads. Elements of a head without angles do not change.
    fn rope(&self, x: &mut Tensor<Self>, heads: usize, layout: RopeLayout, angles: &Angles<Self>) -> Result<()>;

    /// Attention of the pixels of `q` over those of `k` and `v`, image by image, with scores divided by the square root of
    /// the head width.
    fn attention(&self, qkv: [&Tensor<Self>; 3], heads: usize, causal: bool) -> Result<Tensor<Self>>;

    /// Attention of each text with scores that are not scaled, plus a bias: `[1, heads, 1, 2 · tokens − 1]`, by position of
    /// the key relative to the query, from `1 − tokens` on.
    fn biased_attention(&self, qkv: [&Tensor<Self>; 3], heads: usize, bias: &Tensor<Self>) -> Result<Tensor<Self>>;

    // Attention over the KV cache.

    fn new_kv_arena(&self, shape: KvShape) -> Self::KvArena;

    /// Prepares a batch. All layers of a step share the result, and so may steps with the same sequences.
    ///
    /// # Errors
    /// If a sequence has fewer blocks than positions.
    fn batch(&self, sequences: Vec<SequenceSlice>) -> Result<Self::Batch>;

    /// Writes the keys and values of the batch's tokens, `[1, tokens, 1, kv_heads · head_width]`.
    ///
    /// # Errors
    /// If a block has no memory; nothing is written then.
    fn write_kv(
        &self,
        arena: &mut Self::KvArena,
        layer: usize,
        batch: &Self::Batch,
        kv: [&Tensor<Self>; 2],
    ) -> Result<()>;

    /// Attention of the batch's tokens. The blocks must already hold the keys and values of the tokens themselves. Queries
    /// and result: `[1, tokens, 1, heads · head_width]`.
    fn kv_attention(
        &self,
        arena: &Self::KvArena,
        layer: usize,
        batch: &Self::Batch,
        shape: &AttentionShape,
        q: &Tensor<Self>,
    ) -> Result<Tensor<Self>>;

    /// The weights with which `heads` of the tokens of one sequence attend to all its positions, on the host: `[heads, tokens,
    /// positions]`. `shape` has neither a causal mask nor a window.
    ///
    /// # Errors
    /// If the batch does not have exactly one sequence.
    fn kv_attention_weights(
        &self,
        arena: &Self::KvArena,
        layer: usize,
        batch: &Self::Batch,
        shape: &AttentionShape,
        q: &Tensor<Self>,
        heads: &[usize],
    ) -> Result<Vec<f32>>;

    /// An upper bound of the temporary bytes of [`Self::kv_attention`] for `tokens` tokens in total, in sequences of up to
    /// `positions` positions.
    fn kv_attention_bytes(&self, shape: &AttentionShape, tokens: usize, positions: usize) -> usize;
}

/// Adds an update, given the rows of its input.
pub(super) fn add_update<B: Backend>(
    backend: &B,
    update: &LowRankUpdate<'_, B>,
    x: &Tensor<B>,
    outs: &mut [Tensor<B>],
) -> Result<()> {
    let LowRankUpdate { output, rows, down, up, scale } = update;
    let Some(out) = outs.get_mut(*output) else {
        return Err(ModelError::Compute(format!("there is no output {output}")));
    };
    let [mut low_rank] = backend.linears([*down], x)?;
    backend.multiply(&mut low_rank, *scale)?;
    let [delta] = backend.linears([*up], &low_rank)?;
    backend.add_rows(out, rows.start, &delta)
}
