//! One decoder layer: a mixer, which lets tokens see each other, and a feed-forward network for each token, or one of them. Both read
//! the residual stream and add to it. The plan of the layer says whether what they read or what they add is normalized.

use super::attention::{Attention, KvLayer};
use super::delta_net::DeltaNet;
use super::feed_forward::FeedForward;
use super::latent_attention::LatentAttention;
use super::mamba2::Mamba2;
use super::per_layer::PerLayerGate;
use super::short_conv::ShortConv;
use crate::backend::{Angles, Backend, Norm, Recurrent, StatePart, Tensor};
use crate::decoder_config::{AttentionConfig, DecoderConfig, LayerConfig, MixerConfig};
use crate::error::{ModelError, Result};
use crate::nn::Context;
use crate::weights::{Loader, Role};

/// The state between layers: `[1, tokens, 1, width]` each.
#[derive(Debug)]
pub(super) struct ResidualStream<B: Backend> {
    pub x: Tensor<B>,
    /// Output of the last layer, which the next norm adds to `x`.
    pub y: Tensor<B>,
}

#[derive(Debug)]
pub(super) struct DecoderLayer<B: Recurrent> {
    mixer: Option<Sublayer<B, Mixer<B>>>,
    feed_forward: Option<Sublayer<B, FeedForward<B>>>,
    /// See [`DecoderConfig::per_layer`].
    per_layer: Option<PerLayerGate<B>>,
    /// The factor of the residual stream after the layer.
    output_scale: f32,
    /// See [`LayerConfig::parallel`].
    parallel: bool,
    /// See [`DecoderConfig::residual_scale`].
    residual_scale: f32,
}

/// A part of a layer that reads the residual stream and adds to it.
#[derive(Debug)]
struct Sublayer<B: Recurrent, T> {
    /// The norm of its input.
    norm: Option<Norm<B>>,
    network: T,
    /// The norm of its output.
    post_norm: Option<Norm<B>>,
}

/// What lets the tokens of a sequence see each other.
#[derive(Debug)]
pub(super) enum Mixer<B: Recurrent> {
    Attention(Attention<B>),
    LatentAttention(LatentAttention<B>),
    ShortConv(ShortConv<B>),
    DeltaNet(DeltaNet<B>),
    Mamba2(Mamba2<B>),
}

/// What a layer needs of the tokens besides the residual stream.
pub(super) struct LayerInputs<'a, B: Recurrent> {
    pub angles: &'a [Angles<B>],
    /// Only these tokens, in ascending order, pass through the rest of the layer after the mixer; `None`: all.
    pub output_tokens: Option<&'a [usize]>,
    /// The layer's part of the per-layer embeddings: `[1, tokens, 1, width of a part]`.
    pub per_layer: Option<Tensor<B>>,
}

impl<'a, B: Recurrent> LayerInputs<'a, B> {
    /// Those of a layer that computes all tokens, in a model without per-layer embeddings.
    pub fn new(angles: &'a [Angles<B>]) -> Self {
        Self { angles, output_tokens: None, per_layer: None }
    }
}

