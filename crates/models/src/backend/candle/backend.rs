//! A device of candle as a backend.

use std::ops::Range;

use candle_core::{DType as ArrayType, Tensor as Array};

use super::device::{self, Candle};
use super::kv_arena::CandleKvArena;
use super::kv_batch::CandleBatch;
use super::thread_binding::ThreadBinding;
use super::weights::{self, CandleConv, CandleConv1d, CandleLinear};
use super::{attention, attention_weights, conv1d, convolution, elementwise, experts, layout, norms, products, rope};
use crate::backend::checks;
use crate::backend::interface::{
    AdaIn, Angles, Backend, FeedForward, GroupNorm, LowRankUpdate, Norm, RequestOptions, RoutedTokens, Tensor,
};
use crate::backend::routing::Routing;
use crate::backend::types::{Activation, AttentionShape, Conv1dShape, ConvShape, DType, Pool, RopeLayout};
use crate::error::{ModelError, Result};
use crate::kv::{KvShape, SequenceSlice};
use crate::weights::Rows;

impl Backend for Candle {
    type Data = Array;
    type Vector = Array;
    type Linear = CandleLinear;
    type Conv = CandleConv;
    type Conv1d = CandleConv1d;
    type KvArena = CandleKvArena;
    type Batch = CandleBatch;
    type ThreadBinding = ThreadBinding;

    const LORA_ROWS: usize = usize::MAX;
    const RELEASES_KV_BLOCKS: bool = false;

    fn for_loading(&self) -> Self {
        self.clone()
    }

    fn for_request(&self, options: RequestOptions) -> Self {
        self.with_request(options)
    }

    fn thread_binding(&self) -> ThreadBinding {
        ThreadBinding::new(self.device())
    }

    fn pause(&self) -> Result<()> {
        self.request().map_or(Ok(()), |request| (request.pause)())
    }

    fn pool(&self) -> &Pool {
        self.host().pool()
    }

    /// Not measured.
    fn peak_bytes(&self) -> usize {
        0
    }

    fn read_linear(&self, weight: &Rows<'_>, bias: Option<&[f32]>, embedding: bool) -> Result<CandleLinear> {
        weights::read_linear(self.device(), weight, bias, embedding)
    }

    fn read_conv(&self, weight: &Rows<'_>, shape: ConvShape, bias: Option<&[f32]>) -> Result<CandleConv> {
        weights::read_conv(self.device(), weight, shape, bias)
    }

    fn read_conv1d(&self, weight: &Rows<'_>, shape: Conv1dShape, bias: Option<&[f32]>) -> Result<CandleConv1d> {
        weights::read_conv1d(self.device(), weight, shape, bias)
    }

    fn vector(&self, values: Vec<f32>) -> Result<Array> {
        let count = values.len();
        Ok(Array::from_vec(values, count, self.device())?)
    }

    fn linear_bytes(&self, dtype: DType, rows: usize, columns: usize) -> usize {
        weights::linear_bytes(self.device(), dtype, rows, columns)
    }

    fn loading_bytes(&self, dtype: DType, rows: usize, columns: usize) -> usize {
        weights::loading_bytes(self.device(), dtype, rows, columns)
    }

    fn conv_bytes(&self, dtype: DType, shape: &ConvShape) -> usize {
        weights::conv_bytes(self.device(), dtype, shape)
    }

    fn conv1d_bytes(&self, dtype: DType, shape: &Conv1dShape) -> usize {
        weights::conv1d_bytes(self.device(), dtype, shape)
    }

    fn upload(&self, shape: [usize; 4], fill: &mut dyn FnMut(&mut [f32]) -> Result<()>) -> Result<Tensor<Self>> {
        let len = shape.iter().product();
        let mut values = vec![0.; len];
        fill(&mut values)?;
        device::tensor(shape, &Array::from_vec(values, len, self.device())?)
    }

    fn zeros(&self, shape: [usize; 4]) -> Result<Tensor<Self>> {
        device::tensor(shape, &Array::zeros(shape.iter().product::<usize>(), ArrayType::F32, self.device())?)
    }

    fn copy(&self, x: &Tensor<Self>) -> Result<Tensor<Self>> {
        layout::copy(x)
    }

    fn to_vec(&self, x: &Tensor<Self>) -> Result<Vec<f32>> {
        layout::to_vec(x)
    }

    fn download(&self, x: Tensor<Self>) -> Result<Vec<f32>> {
        layout::to_vec(&x)
    }

