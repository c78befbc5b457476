//! CLIP's text encoder (Radford et al. 2021, <https://arxiv.org/abs/2103.00020>), following transformers'
//! `CLIPTextModel` and `CLIPTextModelWithProjection`.

use outpost_kernels::Activation;
use serde_json::Value;

use super::feature_map::FeatureMap;
use super::layers::{Linear, Mlp, Norm, linear, mlp};
use super::op_context::{OpContext, Result};
use crate::models::config_json::ConfigJson;
use crate::models::embedding_table::EmbeddingTable;
use crate::models::error::{ModelError, reject_config};
use crate::models::weights::Loader;

/// The configuration of a text encoder.
#[derive(Clone, Debug, PartialEq)]
pub struct ClipConfig {
    pub layers: usize,
    pub width: usize,
    pub heads: usize,
    pub inner: usize,
    pub vocabulary: usize,
    /// Tokens of every text, after padding.
    pub positions: usize,
    pub epsilon: f32,
    pub activation: Activation,
    /// The token whose hidden state is the pooled embedding.
    pub end: u32,
    /// Width of the projected pooled embedding, if it is projected.
    pub projection: Option<usize>,
}

impl ClipConfig {
    /// `path` is for error messages; `projects`: whether the model has a projection.
    pub fn read(value: &Value, path: &str, projects: bool) -> Result<Self> {
        let config = ConfigJson { value, path };
        let activation = match config.text("hidden_act")?.unwrap_or("quick_gelu") {
            "quick_gelu" => Activation::QuickGelu,
            "gelu" => Activation::Gelu,
            other => return reject_config(format!("{path}hidden_act is {other}; supported: quick_gelu, gelu")),
        };
        let number = |key: &str, usual: usize, most: usize| config.integer_or(key, usual, most);
        let sizes = Self {
            layers: number("num_hidden_layers", 12, 256)?,
            width: number("hidden_size", 512, 1 << 16)?,
            heads: number("num_attention_heads", 8, 1 << 10)?,
            inner: number("intermediate_size", 2048, 1 << 20)?,
            vocabulary: number("vocab_size", 49408, 1 << 24)?,
            positions: number("max_position_embeddings", 77, 1 << 16)?,
            epsilon: config.float("layer_norm_eps")?.unwrap_or(1e-5),
            activation,
            end: config
                .get("eos_token_id")
                .and_then(Value::as_u64)
                .and_then(|id| u32::try_from(id).ok())
                .unwrap_or(49407),
            projection: projects.then(|| number("projection_dim", 512, 1 << 16)).transpose()?,
        };
        match sizes.width.is_multiple_of(sizes.heads) {
            true => Ok(sizes),
            false => {
                reject_config(format!("{path}hidden_size {} does not divide into {} heads", sizes.width, sizes.heads))
            }
        }
    }
}

#[derive(Debug)]
pub struct Clip {
    config: ClipConfig,
    tokens: EmbeddingTable,
    positions: EmbeddingTable,
    layers: Vec<Layer>,
    final_norm: Norm,
    projection: Option<Linear>,
}

#[derive(Debug)]
struct Layer {
    norms: [Norm; 2],
    q: Linear,
    k: Linear,
    v: Linear,
    out: Linear,
    mlp: Mlp,
}

/// The outputs of a text encoder.
#[derive(Debug)]
pub struct ClipOutput {
    /// Hidden states: `[texts, tokens, 1, width]`
    pub hidden: FeatureMap,
    /// Pooled embedding of each text, projected where there is a projection.
    pub pooled: Vec<Vec<f32>>,
}

impl Clip {
    pub fn load(loader: &Loader<'_>, config: ClipConfig) -> Result<Self> {
        let ClipConfig { width, vocabulary, positions, epsilon, .. } = config;
        let layer = |index| Layer::load(loader, &format!("encoder.layers.{index}"), &config);
        let project = |rows| linear(loader, "text_projection", [width, rows], false);
        Ok(Self {
            tokens: loader.table("embeddings.token_embedding", vocabulary, width)?,
            positions: loader.table("embeddings.position_embedding", positions, width)?,
            layers: (0..config.layers).map(layer).collect::<Result<_>>()?,
            final_norm: Norm::load_layer_norm(loader, "final_layer_norm", width, epsilon)?,
            projection: config.projection.map(project).transpose()?,
            config,
        })
    }

