//! The encoder of T5 (Raffel et al. 2020, <https://arxiv.org/abs/1910.10683>), following transformers'
//! `T5EncoderModel`.
//!
//! Attention scores and embeddings are not scaled. A bias on the scores encodes relative positions. Padding is not
//! masked, as in the training of the diffusion models.

mod attention;
mod config;

pub use config::T5Config;

use attention::RelativeBias;

use super::feature_map::FeatureMap;
use super::layers::{Linear, Mlp, Norm, linear};
use super::op_context::{OpContext, Result};
use crate::models::embedding_table::EmbeddingTable;
use crate::models::error::ModelError;
use crate::models::weights::Loader;

#[derive(Debug)]
pub struct T5 {
    config: T5Config,
    token_embedding: EmbeddingTable,
    relative_bias: RelativeBias,
    layers: Vec<Layer>,
    final_norm: Norm,
}

#[derive(Debug)]
struct Layer {
    norms: [Norm; 2],
    q: Linear,
    k: Linear,
    v: Linear,
    o: Linear,
    mlp: Mlp,
}

impl T5 {
    pub fn load(loader: &Loader<'_>, config: T5Config) -> Result<Self> {
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
                &config,
            )?,
            layers: (0..config.layers).map(layer).collect::<Result<_>>()?,
            final_norm: Norm::load_rms_norm(loader, "encoder.final_layer_norm", width, epsilon)?,
            config,
        })
    }

    pub fn config(&self) -> &T5Config {
        &self.config
    }

    /// Hidden states of `texts`, token IDs of equal length: `[texts, tokens, 1, width]`.
    pub fn forward(&self, ctx: &OpContext<'_>, texts: &[Vec<u32>]) -> Result<FeatureMap> {
        let tokens = texts.first().map_or(0, Vec::len);
        if tokens == 0 || texts.iter().any(|text| text.len() != tokens) {
            return Err(ModelError::Compute("texts are empty or have different lengths".to_owned()));
        }
        let mut x = ctx.alloc(texts.len(), [tokens, 1], self.config.width);
        self.token_embedding.look_up(texts.iter().flatten().copied(), false, x.data_mut())?;
        let bias = self.relative_bias.for_length(tokens)?;
        for layer in &self.layers {
            x = layer.forward(ctx, x, self.config.heads, &bias)?;
        }
        ctx.layer_norm(&self.final_norm, &x)
    }
}

impl Layer {
    fn load(loader: &Loader<'_>, stem: &str, config: &T5Config) -> Result<Self> {
        let T5Config { width, inner, epsilon, gated, activation, .. } = *config;
        let name = |suffix: &str| format!("{stem}.layer.{suffix}");
        let norm = |suffix: &str| Norm::load_rms_norm(loader, &name(suffix), width, epsilon);
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
    fn forward(&self, ctx: &OpContext<'_>, mut x: FeatureMap, heads: usize, bias: &[f32]) -> Result<FeatureMap> {
        let [norm1, norm2] = &self.norms;
        let y = ctx.layer_norm(norm1, &x)?;
        let [q, k, v] = ctx.linears([&self.q, &self.k, &self.v], &y)?;
        let attended = attention::attend(ctx, [&q, &k, &v], heads, bias)?;
        drop((q, k, v));
        let y = ctx.linear(&self.o, &attended)?;
        let y = ctx.add_norm(norm2, &mut x, &y)?;
        let y = ctx.feed_forward(&self.mlp, &y)?;
        ctx.add(&mut x, &y)?;
        Ok(x)
    }
}