/// Where a layer keeps what later tokens need of those of a step.
pub(super) enum LayerState<'a, B: Recurrent> {
    Attention(KvLayer<'a, B>),
    Recurrent(StatePart<'a, B>),
}

impl<B: Recurrent> Mixer<B> {
    fn load(loader: &Loader<'_, B>, config: &DecoderConfig, index: usize, plan: &MixerConfig) -> Result<Self> {
        match plan {
            MixerConfig::Attention(plan @ AttentionConfig { latent: Some(latent), .. }) => {
                LatentAttention::load(loader, config, index, plan, latent).map(Self::LatentAttention)
            }
            MixerConfig::Attention(plan) => Attention::load(loader, config, index, plan).map(Self::Attention),
            MixerConfig::ShortConv(plan) => ShortConv::load(loader, config.width, index, plan).map(Self::ShortConv),
            MixerConfig::DeltaNet(plan) => DeltaNet::load(loader, config, index, plan).map(Self::DeltaNet),
            MixerConfig::Mamba2(plan) => Mamba2::load(loader, config, index, plan).map(Self::Mamba2),
        }
    }

    /// Mixes the tokens of each sequence, and records what later tokens need of them. The result is the input of
    /// [`Self::output`].
    fn forward(
        &self,
        ctx: &Context<'_, B>,
        normed: Tensor<B>,
        angles: &[Angles<B>],
        state: LayerState<'_, B>,
    ) -> Result<Tensor<B>> {
        match (self, state) {
            (Self::Attention(attention), LayerState::Attention(kv)) => attention.forward(ctx, normed, angles, kv),
            (Self::LatentAttention(attention), LayerState::Attention(kv)) => attention.forward(ctx, normed, angles, kv),
            (Self::ShortConv(conv), LayerState::Recurrent(states)) => conv.forward(ctx, &normed, states),
            (Self::DeltaNet(net), LayerState::Recurrent(states)) => net.forward(ctx, &normed, states),
            (Self::Mamba2(mamba), LayerState::Recurrent(states)) => mamba.forward(ctx, &normed, states),
            _ => Err(ModelError::Compute("a layer got the state of a layer of another kind".to_owned())),
        }
    }

    /// Projects the mixed tokens back to the residual stream, token by token.
    fn output(&self, ctx: &Context<'_, B>, mixed: &Tensor<B>) -> Result<Tensor<B>> {
        let projection = match self {
            Self::Attention(attention) => &attention.attn_output,
            Self::LatentAttention(attention) => &attention.attn_output,
            Self::ShortConv(conv) => &conv.output,
            Self::DeltaNet(net) => &net.ssm_out,
            Self::Mamba2(mamba) => &mamba.ssm_out,
        };
        projection.forward(ctx, mixed)
    }
}

impl<B: Recurrent> DecoderLayer<B> {
    pub fn load(loader: &Loader<'_, B>, config: &DecoderConfig, index: usize, plan: &LayerConfig) -> Result<Self> {
        let DecoderConfig { width, norm: spec, .. } = *config;
        let norm = |suffix: &str| Norm::load(loader, &format!("blk.{index}.{suffix}"), width, spec);
        let input_norm = |suffix: &str| plan.norms.is_before().then(|| norm(suffix)).transpose();
        let post_norm = |suffix: &str| plan.norms.is_after().then(|| norm(suffix)).transpose();
        // GGUF files of Qwen 3.5 use the name of transformers.
        let has_other_name = !plan.norms.is_after() && loader.has(&format!("blk.{index}.post_attention_norm"));
        let ffn_norm = match &plan.mixer {
            None => "attn_norm",
            Some(_) if has_other_name => "post_attention_norm",
            Some(_) => "ffn_norm",
        };
        let mixer = |plan| {
            Ok::<_, ModelError>(Sublayer {
                norm: input_norm("attn_norm")?,
                network: Mixer::load(loader, config, index, plan)?,
                post_norm: post_norm("post_attention_norm")?,
            })
        };
        let feed_forward = |network| {
            Ok::<_, ModelError>(Sublayer {
                norm: if plan.parallel { None } else { input_norm(ffn_norm)? },
                network: FeedForward::load(loader, config, index, network)?,
                post_norm: post_norm("post_ffw_norm")?,
            })
        };
        let per_layer = config.per_layer.as_ref().map(|plan| PerLayerGate::load(loader, config, index, plan));
        let scale = loader.optional_vector(&format!("blk.{index}.layer_output_scale"), Role::Weight, 1)?;
        Ok(Self {
            mixer: plan.mixer.as_ref().map(mixer).transpose()?,
            feed_forward: plan.feed_forward.as_ref().map(feed_forward).transpose()?,
            per_layer: per_layer.transpose()?,
            output_scale: scale.and_then(|scale| scale.first().copied()).unwrap_or(1.),
            parallel: plan.parallel,
            residual_scale: config.residual_scale,
        })
    }

    /// Runs the layer. With `output_tokens` (in ascending order), only these tokens pass through the rest of the layer after the mixer.
    /// `None`: there are no such tokens.
    pub fn forward(
        &self,
        ctx: &Context<'_, B>,
        stream: ResidualStream<B>,
        inputs: LayerInputs<'_, B>,
        state: Option<LayerState<'_, B>>,
    ) -> Result<Option<ResidualStream<B>>> {
        let LayerInputs { angles, .. } = inputs;
        self.forward_with(ctx, stream, inputs, |mixer, normed| {
            let missing = || ModelError::Compute("a mixer has no state".to_owned());
            mixer.forward(ctx, normed, angles, state.ok_or_else(missing)?)
        })
    }

    /// Writes the keys and values of tokens, which are all that later tokens need of them. `x`: their input of the layer, which has
    /// attention.
    pub fn write_kv(
        &self,
        ctx: &Context<'_, B>,
        x: &Tensor<B>,
        angles: &[Angles<B>],
        kv: KvLayer<'_, B>,
    ) -> Result<()> {
        match &self.mixer {
            Some(Sublayer { norm, network: Mixer::Attention(attention), .. }) => {
                let normed = norm.as_ref().map(|norm| ctx.norm(norm, x)).transpose()?;
                attention.write_kv(ctx, normed.as_ref().unwrap_or(x), angles, kv)
            }
            _ => Err(ModelError::Compute("a layer without attention has no keys and values".to_owned())),
        }
    }

    /// Like [`Self::forward`]; `mix` mixes the normalized tokens.
    pub fn forward_with(
        &self,
        ctx: &Context<'_, B>,
        ResidualStream { mut x, mut y }: ResidualStream<B>,
        LayerInputs { output_tokens, mut per_layer, .. }: LayerInputs<'_, B>,
        mix: impl FnOnce(&Mixer<B>, Tensor<B>) -> Result<Tensor<B>>,
    ) -> Result<Option<ResidualStream<B>>> {
        let mut shared_input = None;
        // What the mixer has computed, before its projection; without a mixer, the output of the layer before.
        let mut mixed = match &self.mixer {
            None => y,
            Some(Sublayer { norm, network, .. }) => {
                let input = add_input(ctx, norm.as_ref(), &mut x, &y)?;
                drop(y);
                shared_input = self.parallel.then(|| ctx.copy(&input)).transpose()?;
                mix(network, input)?
            }
        };
        let selected = match output_tokens {
            Some([]) => return Ok(None),
            Some(tokens) if tokens.len() < x.rows() => {
                (x, mixed) = (ctx.gather_rows(&x, tokens)?, ctx.gather_rows(&mixed, tokens)?);
                shared_input = shared_input.map(|input| ctx.gather_rows(&input, tokens)).transpose()?;
                per_layer = per_layer.map(|input| ctx.gather_rows(&input, tokens)).transpose()?;
                Some(ctx.for_rows(tokens))
            }
            _ => None,
        };
        let ctx = selected.as_ref().unwrap_or(ctx);
        y = match &self.mixer {
            None => mixed,
            Some(sublayer) => self.finish(ctx, sublayer, sublayer.network.output(ctx, &mixed)?)?,
        };
        if let Some(sublayer) = &self.feed_forward {
            let input = match shared_input {
                Some(input) => {
                    ctx.add(&mut x, &y)?;
                    input
                }
                None => add_input(ctx, sublayer.norm.as_ref(), &mut x, &y)?,
            };
            drop(y);
            y = self.finish(ctx, sublayer, sublayer.network.forward(ctx, &input, &x)?)?;
        }
        if let Some(gate) = &self.per_layer {
            let Some(input) = per_layer else {
                return Err(ModelError::Compute("a layer has no part of the per-layer embeddings".to_owned()));
            };
            ctx.add(&mut x, &y)?;
            drop(y);
            y = gate.forward(ctx, &x, &input)?;
        }
        if self.output_scale != 1. {
            ctx.multiply(&mut x, self.output_scale)?;
            ctx.multiply(&mut y, self.output_scale)?;
        }
        Ok(Some(ResidualStream { x, y }))
    }

    /// Normalizes and scales the output of a part of the layer.
    fn finish<T>(&self, ctx: &Context<'_, B>, sublayer: &Sublayer<B, T>, mut y: Tensor<B>) -> Result<Tensor<B>> {
        if let Some(norm) = &sublayer.post_norm {
            y = ctx.norm(norm, &y)?;
        }
        if self.residual_scale != 1. {
            ctx.multiply(&mut y, self.residual_scale)?;
        }
        Ok(y)
    }
}

/// Adds `y` to the residual stream `x`. The result is the input of the next part of the layer: `x`, normalized if the input has a norm.
fn add_input<B: Recurrent>(
    ctx: &Context<'_, B>,
    norm: Option<&Norm<B>>,
    x: &mut Tensor<B>,
    y: &Tensor<B>,
) -> Result<Tensor<B>> {
    match norm {
        Some(norm) => ctx.add_norm(norm, x, y),
        None => {
            ctx.add(x, y)?;
            ctx.copy(x)
        }
    }
}
