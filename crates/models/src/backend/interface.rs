//! What every device can do for networks: tensors, weights, and operations on them.
//!
//! A device implements the required methods of [`Backend`]. The others are composed of these. A device overrides those that it
//! computes faster at once. What only some networks need is a trait of its own: `PagedAttention`, `Recurrent`,
//! `Convolutions`, `TimeConvolutions`. A network names in its bounds the traits that it needs.

use std::fmt;
use std::iter;
use std::ops::Range;
use std::sync::Arc;

use super::routing::Routing;
use super::types::{Activation, DType, NormKind, Pool, RopeLayout};
use crate::error::{ModelError, Result};
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

/// `down(activation(gate(x)) · up(x))`, or `down(activation(up(x)))` without a gate.
#[derive(Debug)]
pub struct FeedForward<'a, B: Backend> {
    pub gate: Option<&'a B::Linear>,
    pub up: &'a B::Linear,
    pub down: &'a B::Linear,
    pub activation: Activation,
}

impl<B: Backend> Clone for FeedForward<'_, B> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<B: Backend> Copy for FeedForward<'_, B> {}

/// An expert, and the tokens that selected it.
#[derive(Debug)]
pub struct RoutedExpert<'a, B: Backend> {
    /// Its index among all experts.
    pub index: usize,
    pub network: FeedForward<'a, B>,
    /// In ascending order.
    pub tokens: &'a [usize],
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
    /// The first field of every structure with tensors or weights that may be dropped on any thread.
    type ThreadBinding: fmt::Debug + Send + Sync;

    /// Rows for which a LoRA delta is computed at once.
    const LORA_ROWS: usize = usize::MAX;

    // What every device implements.

    // Handles.

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

    // Weights.

    /// Reads a weight matrix, `[outputs, inputs]`, and its `bias`, `[outputs]`. With `embedding`, [`Self::embedding`] can
    /// return its rows.
    fn read_linear(&self, weight: &Rows<'_>, bias: Option<&[f32]>, embedding: bool) -> Result<Self::Linear>;

    fn vector(&self, values: Vec<f32>) -> Result<Self::Vector>;

    /// Bytes of a weight matrix of this type in the checkpoint.
    fn linear_bytes(&self, dtype: DType, rows: usize, columns: usize) -> usize;

    /// Temporary bytes of reading such a matrix.
    fn loading_bytes(&self, dtype: DType, rows: usize, columns: usize) -> usize;

    // Tensors. Rows are pixels of all images together.

    /// A tensor whose elements `fill` writes, in order. They are undefined before.
    fn upload(&self, shape: [usize; 4], fill: &mut dyn FnMut(&mut [f32]) -> Result<()>) -> Result<Tensor<Self>>;

    /// The elements, in order.
    fn to_vec(&self, x: &Tensor<Self>) -> Result<Vec<f32>>;

    /// The same elements in another shape.
    fn reshape(&self, x: Tensor<Self>, shape: [usize; 4]) -> Result<Tensor<Self>>;

    /// These rows: `[1, rows, 1, channels]`.
    fn gather_rows(&self, x: &Tensor<Self>, rows: &[usize]) -> Result<Tensor<Self>>;

    /// Replaces the rows of `x` from `first` on.
    fn write_rows(&self, x: &mut Tensor<Self>, first: usize, y: &Tensor<Self>) -> Result<()>;

    // Products and norms.

    /// The rows `ids` of a weight: `[1, ids, 1, inputs]`.
    fn embedding(&self, weight: &Self::Linear, ids: &[u32]) -> Result<Tensor<Self>>;

    /// Products of the same input with several weights.
    fn linears<const N: usize>(&self, weights: [&Self::Linear; N], x: &Tensor<Self>) -> Result<[Tensor<Self>; N]>;

    /// Normalises each row, or parts of rows if the norm is narrower.
    fn norm(&self, norm: &Norm<Self>, x: &Tensor<Self>) -> Result<Tensor<Self>>;

    // Elementwise operations.

    /// `x += y`
    fn add(&self, x: &mut Tensor<Self>, y: &Tensor<Self>) -> Result<()>;

    /// `x *= y`
    fn multiply_by(&self, x: &mut Tensor<Self>, y: &Tensor<Self>) -> Result<()>;

    /// `x *= factor`
    fn multiply(&self, x: &mut Tensor<Self>, factor: f32) -> Result<()>;

    /// `x = activation(x)`, multiplied by `factors` if there are any.
    fn activate(&self, activation: Activation, x: &mut Tensor<Self>, factors: Option<&Tensor<Self>>) -> Result<()>;

    // Attention. Channels are `[heads, head_width]`.

    /// Rotates queries or keys of `heads` heads. Elements of a head without angles do not change.
    fn rope(&self, x: &mut Tensor<Self>, heads: usize, layout: RopeLayout, angles: &Angles<Self>) -> Result<()>;

    /// Attention of the pixels of `q` over those of `k` and `v`, image by image, with scores divided by the square root of
    /// the head width.
    fn attention(&self, qkv: [&Tensor<Self>; 3], heads: usize, causal: bool) -> Result<Tensor<Self>>;

    /// Attention of each text with scores that are not scaled, plus a bias: `[1, heads, 1, 2 · tokens − 1]`, by position of
    /// the key relative to the query, from `1 − tokens` on.
    fn biased_attention(&self, qkv: [&Tensor<Self>; 3], heads: usize, bias: &Tensor<Self>) -> Result<Tensor<Self>>;

    // What is composed of it.

    // Handles.

    /// A handle that loads weights, without waiting for computations.
    fn for_loading(&self) -> Self {
        self.clone()
    }

    /// The maximum bytes that the tensors of this handle took together; 0: they are not measured.
    fn peak_bytes(&self) -> usize {
        0
    }

    // Tensors.

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

    fn zeros(&self, shape: [usize; 4]) -> Result<Tensor<Self>> {
        self.upload(shape, &mut |out| {
            out.fill(0.);
            Ok(())
        })
    }

    fn copy(&self, x: &Tensor<Self>) -> Result<Tensor<Self>> {
        self.reshape(self.rows(x, 0..x.rows())?, x.shape())
    }

    /// The elements, in order, without a copy if possible. Elements after those of `x` are undefined.
    fn download(&self, x: Tensor<Self>) -> Result<Vec<f32>> {
        self.to_vec(&x)
    }

    /// Takes back the memory of [`Self::download`] for new tensors.
    fn recycle(&self, _values: Vec<f32>) {}

    // Rows.

    /// A range of rows: `[1, rows, 1, channels]`.
    fn rows(&self, x: &Tensor<Self>, rows: Range<usize>) -> Result<Tensor<Self>> {
        if rows.end > x.rows() {
            return Err(ModelError::Compute(format!("there are {} rows, not the rows {rows:?}", x.rows())));
        }
        self.gather_rows(x, &rows.collect::<Vec<_>>())
    }

    /// Adds `y` to the rows of `x` from `first` on.
    fn add_rows(&self, x: &mut Tensor<Self>, first: usize, y: &Tensor<Self>) -> Result<()> {
        let mut sum = self.rows(x, first..first.saturating_add(y.rows()))?;
        self.add(&mut sum, y)?;
        self.write_rows(x, first, &sum)
    }

    // Layout.

    /// Concatenates along channels.
    fn concat_channels(&self, x: &Tensor<Self>, y: &Tensor<Self>) -> Result<Tensor<Self>> {
        let shape = [x.images, x.size[0], x.size[1], x.channels + y.channels];
        concat(self, [x, y], [x.rows(), y.rows()], [1; 2], shape)
    }

    /// Concatenates the tokens of each text: `[texts, x + y, 1, channels]`.
    fn concat_tokens(&self, x: &Tensor<Self>, y: &Tensor<Self>) -> Result<Tensor<Self>> {
        let shape = [x.images, x.pixels() + y.pixels(), 1, x.channels];
        concat(self, [x, y], [x.images, y.images], [x.channels, y.channels], shape)
    }

    /// Splits the tokens of each text after the first `count`.
    fn split_tokens(&self, x: &Tensor<Self>, count: usize) -> Result<[Tensor<Self>; 2]> {
        let tokens = x.pixels();
        let Some(rest) = tokens.checked_sub(count) else {
            return Err(ModelError::Compute(format!("a text of {tokens} tokens cannot be split after {count}")));
        };
        let part = |range: Range<usize>| {
            let shape = [x.images, range.len(), 1, x.channels];
            let rows = (0..x.images).flat_map(|text| range.clone().map(move |token| text * tokens + token));
            self.reshape(self.gather_rows(x, &rows.collect::<Vec<_>>())?, shape)
        };
        Ok([part(0..count)?, part(count..count + rest)?])
    }

    /// `images` copies of a tensor with one image.
    fn repeat(&self, x: &Tensor<Self>, images: usize) -> Result<Tensor<Self>> {
        let rows: Vec<_> = (0..images).flat_map(|_| 0..x.rows()).collect();
        self.reshape(self.gather_rows(x, &rows)?, [images, x.size[0], x.size[1], x.channels])
    }

    /// Resizes with nearest-neighbour interpolation: output `i` of `n` is input `floor(i · old / n)`.
    fn resize(&self, x: &Tensor<Self>, [height, width]: [usize; 2]) -> Result<Tensor<Self>> {
        let [old_height, old_width] = x.size;
        let row = |image: usize, line: usize, column: usize| {
            (image * old_height + line * old_height / height) * old_width + column * old_width / width
        };
        let lines = (0..x.images).flat_map(|image| (0..height).map(move |line| (image, line)));
        let rows = lines.flat_map(|(image, line)| (0..width).map(move |column| row(image, line, column)));
        self.reshape(self.gather_rows(x, &rows.collect::<Vec<_>>())?, [x.images, height, width, x.channels])
    }

    /// Reorders the elements of each image: element `i` of the result is element `order[i]` of `x`.
    fn permute(&self, x: &Tensor<Self>, order: &[u32], size: [usize; 2], channels: usize) -> Result<Tensor<Self>> {
        let len = x.pixels() * x.channels;
        if let Some(index) = order.iter().find(|index| **index as usize >= len) {
            return Err(ModelError::Compute(format!("an image of {len} elements has no element {index}")));
        }
        let elements = self.reshape(self.copy(x)?, [1, x.len(), 1, 1])?;
        let indices = (0..x.images).flat_map(|image| order.iter().map(move |index| image * len + *index as usize));
        let permuted = self.gather_rows(&elements, &indices.collect::<Vec<_>>())?;
        self.reshape(permuted, [x.images, size[0], size[1], channels])
    }

    // Products and norms.

    /// `x += y; norm(x)`
    fn add_norm(&self, norm: &Norm<Self>, x: &mut Tensor<Self>, y: &Tensor<Self>) -> Result<Tensor<Self>> {
        self.add(x, y)?;
        self.norm(norm, x)
    }

    fn feed_forward(&self, mlp: FeedForward<'_, Self>, x: &Tensor<Self>) -> Result<Tensor<Self>> {
        let FeedForward { gate, up, down, activation } = mlp;
        let hidden = match gate {
            Some(gate) => {
                let [mut hidden, up] = self.linears([gate, up], x)?;
                self.activate(activation, &mut hidden, Some(&up))?;
                hidden
            }
            None => {
                let [mut hidden] = self.linears([up], x)?;
                self.activate(activation, &mut hidden, None)?;
                hidden
            }
        };
        let [out] = self.linears([down], &hidden)?;
        Ok(out)
    }

    // LoRA.

    /// Reads the first matrix of a [`LowRankUpdate`], `[rank, inputs]`. It is of no use for other products.
    fn read_low_rank(&self, weight: &Rows<'_>) -> Result<Self::Linear> {
        self.read_linear(weight, None, false)
    }

    /// Bytes that it takes on the device.
    fn low_rank_bytes(&self, dtype: DType, rank: usize, inputs: usize) -> usize {
        self.linear_bytes(dtype, rank, inputs)
    }

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

    // Mixtures of experts.

    /// Selects experts by the scores of a router: `[1, tokens, 1, experts]`. `bias`: one number for each expert; see
    /// [`Routing::select`].
    fn route(&self, routing: &Routing, bias: Option<&[f32]>, scores: Tensor<Self>) -> Result<RoutedTokens<Self>> {
        let mut weights = self.to_vec(&scores)?;
        let tokens = routing.select(bias, &mut weights, scores.channels);
        Ok(RoutedTokens { weights: self.tensor(&weights, scores.shape())?, tokens })
    }

    /// Adds each row of `y`, the output of expert `expert` for the tokens `tokens`, to the row of its token in `x`,
    /// multiplied by its weight: `weights` is `[1, tokens of x, 1, experts]`.
    fn add_expert(
        &self,
        x: &mut Tensor<Self>,
        y: &Tensor<Self>,
        tokens: &[usize],
        weights: &Tensor<Self>,
        expert: usize,
    ) -> Result<()> {
        let experts = weights.channels;
        if expert >= experts {
            return Err(ModelError::Compute(format!("there are {experts} experts, no expert {expert}")));
        }
        let weights = self.reshape(self.copy(weights)?, [1, weights.len(), 1, 1])?;
        let indices = tokens.iter().flat_map(|token| iter::repeat_n(token * experts + expert, y.channels));
        let factors = self.gather_rows(&weights, &indices.collect::<Vec<_>>())?;
        let mut weighted = self.reshape(factors, y.shape())?;
        self.multiply_by(&mut weighted, y)?;
        let mut rows = tokens.iter().enumerate();
        rows.try_for_each(|(row, token)| self.add_rows(x, *token, &self.rows(&weighted, row..row + 1)?))
    }

    /// Adds the outputs of experts for their tokens, which are rows of `x`, as [`Self::add_expert`] does, one expert after another.
    fn add_experts(
        &self,
        out: &mut Tensor<Self>,
        experts: &[RoutedExpert<'_, Self>],
        x: &Tensor<Self>,
        weights: &Tensor<Self>,
    ) -> Result<()> {
        experts.iter().try_for_each(|RoutedExpert { index, network, tokens }| {
            let y = self.feed_forward(*network, &self.gather_rows(x, tokens)?)?;
            self.add_expert(out, &y, tokens, weights, *index)
        })
    }

    // Elementwise operations.

    /// `x /= divisor`
    fn divide(&self, x: &mut Tensor<Self>, divisor: f32) -> Result<()> {
        self.multiply(x, divisor.recip())
    }

    /// `x = max(x, slope · x)`, for a slope of at most one.
    fn leaky_relu(&self, x: &mut Tensor<Self>, slope: f32) -> Result<()> {
        let mut positive = self.copy(x)?;
        self.activate(Activation::Relu, &mut positive, None)?;
        self.multiply(&mut positive, 1. - slope)?;
        self.multiply(x, slope)?;
        self.add(x, &positive)
    }

    // Modulation: `vectors` are `[images, 1, 1, count · channels]`, and an index selects one of the `count` vectors of
    // each image.

    /// `x = x · (1 + scale) + shift`; `[shift, scale]` are indices.
    fn modulate(&self, x: &mut Tensor<Self>, vectors: &Tensor<Self>, [shift, scale]: [usize; 2]) -> Result<()> {
        let mut scaled = vector_of_each_pixel(self, x, vectors, scale)?;
        self.multiply_by(&mut scaled, x)?;
        self.add(x, &scaled)?;
        let shift = vector_of_each_pixel(self, x, vectors, shift)?;
        self.add(x, &shift)
    }

    /// `norm(x) · (1 + scale) + shift` with a layer norm without weights; `[shift, scale]` are indices.
    fn modulated_norm(
        &self,
        epsilon: f32,
        x: &Tensor<Self>,
        vectors: &Tensor<Self>,
        indices: [usize; 2],
    ) -> Result<Tensor<Self>> {
        let weight = self.vector(vec![1.; x.channels])?;
        let mut out = self.norm(&Norm { kind: NormKind::Layer, weight, bias: None, epsilon }, x)?;
        self.modulate(&mut out, vectors, indices)?;
        Ok(out)
    }

    /// `x += gate · y`; `gate` is an index.
    fn add_gated(&self, x: &mut Tensor<Self>, y: &Tensor<Self>, vectors: &Tensor<Self>, gate: usize) -> Result<()> {
        let mut gated = vector_of_each_pixel(self, y, vectors, gate)?;
        self.multiply_by(&mut gated, y)?;
        self.add(x, &gated)
    }
}

/// The vector at `index` of the image of each pixel of `x`, in the shape of `x`.
fn vector_of_each_pixel<B: Backend>(
    backend: &B,
    x: &Tensor<B>,
    vectors: &Tensor<B>,
    index: usize,
) -> Result<Tensor<B>> {
    let count = vectors.channels / x.channels.max(1);
    if index >= count || vectors.rows() != x.images {
        let (shape, images) = (vectors.shape(), x.images);
        return Err(ModelError::Compute(format!(
            "modulation vectors of {shape:?} have no vector {index} of {images} images"
        )));
    }
    let vectors = backend.reshape(backend.copy(vectors)?, [1, x.images * count, 1, x.channels])?;
    let rows: Vec<_> = (0..x.rows()).map(|row| row / x.pixels() * count + index).collect();
    backend.reshape(backend.gather_rows(&vectors, &rows)?, x.shape())
}

/// Concatenates the parts of `x` with those of `y`. Each tensor has `parts` parts of equal size, which are whole runs of `widths`
/// elements.
fn concat<B: Backend>(
    backend: &B,
    tensors: [&Tensor<B>; 2],
    [parts, other_parts]: [usize; 2],
    [width, other_width]: [usize; 2],
    shape: [usize; 4],
) -> Result<Tensor<B>> {
    if (parts, width) != (other_parts, other_width) {
        let [x, y] = tensors.map(Tensor::shape);
        return Err(ModelError::Compute(format!("tensors of {x:?} and {y:?} cannot be concatenated")));
    }
    let [runs, more] = tensors.map(|tensor| tensor.len() / width.max(1));
    let mut both = backend.zeros([1, runs + more, 1, width])?;
    for (tensor, first, count) in [(tensors[0], 0, runs), (tensors[1], runs, more)] {
        backend.write_rows(&mut both, first, &backend.reshape(backend.copy(tensor)?, [1, count, 1, width])?)?;
    }
    let part = |index: usize, runs: usize| index * runs / parts..(index + 1) * runs / parts;
    let of_both = |index| part(index, runs).chain(part(index, more).map(move |run| runs + run));
    let order: Vec<_> = (0..parts).flat_map(of_both).collect();
    backend.reshape(backend.gather_rows(&both, &order)?, shape)
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
