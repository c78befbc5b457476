//! The encoder of phonemes from which prosody is predicted: PL-BERT (Li et al. 2023, <https://arxiv.org/abs/2301.08810>), an
//! ALBERT whose only layer is applied several times.

use super::config::{AlbertConfig, KokoroConfig};
use crate::backend::{Activation, Backend, Norm, Tensor};
use crate::error::Result;
use crate::nn::{Context, EmbeddingTable, Linear, Mlp};
use crate::weights::{Candidate, Loader};

const LAYER: &str = "bert.encoder.albert_layer_groups.0.albert_layers.0";

#[derive(Debug)]
pub(super) struct Albert<B: Backend> {
    config: AlbertConfig,
    word_embd: EmbeddingTable,
    position_embd: EmbeddingTable,
    /// The type of all tokens is the first one.
    token_types: EmbeddingTable,
    embd_norm: Norm<B>,
    embd_projection: Linear<B>,
    query: Linear<B>,
    key: Linear<B>,
    value: Linear<B>,
    attention_output: Linear<B>,
    attention_norm: Norm<B>,
    mlp: Mlp<B>,
    output_norm: Norm<B>,
    /// From the width of ALBERT to that of text encodings.
    projection: Linear<B>,
}

impl<B: Backend> Albert<B> {
    pub fn load(loader: &Loader<'_, B>, config: &KokoroConfig) -> Result<Self> {
        let AlbertConfig { embedding, width, inner, context, epsilon, .. } = config.albert;
        let linear = |stem: &str, [inputs, outputs]: [usize; 2]| {
            loader.linear(&[Candidate::whole(stem.to_owned(), outputs)], outputs, inputs, true)
        };
        let layer = |name: &str, sizes: [usize; 2]| linear(&format!("{LAYER}.{name}"), sizes);
        let norm = |name: &str| Norm::load_layer_norm(loader, &format!("{LAYER}.{name}"), width, epsilon);
        Ok(Self {
            config: config.albert,
            word_embd: loader.table("bert.embeddings.word_embeddings", config.vocabulary, embedding)?,
            position_embd: loader.table("bert.embeddings.position_embeddings", context, embedding)?,
            token_types: loader.table("bert.embeddings.token_type_embeddings", 2, embedding)?,
            embd_norm: Norm::load_layer_norm(loader, "bert.embeddings.LayerNorm", embedding, epsilon)?,
            embd_projection: linear("bert.encoder.embedding_hidden_mapping_in", [embedding, width])?,
            query: layer("attention.query", [width; 2])?,
            key: layer("attention.key", [width; 2])?,
            value: layer("attention.value", [width; 2])?,
            attention_output: layer("attention.dense", [width; 2])?,
            attention_norm: norm("attention.LayerNorm")?,
            mlp: Mlp {
                gate: None,
                up: layer("ffn", [width, inner])?,
                down: layer("ffn_output", [inner, width])?,
                activation: Activation::GeluTanh,
            },
            output_norm: norm("full_layer_layer_norm")?,
            projection: linear("bert_encoder", [width, config.hidden])?,
        })
    }

    /// The encodings of tokens: `[1, tokens, 1, hidden]`.
    pub fn forward(&self, ctx: &Context<'_, B>, tokens: &[u32]) -> Result<Tensor<B>> {
        let count = tokens.len();
        let sum = ctx.upload([1, count, 1, self.config.embedding], &mut |x| {
            self.word_embd.look_up(tokens.iter().copied(), false, x)?;
            self.position_embd.look_up((0u32..).take(count), true, x)?;
            self.token_types.look_up(std::iter::repeat_n(0, count), true, x)
        })?;
        let mut x = self.embd_projection.forward(ctx, &ctx.norm(&self.embd_norm, &sum)?)?;
        for _ in 0..self.config.passes {
            let [q, k, v] = Linear::forward_all(ctx, [&self.query, &self.key, &self.value], &x)?;
            let attention = ctx.attention([&q, &k, &v], self.config.heads, false)?;
            let output = self.attention_output.forward(ctx, &attention)?;
            let mut hidden = ctx.add_norm(&self.attention_norm, &mut x, &output)?;
            let output = self.mlp.forward(ctx, &hidden)?;
            x = ctx.add_norm(&self.output_norm, &mut hidden, &output)?;
        }
        self.projection.forward(ctx, &x)
    }
}