    fn recycle(&self, _: Vec<f32>) {}

    fn rows(&self, x: &Tensor<Self>, rows: Range<usize>) -> Result<Tensor<Self>> {
        layout::rows(x, rows)
    }

    fn gather_rows(&self, x: &Tensor<Self>, rows: &[usize]) -> Result<Tensor<Self>> {
        layout::gather_rows(self, x, rows)
    }

    fn write_rows(&self, x: &mut Tensor<Self>, first: usize, y: &Tensor<Self>) -> Result<()> {
        layout::write_rows(x, first, y)
    }

    fn add_rows(&self, x: &mut Tensor<Self>, first: usize, y: &Tensor<Self>) -> Result<()> {
        layout::add_rows(self, x, first, y)
    }

    fn route(&self, routing: Routing, scores: Tensor<Self>) -> Result<RoutedTokens<Self>> {
        experts::route(self, routing, &scores)
    }

    fn add_expert(
        &self,
        x: &mut Tensor<Self>,
        y: &Tensor<Self>,
        tokens: &[usize],
        weights: &Tensor<Self>,
        expert: usize,
    ) -> Result<()> {
        experts::add(self, x, y, tokens, (weights, expert))
    }

    fn embedding(&self, weight: &CandleLinear, ids: &[u32]) -> Result<Tensor<Self>> {
        products::embedding(self, weight, ids)
    }

    fn linears<const N: usize>(&self, weights: [&CandleLinear; N], x: &Tensor<Self>) -> Result<[Tensor<Self>; N]> {
        products::linears(self, weights, x)
    }

