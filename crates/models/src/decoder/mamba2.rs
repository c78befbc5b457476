//! The state space of Mamba-2 as the mixer of a decoder layer (Dao and Gu 2024, <https://arxiv.org/abs/2405.21060>).

use std::ops::Range;

use crate::backend::{
    Activation, Backend, Candle, CausalConv, NormKind, Recurrent, StatePart, StateSpace, StateSpaceInputs, Tensor,
};
use crate::decoder_config::{DecoderConfig, Mamba2Config};
use crate::error::{ModelError, Result};
use crate::nn::{Context, GroupedNorm, Linear, NormSpec};
use crate::weights::{Candidate, Loader};

/// `output(norm(state_space(silu(conv(xbc)), steps) · silu(gate)))`, where `gate`, `xbc` and `steps` are projections of the input.
#[derive(Debug)]
pub(super) struct Mamba2<B: Recurrent> {
    /// `gate`, `xbc` and `steps`.
    inputs: [Linear<B>; 3],
    conv: CausalConv<B>,
    space: StateSpace<B>,
    /// The norm of the groups of the output.
    norm: GroupedNorm<B>,
    pub ssm_out: Linear<B>,
}

impl<B: Recurrent> Mamba2<B> {
    pub fn load(loader: &Loader<'_, B>, config: &DecoderConfig, index: usize, plan: &Mamba2Config) -> Result<Self> {
        let DecoderConfig { width, norm: NormSpec { epsilon, .. }, .. } = *config;
        let Mamba2Config { shape, kernel, conv_bias, biases, logarithmic_decay } = *plan;
        let stem = |suffix: &str| format!("blk.{index}.{suffix}");
        let sizes = plan.input_sizes();
        let [gate, xbc, steps] = sizes;
        let input = |first: usize, rows: usize| {
            let fused = Candidate { stem: stem("ssm_in"), first, total: sizes.iter().sum() };
            loader.linear(&[fused], rows, width, biases)
        };
        let inputs = [input(0, gate)?, input(gate, xbc)?, input(gate + xbc, steps)?];
        let decay = load_decay(loader, &stem("ssm_a"), shape.value_heads, logarithmic_decay)?;
        let (bias, skip) = (loader.bias(&stem("ssm_dt"), steps)?, loader.flat_vector(&stem("ssm_d"), steps)?);
        let backend = loader.backend();
        let weights = loader.flat_vector(&stem("ssm_norm"), shape.values_len())?;
        let [decay, bias, skip] = [decay, bias, skip].map(|values| backend.vector(values));
        Ok(Self {
            inputs,
            conv: loader.causal_conv(&stem("ssm_conv1d"), shape.inputs_len(), kernel, conv_bias)?,
            space: StateSpace { shape, decay: decay?, bias: bias?, skip: skip? },
            norm: GroupedNorm::new(backend, weights, shape.key_heads, NormKind::Rms, epsilon)?,
            ssm_out: loader.linear(&[Candidate::whole(stem("ssm_out"), width)], width, shape.values_len(), biases)?,
        })
    }

    /// Continues from the two parts of the sequences' states, and writes the new ones.
    pub fn forward(&self, ctx: &Context<'_, B>, normed: &Tensor<B>, mut states: StatePart<'_, B>) -> Result<Tensor<B>> {
        let [gate, xbc, steps] = self.project(ctx, normed)?;
        let mut convolved = ctx.causal_conv(&self.conv, states.part_after(0), &xbc)?;
        drop(xbc);
        ctx.activate(Activation::Silu, &mut convolved, None)?;
        let inputs = StateSpaceInputs { xbc: &convolved, steps: &steps };
        let out = ctx.state_space(&self.space, states.part_after(1), inputs)?;
        self.gated(ctx, &out, gate)
    }

    fn project(&self, ctx: &Context<'_, B>, normed: &Tensor<B>) -> Result<[Tensor<B>; 3]> {
        let [gate, xbc, steps] = &self.inputs;
        Linear::forward_all(ctx, [gate, xbc, steps], normed)
    }

    fn gated(&self, ctx: &Context<'_, B>, out: &Tensor<B>, mut gate: Tensor<B>) -> Result<Tensor<B>> {
        ctx.activate(Activation::Silu, &mut gate, Some(out))?;
        self.norm.forward(ctx, &gate)
    }
}

/// The decays of heads, which are not positive. With `logarithmic`, the checkpoint has the logarithms of their negatives.
pub(super) fn load_decay<B: Recurrent>(
    loader: &Loader<'_, B>,
    stem: &str,
    heads: usize,
    logarithmic: bool,
) -> Result<Vec<f32>> {
    let mut decay = loader.flat_vector(stem, heads)?;
    if logarithmic {
        decay.iter_mut().for_each(|decay| *decay = -decay.exp());
    }
    match decay.iter().all(|decay| decay.is_finite() && *decay <= 0.) {
        true => Ok(decay),
        false => Err(ModelError::Checkpoint(format!("tensor {stem} has decays that are positive or not finite"))),
    }
}

impl Mamba2<Candle> {
    /// Computes whole texts, without states and with a graph of the operations.
    pub fn forward_texts(
        &self,
        ctx: &Context<'_, Candle>,
        normed: &Tensor<Candle>,
        texts: &[Range<usize>],
    ) -> Result<Tensor<Candle>> {
        let [gate, xbc, steps] = self.project(ctx, normed)?;
        let mut xbc = ctx.text_causal_conv(&self.conv, texts, &xbc)?;
        ctx.activate(Activation::Silu, &mut xbc, None)?;
        let out = ctx.text_state_space(&self.space, texts, &StateSpaceInputs { xbc: &xbc, steps: &steps })?;
        self.gated(ctx, &out, gate)
    }
}
