//! Per-layer embeddings, as in Gemma 4: a second embedding of each token, of which each layer gets a part. A layer multiplies it with a gate and
//! adds its projection to the residual stream. The reference is transformers (`modeling_gemma4.py`).
//!
//! The table is larger than all other weights of a small model, and a step needs only the rows of its tokens. It stays in the file of the
//! checkpoint, from which these rows are read; the system keeps in memory what is read often.

use std::f32::consts::FRAC_1_SQRT_2;

use crate::backend::{Activation, Backend, EmbeddingTable, Norm, Tensor};
use crate::decoder_config::{DecoderConfig, PerLayerConfig};
use crate::error::Result;
use crate::nn::{Context, Linear};
use crate::weights::{Candidate, Loader};

/// What all layers share.
#[derive(Debug)]
pub(super) struct PerLayerEmbeddings<B: Backend> {
    /// `[vocabulary, layers · width]`
    token_embd: EmbeddingTable,
    /// Projects the first embedding of a token to the size of the second, to which it is added.
    model_proj: Linear<B>,
    /// The norm of these projections, layer by layer. Its weights are divided by the square root of two.
    proj_norm: Norm<B>,
    /// The factor of the projections.
    projection_scale: f32,
    /// The factor of the second embeddings.
    embedding_scale: f32,
    layers: usize,
    width: usize,
}

/// The parts of tokens' embeddings for all layers.
#[derive(Debug)]
pub(super) struct PerLayerInputs<B: Backend> {
    /// `[1, layers · tokens, 1, width]`: those of all tokens for the first layer, then for the next.
    data: Tensor<B>,
    tokens: usize,
}

/// What a layer does with its part.
#[derive(Debug)]
pub(super) struct PerLayerGate<B: Backend> {
    inp_gate: Linear<B>,
    proj: Linear<B>,
    post_norm: Norm<B>,
    activation: Activation,
}

impl<B: Backend> PerLayerEmbeddings<B> {
    pub fn load(loader: &Loader<'_, B>, config: &DecoderConfig, plan: &PerLayerConfig) -> Result<Self> {
        let DecoderConfig { width: model_width, vocabulary, norm, .. } = *config;
        let (layers, width) = (config.layers.len(), plan.width);
        let total = layers * width;
        let model_proj = loader.optional_matrix("per_layer_model_proj", total, model_width)?;
        Ok(Self {
            token_embd: loader.table_in_file("per_layer_token_embd", vocabulary, total)?,
            model_proj: model_proj.ok_or_else(|| loader.missing("per_layer_model_proj"))?,
            proj_norm: Norm::load_scaled(loader, "per_layer_proj_norm", width, norm, FRAC_1_SQRT_2)?,
            projection_scale: (model_width as f32).sqrt().recip(),
            embedding_scale: (width as f32 / 2.).sqrt(),
            layers,
            width,
        })
    }

    /// The inputs of the layers, from tokens and their first embeddings, `[1, tokens, 1, width of the model]`.
    pub fn forward(&self, ctx: &Context<'_, B>, tokens: &[u32], x: &Tensor<B>) -> Result<PerLayerInputs<B>> {
        let Self { layers, width, .. } = *self;
        let count = tokens.len();
        let mut projections = self.model_proj.forward(ctx, x)?;
        ctx.multiply(&mut projections, self.projection_scale)?;
        let projections = ctx.reshape(projections, [1, count * layers, 1, width])?;
        let mut data = ctx.norm(&self.proj_norm, &projections)?;
        drop(projections);
        let embedded = ctx.upload([1, count * layers, 1, width], &mut |out| {
            self.token_embd.look_up(tokens.iter().copied(), false, out)?;
            out.iter_mut().for_each(|value| *value *= self.embedding_scale);
            Ok(())
        })?;
        ctx.add(&mut data, &embedded)?;
        if count > 1 {
            let order: Vec<usize> =
                (0..layers).flat_map(|layer| (0..count).map(move |token| token * layers + layer)).collect();
            data = ctx.gather_rows(&data, &order)?;
        }
        Ok(PerLayerInputs { data, tokens: count })
    }
}

impl<B: Backend> PerLayerInputs<B> {
    /// The part of a layer: `[1, tokens, 1, width]`.
    pub fn of_layer(&self, ctx: &Context<'_, B>, layer: usize) -> Result<Tensor<B>> {
        ctx.rows(&self.data, layer * self.tokens..(layer + 1) * self.tokens)
    }

    /// Those of some tokens.
    pub fn for_tokens(&self, ctx: &Context<'_, B>, selected: &[usize]) -> Result<Self> {
        let layers = self.data.rows() / self.tokens.max(1);
        let rows = (0..layers).flat_map(|layer| selected.iter().map(move |token| layer * self.tokens + token));
        Ok(Self { data: ctx.gather_rows(&self.data, &rows.collect::<Vec<_>>())?, tokens: selected.len() })
    }
}

impl<B: Backend> PerLayerGate<B> {
    pub fn load(loader: &Loader<'_, B>, config: &DecoderConfig, index: usize, plan: &PerLayerConfig) -> Result<Self> {
        let (model_width, width) = (config.width, plan.width);
        let stem = |suffix: &str| format!("blk.{index}.{suffix}");
        Ok(Self {
            inp_gate: loader.linear(&[Candidate::whole(stem("inp_gate"), width)], width, model_width, false)?,
            proj: loader.linear(&[Candidate::whole(stem("proj"), model_width)], model_width, width, false)?,
            post_norm: Norm::load(loader, &stem("post_norm"), model_width, config.norm)?,
            activation: plan.activation,
        })
    }

    /// What is added to the residual stream `x`. `input`: the layer's part of the embeddings.
    pub fn forward(&self, ctx: &Context<'_, B>, x: &Tensor<B>, input: &Tensor<B>) -> Result<Tensor<B>> {
        let mut gated = self.inp_gate.forward(ctx, x)?;
        ctx.activate(self.activation, &mut gated, Some(input))?;
        ctx.norm(&self.post_norm, &self.proj.forward(ctx, &gated)?)
    }
}
