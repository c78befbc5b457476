//! The text encoder of CLIP (Radford et al. 2021, <https://arxiv.org/abs/2103.00020>), following transformers'
//! `CLIPTextModel` and `CLIPTextModelWithProjection`.

use crate::backend::{Activation, Backend, Norm, Tensor};
use serde_json::Value;

use super::layers::{linear, mlp};
use crate::config_json::ConfigJson;
use crate::error::Result;
use crate::error::{ModelError, reject_config};
use crate::nn::{Context, EmbeddingTable, Linear, Mlp};
use crate::weights::Loader;

/// The configuration of a CLIP text encoder.
#[derive(Clone, Debug, PartialEq)]
pub struct ClipConfig {
    pub layers: usize,
    pub width: usize,
    pub heads: usize,
    pub inner: usize,
    pub vocabulary: usize,
    /// The maximum number of tokens of a text.
    pub positions: usize,
    pub epsilon: f32,
    pub activation: Activation,
    /// The end token, whose hidden state is the pooled embedding.
    pub end_id: u32,
    /// Width of the pooled embedding after projection, if the model has one.
    pub projection: Option<usize>,
}

impl ClipConfig {
    /// Reads a `config.json`. `path` is for error messages; `has_projection`: whether the model projects pooled
    /// embeddings.
    pub fn read(value: &Value, path: &str, has_projection: bool) -> Result<Self> {
        let config = ConfigJson { value, path };
        let activation = match config.text("hidden_act")?.unwrap_or("quick_gelu") {
            "quick_gelu" => Activation::QuickGelu,
            "gelu" => Activation::Gelu,
            other => return reject_config(format!("{path}hidden_act is {other}; supported: quick_gelu, gelu")),
        };
        let integer = |key: &str, default: usize, max: usize| config.integer_or(key, default, max);
        let clip = Self {
            layers: integer("num_hidden_layers", 12, 256)?,
            width: integer("hidden_size", 512, 1 << 16)?,
            heads: integer("num_attention_heads", 8, 1 << 10)?,
            inner: integer("intermediate_size", 2048, 1 << 20)?,
            vocabulary: integer("vocab_size", 49408, 1 << 24)?,
            positions: integer("max_position_embeddings", 77, 1 << 16)?,
            epsilon: config.float("layer_norm_eps")?.unwrap_or(1e-5),
            activation,
            end_id: config
                .get("eos_token_id")
                .and_then(Value::as_u64)
                .and_then(|id| u32::try_from(id).ok())
                .unwrap_or(49407),
            projection: has_projection.then(|| integer("projection_dim", 512, 1 << 16)).transpose()?,
        };
        match clip.width.is_multiple_of(clip.heads) {
            true => Ok(clip),
            false => {
                reject_config(format!("{path}hidden_size {} does not divide into {} heads", clip.width, clip.heads))
            }
        }
    }
}

#[derive(Debug)]
pub struct Clip<B: Backend> {
    config: ClipConfig,
    token_embedding: EmbeddingTable,
    position_embedding: EmbeddingTable,
    layers: Vec<Layer<B>>,
    final_norm: Norm<B>,
    projection: Option<Linear<B>>,
}

#[derive(Debug)]
struct Layer<B: Backend> {
    norms: [Norm<B>; 2],
    q: Linear<B>,
    k: Linear<B>,
    v: Linear<B>,
    out: Linear<B>,
    mlp: Mlp<B>,
}

/// The output of a text encoder.
#[derive(Debug)]
pub struct ClipOutput<B: Backend> {
    /// Hidden states, `[texts, tokens, 1, width]`.
    pub hidden: Tensor<B>,
    /// Pooled embeddings, `[texts][width]`, projected if the model has a projection.
    pub pooled: Vec<Vec<f32>>,
}

impl<B: Backend> Clip<B> {
    pub fn load(loader: &Loader<'_, B>, config: ClipConfig) -> Result<Self> {
        let ClipConfig { width, vocabulary, positions, epsilon, .. } = config;
        let layer = |index| Layer::load(loader, &format!("encoder.layers.{index}"), &config);
        let load_projection = |rows| linear(loader, "text_projection", [width, rows], false);
        Ok(Self {
            token_embedding: loader.table("embeddings.token_embedding", vocabulary, width)?,
            position_embedding: loader.table("embeddings.position_embedding", positions, width)?,
            layers: (0..config.layers).map(layer).collect::<Result<_>>()?,
            final_norm: Norm::load_layer_norm(loader, "final_layer_norm", width, epsilon)?,
            projection: config.projection.map(load_projection).transpose()?,
            config,
        })
    }

