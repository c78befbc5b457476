//! The CPU as a backend.

use std::ops::Range;
use std::sync::Arc;

use half::bf16;
use outpost_kernels as kernels;

use super::attention;
use super::buffers::{Buffer, BufferPool};
use super::device::Cpu;
use super::{elementwise, experts, layout, modulation, norms, products};
use crate::backend::checks;
use crate::backend::interface::{
    Angles, Backend, FeedForward, LowRankUpdate, Matrix, Norm, RequestOptions, RoutedExpert, RoutedTokens, Tensor,
};
use crate::backend::routing::Routing;
use crate::backend::types::{Activation, DType, Pool, RopeLayout};
use crate::error::Result;
use crate::weights::Rows;

impl Matrix for kernels::Linear {
    fn rows(&self) -> usize {
        self.n()
    }

    fn columns(&self) -> usize {
        self.k()
    }
}

impl Backend for Cpu {
    type Data = Buffer;
    type Vector = Vec<f32>;
    type Linear = kernels::Linear;
    type ThreadBinding = ();

    const LORA_ROWS: usize = 1024;

    fn thread_binding(&self) {}

    /// Has threads of its own.
    fn for_loading(&self) -> Self {
        Self::new(self.pool.threads())
    }

    fn for_request(&self, options: RequestOptions) -> Self {
        Self {
            pool: Arc::clone(&self.pool),
            buffers: BufferPool::default(),
            kv_bf16: Arc::default(),
            request: Some(options),
        }
    }

    fn pause(&self) -> Result<()> {
        self.request.as_ref().map_or(Ok(()), |request| (request.pause)())
    }

    fn pool(&self) -> &Pool {
        &self.pool
    }

    fn peak_bytes(&self) -> usize {
        let kv = self.kv_bf16.lock().map_or(0, |kv| kv.len());
        size_of::<f32>() * self.buffers.peak() + size_of::<bf16>() * kv
    }

    fn read_linear(&self, weight: &Rows<'_>, bias: Option<&[f32]>, _: bool) -> Result<kernels::Linear> {
        products::read(&self.pool, weight, bias)
    }

    fn vector(&self, values: Vec<f32>) -> Result<Vec<f32>> {
        Ok(values)
    }

    fn linear_bytes(&self, dtype: DType, rows: usize, columns: usize) -> usize {
        kernels::Linear::packed_bytes(dtype, rows, columns)
    }

    fn read_low_rank(&self, weight: &Rows<'_>) -> Result<kernels::Linear> {
        products::read_low_rank(&self.pool, weight)
    }

    fn low_rank_bytes(&self, dtype: DType, rank: usize, inputs: usize) -> usize {
        kernels::Linear::packed_low_rank_bytes(dtype, rank, inputs)
    }

    fn loading_bytes(&self, dtype: DType, rows: usize, columns: usize) -> usize {
        kernels::Linear::packing_bytes(self.pool.threads(), dtype, rows, columns)
    }

    fn upload(&self, shape: [usize; 4], fill: &mut dyn FnMut(&mut [f32]) -> Result<()>) -> Result<Tensor<Self>> {
        let mut x = self.alloc(shape);
        fill(x.data_mut())?;
        Ok(x)
    }

    fn to_vec(&self, x: &Tensor<Self>) -> Result<Vec<f32>> {
        Ok(x.data().to_vec())
    }

    fn download(&self, x: Tensor<Self>) -> Result<Vec<f32>> {
        Ok(x.data.into_vec())
    }

    fn recycle(&self, values: Vec<f32>) {
        self.buffers.recycle(values);
    }

    fn rows(&self, x: &Tensor<Self>, rows: Range<usize>) -> Result<Tensor<Self>> {
        layout::rows(self, x, rows)
    }

    fn gather_rows(&self, x: &Tensor<Self>, rows: &[usize]) -> Result<Tensor<Self>> {
        layout::gather_rows(self, x, rows)
    }

    fn write_rows(&self, x: &mut Tensor<Self>, first: usize, y: &Tensor<Self>) -> Result<()> {
        layout::rows_mut(x, first, y)?.copy_from_slice(y.data());
        Ok(())
    }

    fn add_rows(&self, x: &mut Tensor<Self>, first: usize, y: &Tensor<Self>) -> Result<()> {
        kernels::add(&self.pool, layout::rows_mut(x, first, y)?, y.data());
        self.pause()
    }

    fn route(&self, routing: &Routing, bias: Option<&[f32]>, mut scores: Tensor<Self>) -> Result<RoutedTokens<Self>> {
        let experts = scores.channels;
        let tokens = routing.select(bias, scores.data_mut(), experts);
        Ok(RoutedTokens { weights: scores, tokens })
    }

