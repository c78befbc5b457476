//! One decoder layer: a mixer, which lets tokens see each other, and a feed-forward network for each token. Both read the
//! normalized residual stream and add to it.

use super::attention::{Attention, KvLayer};
use super::delta_net::DeltaNet;
use super::feed_forward::FeedForward;
use super::mamba2::Mamba2;
use super::short_conv::ShortConv;
use crate::backend::{Angles, Backend, Norm, Recurrent, StatePart, Tensor};
use crate::decoder_config::{DecoderConfig, LayerConfig, MixerConfig};
use crate::error::{ModelError, Result};
use crate::nn::Context;
use crate::weights::Loader;

/// The state between layers: `[1, tokens, 1, width]` each.
#[derive(Debug)]
pub(super) struct ResidualStream<B: Backend> {
    pub x: Tensor<B>,
    /// Output of the last layer, which the next norm adds to `x`.
    pub y: Tensor<B>,
}

#[derive(Debug)]
pub(super) struct DecoderLayer<B: Recurrent> {
    attn_norm: Norm<B>,
    pub mixer: Mixer<B>,
    post_attention_norm: Option<Norm<B>>,
    ffn_norm: Norm<B>,
    feed_forward: FeedForward<B>,
    post_ffw_norm: Option<Norm<B>>,
    /// See [`DecoderConfig::residual_scale`].
    residual_scale: f32,
}

/// What lets the tokens of a sequence see each other.
#[derive(Debug)]
pub(super) enum Mixer<B: Recurrent> {
    Attention(Attention<B>),
    ShortConv(ShortConv<B>),
    DeltaNet(DeltaNet<B>),
    Mamba2(Mamba2<B>),
}

/// Where a layer keeps what later tokens need of those of a step.
pub(super) enum LayerState<'a, B: Recurrent> {
    Attention(KvLayer<'a, B>),
    Recurrent(StatePart<'a, B>),
}

impl<B: Recurrent> Mixer<B> {
    fn load(loader: &Loader<'_, B>, config: &DecoderConfig, index: usize, plan: &MixerConfig) -> Result<Self> {
        match plan {
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
            (Self::ShortConv(conv), LayerState::Recurrent(states)) => conv.forward(ctx, &normed, states),
            (Self::DeltaNet(net), LayerState::Recurrent(states)) => net.forward(ctx, &normed, states),
            (Self::Mamba2(mamba), LayerState::Recurrent(states)) => mamba.forward(ctx, &normed, states),
            _ => Err(ModelError::Compute("a layer got the state of a layer of another kind".to_owned())),
        }
    }

    /// Projects the mixed tokens back to the residual stream, token by token.
    fn output(&self, ctx: &Context<'_, B>, mixed: &Tensor<B>) -> Result<Tensor<B>> {
        match self {
            Self::Attention(attention) => attention.output(ctx, mixed),
            Self::ShortConv(conv) => conv.output(ctx, mixed),
            Self::DeltaNet(net) => net.output(ctx, mixed),
            Self::Mamba2(mamba) => mamba.output(ctx, mixed),
        }
    }
}

impl<B: Recurrent> DecoderLayer<B> {
    pub fn load(loader: &Loader<'_, B>, config: &DecoderConfig, index: usize, plan: &LayerConfig) -> Result<Self> {
        let DecoderConfig { width, epsilon, norm_weight_offset: offset, .. } = *config;
        let norm = |suffix: &str| Norm::load_rms_norm(loader, &format!("blk.{index}.{suffix}"), width, epsilon, offset);
        let post_norm = |suffix: &str| plan.post_norms.then(|| norm(suffix)).transpose();
        // GGUF files of Qwen 3.5 use the name of transformers.
        let has_other_name = !plan.post_norms && loader.has(&format!("blk.{index}.post_attention_norm"));
        let ffn_norm = if has_other_name { "post_attention_norm" } else { "ffn_norm" };
        Ok(Self {
            attn_norm: norm("attn_norm")?,
            mixer: Mixer::load(loader, config, index, &plan.mixer)?,
            post_attention_norm: post_norm("post_attention_norm")?,
            ffn_norm: norm(ffn_norm)?,
            feed_forward: FeedForward::load(loader, width, index, &plan.feed_forward)?,
            post_ffw_norm: post_norm("post_ffw_norm")?,
            residual_scale: config.residual_scale,
        })
    }

    /// Runs the layer. With `output_tokens` (in ascending order), only these tokens pass through the rest of the layer after the mixer.
    /// `None`: there are no such tokens.
    pub fn forward(
        &self,
        ctx: &Context<'_, B>,
        ResidualStream { mut x, y }: ResidualStream<B>,
        angles: &[Angles<B>],
        output_tokens: Option<&[usize]>,
        state: LayerState<'_, B>,
    ) -> Result<Option<ResidualStream<B>>> {
        let normed = self.mixer_input(ctx, &mut x, &y)?;
        drop(y);
        let mut mixed = self.mixer.forward(ctx, normed, angles, state)?;
        let y = match output_tokens {
            Some([]) => return Ok(None),
            Some(tokens) if tokens.len() < x.rows() => {
                (x, mixed) = (ctx.gather_rows(&x, tokens)?, ctx.gather_rows(&mixed, tokens)?);
                self.finish(&ctx.for_rows(tokens), &mut x, &mixed)?
            }
            _ => self.finish(ctx, &mut x, &mixed)?,
        };
        Ok(Some(ResidualStream { x, y }))
    }

    /// Adds `y` to `x`, and normalizes the sum for the mixer.
    pub fn mixer_input(&self, ctx: &Context<'_, B>, x: &mut Tensor<B>, y: &Tensor<B>) -> Result<Tensor<B>> {
        ctx.add_norm(&self.attn_norm, x, y)
    }

    /// Computes the rest of the layer after the mixer. Adds the mixer's output to `x`, and returns the output of the
    /// feed-forward network.
    pub fn finish(&self, ctx: &Context<'_, B>, x: &mut Tensor<B>, mixed: &Tensor<B>) -> Result<Tensor<B>> {
        let mut y = self.mixer.output(ctx, mixed)?;
        if let Some(norm) = &self.post_attention_norm {
            y = ctx.norm(norm, &y)?;
        }
        self.scale(ctx, &mut y)?;
        let normed = ctx.add_norm(&self.ffn_norm, x, &y)?;
        drop(y);
        let mut y = self.feed_forward.forward(ctx, &normed)?;
        if let Some(norm) = &self.post_ffw_norm {
            y = ctx.norm(norm, &y)?;
        }
        self.scale(ctx, &mut y)?;
        Ok(y)
    }

    fn scale(&self, ctx: &Context<'_, B>, y: &mut Tensor<B>) -> Result<()> {
        match self.residual_scale {
            1. => Ok(()),
            scale => ctx.multiply(y, scale),
        }
    }
}