    pub fn config(&self) -> &ClipConfig {
        &self.config
    }

    /// Encodes `texts` of equal length. `clip_skip`: how many of the last layers the hidden states skip; skipped ones
    /// are not normalised.
    pub fn forward(&self, ctx: &OpContext<'_>, texts: &[Vec<u32>], clip_skip: Option<usize>) -> Result<ClipOutput> {
        let ClipConfig { width, positions, .. } = self.config;
        let count = texts.first().map_or(0, Vec::len);
        if count == 0 || count > positions || texts.iter().any(|text| text.len() != count) {
            return Err(ModelError::Compute(format!("texts of {count} tokens; 1 to {positions} are allowed")));
        }
        let mut x = ctx.alloc(texts.len(), [count, 1], width);
        self.tokens.look_up(texts.iter().flatten().copied(), false, x.data_mut())?;
        self.positions.look_up(texts.iter().flat_map(|_| 0..count as u32), true, x.data_mut())?;
        let mut early = None;
        for (index, layer) in self.layers.iter().enumerate() {
            if clip_skip == Some(self.layers.len() - index) {
                early = Some(ctx.feature_map(x.data(), x.images, x.size, width)?);
            }
            x = layer.forward(ctx, x, self.config.heads)?;
        }
        let normed = ctx.layer_norm(&self.final_norm, &x)?;
        let pooled = self.pool(ctx, texts, &normed)?;
        Ok(ClipOutput { hidden: early.unwrap_or(normed), pooled })
    }

    /// The hidden states at each text's first end token.
    fn pool(&self, ctx: &OpContext<'_>, texts: &[Vec<u32>], hidden: &FeatureMap) -> Result<Vec<Vec<f32>>> {
        // Old configs name a wrong end token; there the end token is the greatest ID.
        let place = |text: &Vec<u32>| match self.config.end {
            2 => text.iter().enumerate().rev().max_by_key(|(_, id)| **id).map_or(0, |(place, _)| place),
            end => text.iter().position(|id| *id == end).unwrap_or(0),
        };
        let width = self.config.width;
        let mut all = ctx.alloc(texts.len(), [1, 1], width);
        let rows = texts.iter().zip(hidden.per_image()).zip(all.data_mut().chunks_exact_mut(width));
        for ((text, hidden), to) in rows {
            let start = place(text) * width;
            to.copy_from_slice(&hidden[start..start + width]);
        }
        let all = match &self.projection {
            Some(projection) => ctx.linear(projection, &all)?,
            None => all,
        };
        Ok(all.per_image().map(<[f32]>::to_vec).collect())
    }
}

impl Layer {
    fn load(loader: &Loader<'_>, stem: &str, config: &ClipConfig) -> Result<Self> {
        let ClipConfig { width, inner, epsilon, activation, .. } = *config;
        let name = |part: &str| format!("{stem}.{part}");
        let norm = |part: &str| Norm::load_layer_norm(loader, &name(part), width, epsilon);
        let square = |part: &str| linear(loader, &name(part), [width; 2], true);
        Ok(Self {
            norms: [norm("layer_norm1")?, norm("layer_norm2")?],
            q: square("self_attn.q_proj")?,
            k: square("self_attn.k_proj")?,
            v: square("self_attn.v_proj")?,
            out: square("self_attn.out_proj")?,
            mlp: mlp(loader, [&name("mlp.fc1"), &name("mlp.fc2")], [width, inner], activation, true)?,
        })
    }

    fn forward(&self, ctx: &OpContext<'_>, mut x: FeatureMap, heads: usize) -> Result<FeatureMap> {
        let [norm1, norm2] = &self.norms;
        let y = ctx.layer_norm(norm1, &x)?;
        let [q, k, v] = ctx.linears([&self.q, &self.k, &self.v], &y)?;
        let mixed = ctx.attention([&q, &k, &v], heads, true)?;
        let y = ctx.linear(&self.out, &mixed)?;
        let y = ctx.add_norm(norm2, &mut x, &y)?;
        let y = ctx.feed_forward(&self.mlp, &y)?;
        ctx.add(&mut x, &y)?;
        Ok(x)
    }
}