    pub fn config(&self) -> &ClipConfig {
        &self.config
    }

    /// Encodes `texts`, token IDs of equal length. `clip_skip`: the number of final layers that the hidden states skip.
    /// Then they also skip the final norm.
    pub fn forward(&self, ctx: &Context<'_, B>, texts: &[Vec<u32>], clip_skip: Option<usize>) -> Result<ClipOutput<B>> {
        let ClipConfig { width, positions, .. } = self.config;
        let tokens = texts.first().map_or(0, Vec::len);
        if tokens == 0 || tokens > positions || texts.iter().any(|text| text.len() != tokens) {
            return Err(ModelError::Compute(format!("texts of {tokens} tokens; 1 to {positions} are allowed")));
        }
        let mut x = ctx.upload([texts.len(), tokens, 1, width], &mut |x| {
            self.token_embedding.look_up(texts.iter().flatten().copied(), false, x)?;
            self.position_embedding.look_up(texts.iter().flat_map(|_| 0..tokens as u32), true, x)
        })?;
        let mut skipped_hidden = None;
        for (index, layer) in self.layers.iter().enumerate() {
            if clip_skip == Some(self.layers.len() - index) {
                skipped_hidden = Some(ctx.copy(&x)?);
            }
            x = layer.forward(ctx, x, self.config.heads)?;
        }
        let normed = ctx.norm(&self.final_norm, &x)?;
        let pooled = self.pool(ctx, texts, &normed)?;
        Ok(ClipOutput { hidden: skipped_hidden.unwrap_or(normed), pooled })
    }

    /// The hidden states at the first end token of each text, projected: `[texts][width]`.
    fn pool(&self, ctx: &Context<'_, B>, texts: &[Vec<u32>], hidden: &Tensor<B>) -> Result<Vec<Vec<f32>>> {
        // Old configs have the wrong end token 2. The end token of these models has the greatest ID.
        let end_position = |text: &Vec<u32>| match self.config.end_id {
            2 => text.iter().enumerate().rev().max_by_key(|(_, id)| **id).map_or(0, |(position, _)| position),
            end_id => text.iter().position(|id| *id == end_id).unwrap_or(0),
        };
        let tokens = hidden.pixels();
        let ends = texts.iter().enumerate().map(|(index, text)| index * tokens + end_position(text));
        let pooled = ctx.gather_rows(hidden, &ends.collect::<Vec<_>>())?;
        let pooled = match &self.projection {
            Some(projection) => projection.forward(ctx, &pooled)?,
            None => pooled,
        };
        Ok(ctx.to_vec(&pooled)?.chunks_exact(pooled.channels.max(1)).map(<[f32]>::to_vec).collect())
    }
}

impl<B: Backend> Layer<B> {
    fn load(loader: &Loader<'_, B>, stem: &str, config: &ClipConfig) -> Result<Self> {
        let ClipConfig { width, inner, epsilon, activation, .. } = *config;
        let name = |suffix: &str| format!("{stem}.{suffix}");
        let norm = |suffix: &str| Norm::load_layer_norm(loader, &name(suffix), width, epsilon);
        let projection = |suffix: &str| linear(loader, &name(suffix), [width; 2], true);
        Ok(Self {
            norms: [norm("layer_norm1")?, norm("layer_norm2")?],
            q: projection("self_attn.q_proj")?,
            k: projection("self_attn.k_proj")?,
            v: projection("self_attn.v_proj")?,
            out: projection("self_attn.out_proj")?,
            mlp: mlp(loader, [&name("mlp.fc1"), &name("mlp.fc2")], [width, inner], activation, true)?,
        })
    }

    fn forward(&self, ctx: &Context<'_, B>, mut x: Tensor<B>, heads: usize) -> Result<Tensor<B>> {
        let [norm1, norm2] = &self.norms;
        let y = ctx.norm(norm1, &x)?;
        let [q, k, v] = Linear::forward_all(ctx, [&self.q, &self.k, &self.v], &y)?;
        let attended = ctx.attention([&q, &k, &v], heads, true)?;
        let y = self.out.forward(ctx, &attended)?;
        let y = ctx.add_norm(norm2, &mut x, &y)?;
        let y = self.mlp.forward(ctx, &y)?;
        ctx.add(&mut x, &y)?;
        Ok(x)
    }
}
