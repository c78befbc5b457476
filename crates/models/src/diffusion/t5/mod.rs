//! The encoder of T5 (Raffel et al. 2020, <https://arxiv.org/abs/1910.10683>), following transformers'
//! `T5EncoderModel`.
//!
//! Attention scores and embeddings are not scaled. A bias on the scores encodes relative positions. Padding is not
//! masked, as in the training of the diffusion models.

mod config;

pub use config::T5Config;

use super::layers::linear;
use crate::backend::{Backend, Norm, Tensor};
use crate::error::ModelError;
use crate::error::Result;
use crate::nn::{Context, EmbeddingTable, Linear, Mlp, RelativeBias};
use crate::weights::Loader;

#[derive(Debug)]
pub struct T5<B: Backend> {
    config: T5Config,
    token_embedding: EmbeddingTable,
    relative_bias: RelativeBias,
    layers: Vec<Layer<B>>,
    final_norm: Norm<B>,
}

#[derive(Debug)]
struct Layer<B: Backend> {
    norms: [Norm<B>; 2],
    q: Linear<B>,
    k: Linear<B>,
    v: Linear<B>,
    o: Linear<B>,
    mlp: Mlp<B>,
}

impl<B: Backend> T5<B> {
    pub fn load(loader: &Loader<'_, B>, config: T5Config) -> Result<Self> {
        let T5Config { width, vocabulary, epsilon, .. } = config;
        // Files may contain the same table under two names.
        let [table, duplicate] = match loader.has("shared") {
            true => ["shared", "encoder.embed_tokens"],
            false => ["encoder.embed_tokens", "shared"],
        };
        loader.ignore(duplicate);
        let layer = |index| Layer::load(loader, &format!("encoder.block.{index}"), &config);
        Ok(Self {
            token_embedding: loader.table(table, vocabulary, width)?,
            relative_bias: RelativeBias::load(
                loader,
                "encoder.block.0.layer.0.SelfAttention.relative_attention_bias",
                [config.buckets, config.heads],
                config.max_distance,
            )?,
            layers: (0..config.layers).map(layer).collect::<Result<_>>()?,
            final_norm: Norm::load_rms_norm(loader, "encoder.final_layer_norm", width, epsilon, 0.)?,
            config,
        })
    }

    pub fn config(&self) -> &T5Config {
        &self.config
    }

    /// Hidden states of `texts`, token IDs of equal length: `[texts, tokens, 1, width]`.
    pub fn forward(&self, ctx: &Context<'_, B>, texts: &[Vec<u32>]) -> Result<Tensor<B>> {
        let tokens = texts.first().map_or(0, Vec::len);
        if tokens == 0 || texts.iter().any(|text| text.len() != tokens) {
            return Err(ModelError::Compute("texts are empty or have different lengths".to_owned()));
        }
        let mut x = ctx.upload([texts.len(), tokens, 1, self.config.width], &mut |x| {
            self.token_embedding.look_up(texts.iter().flatten().copied(), false, x)
        })?;
        let bias = self.relative_bias.for_length(&**ctx, tokens)?;
        for layer in &self.layers {
            x = layer.forward(ctx, x, self.config.heads, &bias)?;
        }
        ctx.norm(&self.final_norm, &x)
    }
}

impl<B: Backend> Layer<B> {
    fn load(loader: &Loader<'_, B>, stem: &str, config: &T5Config) -> Result<Self> {
        let T5Config { width, inner, epsilon, gated, activation, .. } = *config;
        let name = |suffix: &str| format!("{stem}.layer.{suffix}");
        let norm = |suffix: &str| Norm::load_rms_norm(loader, &name(suffix), width, epsilon, 0.);
        let attention_width = config.heads * config.head_dim;
        let projection =
            |suffix: &str| linear(loader, &name(&format!("0.SelfAttention.{suffix}")), [width, attention_width], false);
        let up = |suffix: &str| linear(loader, &name(&format!("1.DenseReluDense.{suffix}")), [width, inner], false);
        Ok(Self {
            norms: [norm("0.layer_norm")?, norm("1.layer_norm")?],
            q: projection("q")?,
            k: projection("k")?,
            v: projection("v")?,
            o: linear(loader, &name("0.SelfAttention.o"), [attention_width, width], false)?,
            mlp: Mlp {
                gate: gated.then(|| up("wi_0")).transpose()?,
                up: up(if gated { "wi_1" } else { "wi" })?,
                down: linear(loader, &name("1.DenseReluDense.wo"), [inner, width], false)?,
                activation,
            },
        })
    }

    /// `bias`: from [`RelativeBias::for_length`].
    fn forward(&self, ctx: &Context<'_, B>, mut x: Tensor<B>, heads: usize, bias: &Tensor<B>) -> Result<Tensor<B>> {
        let [norm1, norm2] = &self.norms;
        let y = ctx.norm(norm1, &x)?;
        let [q, k, v] = Linear::forward_all(ctx, [&self.q, &self.k, &self.v], &y)?;
        let attended = ctx.biased_attention([&q, &k, &v], heads, bias)?;
        drop((q, k, v));
        let y = self.o.forward(ctx, &attended)?;
        let y = ctx.add_norm(norm2, &mut x, &y)?;
        let y = self.mlp.forward(ctx, &y)?;
        ctx.add(&mut x, &y)?;
        Ok(x)
    }
}