    fn add_expert(
        &self,
        x: &mut Tensor<Self>,
        y: &Tensor<Self>,
        tokens: &[usize],
        weights: &Tensor<Self>,
        expert: usize,
    ) -> Result<()> {
        experts::add_one(self, x, y, tokens, weights, expert)
    }

    fn add_experts(
        &self,
        out: &mut Tensor<Self>,
        experts: &[RoutedExpert<'_, Self>],
        x: &Tensor<Self>,
        weights: &Tensor<Self>,
    ) -> Result<()> {
        experts::add_all(self, out, experts, x, weights)
    }

    fn embedding(&self, weight: &kernels::Linear, ids: &[u32]) -> Result<Tensor<Self>> {
        products::embedding(self, weight, ids)
    }

    fn linears<const N: usize>(&self, weights: [&kernels::Linear; N], x: &Tensor<Self>) -> Result<[Tensor<Self>; N]> {
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

    fn feed_forward(&self, mlp: FeedForward<'_, Self>, x: &Tensor<Self>) -> Result<Tensor<Self>> {
        products::feed_forward(self, mlp, x)
    }

    fn norm(&self, norm: &Norm<Self>, x: &Tensor<Self>) -> Result<Tensor<Self>> {
        norms::forward(self, norm, x)
    }

    fn add_norm(&self, norm: &Norm<Self>, x: &mut Tensor<Self>, y: &Tensor<Self>) -> Result<Tensor<Self>> {
        norms::add_forward(self, norm, x, y)
    }

    fn modulate(&self, x: &mut Tensor<Self>, vectors: &Tensor<Self>, indices: [usize; 2]) -> Result<()> {
        modulation::modulate(self, x, vectors, indices)
    }

    fn modulated_norm(
        &self,
        epsilon: f32,
        x: &Tensor<Self>,
        vectors: &Tensor<Self>,
        indices: [usize; 2],
    ) -> Result<Tensor<Self>> {
        modulation::norm(self, epsilon, x, vectors, indices)
    }

    fn add_gated(&self, x: &mut Tensor<Self>, y: &Tensor<Self>, vectors: &Tensor<Self>, gate: usize) -> Result<()> {
        modulation::add_gated(self, x, y, vectors, gate)
    }

    fn add(&self, x: &mut Tensor<Self>, y: &Tensor<Self>) -> Result<()> {
        elementwise::add(self, x, y)
    }

    fn multiply_by(&self, x: &mut Tensor<Self>, y: &Tensor<Self>) -> Result<()> {
        elementwise::multiply_by(self, x, y)
    }

    fn multiply(&self, x: &mut Tensor<Self>, factor: f32) -> Result<()> {
        x.data_mut().iter_mut().for_each(|x| *x *= factor);
        self.pause()
    }

    fn divide(&self, x: &mut Tensor<Self>, divisor: f32) -> Result<()> {
        x.data_mut().iter_mut().for_each(|x| *x /= divisor);
        self.pause()
    }

    fn activate(&self, activation: Activation, x: &mut Tensor<Self>, factors: Option<&Tensor<Self>>) -> Result<()> {
        elementwise::activate(self, activation, x, factors)
    }

    fn leaky_relu(&self, x: &mut Tensor<Self>, slope: f32) -> Result<()> {
        kernels::leaky_relu(&self.pool, slope, x.data_mut());
        self.pause()
    }

    fn reshape(&self, x: Tensor<Self>, shape: [usize; 4]) -> Result<Tensor<Self>> {
        checks::reshape(&x, shape)?;
        let [images, height, width, channels] = shape;
        Ok(Tensor { images, size: [height, width], channels, data: x.data })
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
        let mut out = self.alloc([x.images, size[0], size[1], x.channels]);
        kernels::resize_nearest(&self.pool, x.data(), x.size, size, x.channels, out.data_mut());
        self.pause()?;
        Ok(out)
    }

    fn permute(&self, x: &Tensor<Self>, order: &[u32], size: [usize; 2], channels: usize) -> Result<Tensor<Self>> {
        layout::permute(self, x, order, size, channels)
    }

    fn rope(&self, x: &mut Tensor<Self>, heads: usize, layout: RopeLayout, angles: &Angles<Self>) -> Result<()> {
        let head_width = checks::rope(x, heads, angles)?;
        kernels::rope(&self.pool, x.data_mut(), heads, head_width, layout, angles.cos.data(), angles.sin.data());
        self.pause()
    }

    fn attention(&self, qkv: [&Tensor<Self>; 3], heads: usize, causal: bool) -> Result<Tensor<Self>> {
        attention::attention(self, qkv, heads, causal)
    }

    fn biased_attention(&self, qkv: [&Tensor<Self>; 3], heads: usize, bias: &Tensor<Self>) -> Result<Tensor<Self>> {
        attention::biased_attention(self, qkv, heads, bias)
    }
}