    fn add_low_rank(
        &self,
        updates: &[LowRankUpdate<'_, Self>],
        x: &Tensor<Self>,
        outs: &mut [Tensor<Self>],
    ) -> Result<()> {
        products::add_low_rank(self, updates, x, outs)
    }

    fn adapted_linears<const N: usize>(
        &self,
        weights: [&CandleLinear; N],
        updates: &[LowRankUpdate<'_, Self>],
        x: &Tensor<Self>,
    ) -> Result<[Tensor<Self>; N]> {
        products::adapted_linears(self, weights, updates, x)
    }

    fn feed_forward(&self, mlp: FeedForward<'_, Self>, x: &Tensor<Self>) -> Result<Tensor<Self>> {
        products::feed_forward(self, &mlp, x)
    }

    fn conv(&self, conv: &CandleConv, x: &Tensor<Self>) -> Result<Tensor<Self>> {
        convolution::forward(self, conv, x)
    }

    fn conv1d(&self, conv: &CandleConv1d, x: &Tensor<Self>) -> Result<Tensor<Self>> {
        conv1d::forward(self, conv, x)
    }

    fn norm(&self, norm: &Norm<Self>, x: &Tensor<Self>) -> Result<Tensor<Self>> {
        norms::norm(self, norm, x)
    }

    fn add_norm(&self, norm: &Norm<Self>, x: &mut Tensor<Self>, y: &Tensor<Self>) -> Result<Tensor<Self>> {
        norms::add_norm(self, norm, x, y)
    }

    fn group_norm(
        &self,
        norm: &GroupNorm<Self>,
        x: &Tensor<Self>,
        shift: Option<&Tensor<Self>>,
        silu: bool,
    ) -> Result<Tensor<Self>> {
        norms::group_norm(self, norm, x, shift, silu)
    }

    fn adain(&self, norm: &AdaIn<'_, Self>, x: &Tensor<Self>) -> Result<Tensor<Self>> {
        conv1d::adain(self, norm, x)
    }

    fn modulate(&self, x: &mut Tensor<Self>, vectors: &Tensor<Self>, indices: [usize; 2]) -> Result<()> {
        elementwise::modulate(self, x, vectors, indices)
    }

    fn modulated_norm(
        &self,
        epsilon: f32,
        x: &Tensor<Self>,
        vectors: &Tensor<Self>,
        indices: [usize; 2],
    ) -> Result<Tensor<Self>> {
        elementwise::modulated_norm(self, epsilon, x, vectors, indices)
    }

    fn add_gated(&self, x: &mut Tensor<Self>, y: &Tensor<Self>, vectors: &Tensor<Self>, gate: usize) -> Result<()> {
        elementwise::add_gated(self, x, y, vectors, gate)
    }

    fn add(&self, x: &mut Tensor<Self>, y: &Tensor<Self>) -> Result<()> {
        elementwise::add(self, x, y)
    }

    fn multiply(&self, x: &mut Tensor<Self>, factor: f32) -> Result<()> {
        elementwise::multiply(self, x, factor)
    }

    fn divide(&self, x: &mut Tensor<Self>, divisor: f32) -> Result<()> {
        elementwise::divide(self, x, divisor)
    }

    fn activate(&self, activation: Activation, x: &mut Tensor<Self>, factors: Option<&Tensor<Self>>) -> Result<()> {
        elementwise::activate(self, activation, x, factors)
    }

    fn leaky_relu(&self, x: &mut Tensor<Self>, slope: f32) -> Result<()> {
        x.data = conv1d::leaky_relu(&x.data, slope)?;
        self.pause()
    }

    fn reshape(&self, x: Tensor<Self>, shape: [usize; 4]) -> Result<Tensor<Self>> {
        checks::reshape(&x, shape)?;
        device::tensor(shape, &x.data)
    }

    fn concat_channels(&self, x: &Tensor<Self>, y: &Tensor<Self>) -> Result<Tensor<Self>> {
        layout::concat_channels(self, x, y)
    }

    fn concat_tokens(&self, x: &Tensor<Self>, y: &Tensor<Self>) -> Result<Tensor<Self>> {
        layout::concat_tokens(self, x, y)
    }

    fn split_tokens(&self, x: &Tensor<Self>, count: usize) -> Result<[Tensor<Self>; 2]> {
        layout::split_tokens(self, x, count)
    }

    fn repeat(&self, x: &Tensor<Self>, images: usize) -> Result<Tensor<Self>> {
        layout::repeat(self, x, images)
    }

    fn resize(&self, x: &Tensor<Self>, size: [usize; 2]) -> Result<Tensor<Self>> {
        layout::resize(self, x, size)
    }

    fn permute(&self, x: &Tensor<Self>, order: &[u32], size: [usize; 2], channels: usize) -> Result<Tensor<Self>> {
        layout::permute(self, x, order, size, channels)
    }

    fn rope(&self, x: &mut Tensor<Self>, heads: usize, layout: RopeLayout, angles: &Angles<Self>) -> Result<()> {
        rope::rope(self, x, heads, layout, angles)
    }

    fn attention(&self, qkv: [&Tensor<Self>; 3], heads: usize, causal: bool) -> Result<Tensor<Self>> {
        attention::attention(self, qkv, heads, causal)
    }

    fn biased_attention(&self, qkv: [&Tensor<Self>; 3], heads: usize, bias: &Tensor<Self>) -> Result<Tensor<Self>> {
        attention::biased_attention(self, qkv, heads, bias)
    }

    fn new_kv_arena(&self, shape: KvShape) -> CandleKvArena {
        CandleKvArena::new(self.device(), shape)
    }

    fn batch(&self, sequences: Vec<SequenceSlice>) -> Result<CandleBatch> {
        CandleBatch::new(sequences)
    }

    fn write_kv(
        &self,
        arena: &mut CandleKvArena,
        layer: usize,
        batch: &CandleBatch,
        [k, v]: [&Tensor<Self>; 2],
    ) -> Result<()> {
        let row_len = arena.row_len();
        for x in [k, v] {
            if x.channels != row_len || x.rows() != batch.tokens() {
                return Err(ModelError::Compute(format!(
                    "keys of {:?} do not fit {} tokens of {row_len} elements",
                    x.shape(),
                    batch.tokens()
                )));
            }
        }
        arena.check(batch.writes().blocks())?;
        let writes = batch.device_writes(self, row_len)?;
        arena.write(layer, &writes, &k.data, &v.data)
    }

    fn kv_attention(
        &self,
        arena: &CandleKvArena,
        layer: usize,
        batch: &CandleBatch,
        shape: &AttentionShape,
        q: &Tensor<Self>,
    ) -> Result<Tensor<Self>> {
        attention::over_kv_arena(self, (arena, layer), batch, shape, q)
    }

    fn kv_attention_weights(
        &self,
        arena: &CandleKvArena,
        layer: usize,
        batch: &CandleBatch,
        shape: &AttentionShape,
        q: &Tensor<Self>,
        heads: &[usize],
    ) -> Result<Vec<f32>> {
        attention_weights::over_kv_arena(self, (arena, layer), batch, shape, q, heads)
    }

    fn kv_attention_bytes(&self, shape: &AttentionShape, tokens: usize, positions: usize) -> usize {
        attention::bytes(self.max_elements(), shape, tokens, positions)
    }
}
