//! A device of candle as a backend.

use std::ops::Range;

use candle_core::{DType as ArrayType, Tensor as Array};

use super::device::{self, Candle};
use super::thread_binding::ThreadBinding;
use super::weights::{self, CandleLinear};
use super::{attention, conv1d, elementwise, experts, layout, norms, products, rope};
use crate::backend::checks;
use crate::backend::interface::{
    Angles, Backend, FeedForward, LowRankUpdate, Norm, RequestOptions, RoutedTokens, Tensor,
};
use crate::backend::routing::Routing;
use crate::backend::types::{Activation, DType, Pool, RopeLayout};
use crate::error::Result;
use crate::weights::Rows;

impl Backend for Candle {
    type Data = Array;
    type Vector = Array;
    type Linear = CandleLinear;
    type ThreadBinding = ThreadBinding;

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

    fn read_linear(&self, weight: &Rows<'_>, bias: Option<&[f32]>, embedding: bool) -> Result<CandleLinear> {
        weights::read_linear(self.device(), weight, bias, embedding)
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

    fn upload(&self, shape: [usize; 4], fill: &mut dyn FnMut(&mut [f32]) -> Result<()>) -> Result<Tensor<Self>> {
        let len = shape.iter().product();
        let mut values = vec![0.; len];
        fill(&mut values)?;
        device::tensor(shape, &Array::from_vec(values, len, self.device())?)
    }

    fn zeros(&self, shape: [usize; 4]) -> Result<Tensor<Self>> {
        device::tensor(shape, &Array::zeros(shape.iter().product::<usize>(), ArrayType::F32, self.device())?)
    }

    fn to_vec(&self, x: &Tensor<Self>) -> Result<Vec<f32>> {
        layout::to_vec(x)
    }

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

    fn route(&self, routing: &Routing, bias: Option<&[f32]>, scores: Tensor<Self>) -> Result<RoutedTokens<Self>> {
        experts::route(self, routing, bias, &scores)
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

    fn norm(&self, norm: &Norm<Self>, x: &Tensor<Self>) -> Result<Tensor<Self>> {
        norms::norm(self, norm, x)
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

    fn multiply_by(&self, x: &mut Tensor<Self>, y: &Tensor<Self>) -> Result<()> {
        elementwise::multiply_by(self, x, y)
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
}
