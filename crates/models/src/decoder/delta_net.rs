//! Gated delta networks as the mixer of a decoder layer (Yang et al. 2024, <https://arxiv.org/abs/2412.06464>), in the form of Qwen
//! 3.5.

use std::ops::Range;

use super::mamba2::load_decay;
use crate::backend::{
    Activation, Backend, Candle, CausalConv, DeltaRule, DeltaRuleInputs, Norm, RecurrenceShape, Recurrent, StatePart,
    Tensor,
};
use crate::decoder_config::{DecoderConfig, DeltaNetConfig};
use crate::error::Result;
use crate::nn::{Context, Linear, NormSpec};
use crate::weights::{Candidate, Loader};

/// `output(norm(delta_rule(silu(conv(qkv)), a, b)) · silu(gate))`, where `qkv`, `gate`, `a` and `b` are projections of the input.
#[derive(Debug)]
pub(super) struct DeltaNet<B: Recurrent> {
    attn_qkv: Linear<B>,
    attn_gate: Linear<B>,
    ssm_alpha: Linear<B>,
    ssm_beta: Linear<B>,
    conv: CausalConv<B>,
    rule: DeltaRule<B>,
    /// The norm of each head's output.
    ssm_norm: Norm<B>,
    pub ssm_out: Linear<B>,
}

/// The projections of the input.
struct Projected<B: Recurrent> {
    qkv: Tensor<B>,
    gate: Tensor<B>,
    a: Tensor<B>,
    b: Tensor<B>,
}

impl<B: Recurrent> DeltaNet<B> {
    pub fn load(loader: &Loader<'_, B>, config: &DecoderConfig, index: usize, plan: &DeltaNetConfig) -> Result<Self> {
        let DecoderConfig { width, norm: NormSpec { epsilon, .. }, .. } = *config;
        let DeltaNetConfig { shape, kernel, logarithmic_decay } = *plan;
        let stem = |suffix: &str| format!("blk.{index}.{suffix}");
        let backend = loader.backend();
        let decay = load_decay(loader, &stem("ssm_a"), shape.value_heads, logarithmic_decay)?;
        let bias = loader.bias(&stem("ssm_dt"), shape.value_heads)?;
        let [attn_qkv, attn_gate, ssm_alpha, ssm_beta] = load_projections(loader, width, index, &shape)?;
        let output = Candidate::whole(stem("ssm_out"), width);
        Ok(Self {
            attn_qkv,
            attn_gate,
            ssm_alpha,
            ssm_beta,
            conv: loader.causal_conv(&stem("ssm_conv1d"), shape.inputs_len(), kernel, false)?,
            rule: DeltaRule { shape, decay: backend.vector(decay)?, bias: backend.vector(bias)? },
            ssm_norm: Norm::load_rms_norm(loader, &stem("ssm_norm"), shape.value_width, epsilon, 0.)?,
            ssm_out: loader.linear(&[output], width, shape.values_len(), false)?,
        })
    }

    /// Continues from the two parts of the sequences' states, and writes the new ones.
    pub fn forward(&self, ctx: &Context<'_, B>, normed: &Tensor<B>, mut states: StatePart<'_, B>) -> Result<Tensor<B>> {
        let Projected { qkv, gate, a, b } = self.project(ctx, normed)?;
        let mut convolved = ctx.causal_conv(&self.conv, states.part_after(0), &qkv)?;
        drop(qkv);
        ctx.activate(Activation::Silu, &mut convolved, None)?;
        let inputs = DeltaRuleInputs { qkv: convolved, a: &a, b: &b };
        let out = ctx.delta_rule(&self.rule, states.part_after(1), inputs)?;
        self.gated(ctx, &out, gate)
    }

    fn project(&self, ctx: &Context<'_, B>, normed: &Tensor<B>) -> Result<Projected<B>> {
        let projections = [&self.attn_qkv, &self.attn_gate, &self.ssm_alpha, &self.ssm_beta];
        let [qkv, gate, a, b] = Linear::forward_all(ctx, projections, normed)?;
        Ok(Projected { qkv, gate, a, b })
    }

    fn gated(&self, ctx: &Context<'_, B>, out: &Tensor<B>, mut gate: Tensor<B>) -> Result<Tensor<B>> {
        let normed = ctx.norm(&self.ssm_norm, out)?;
        ctx.activate(Activation::Silu, &mut gate, Some(&normed))?;
        Ok(gate)
    }
}

/// Loads the projections of the input: queries with keys and values, gate, `a` and `b`. In checkpoints of Qwen3-Next, `ssm_in`
/// has for each head of keys its query, its key, and the values and gates of its heads of values, and `ssm_ba` their `b` and `a`.
fn load_projections<B: Recurrent>(
    loader: &Loader<'_, B>,
    width: usize,
    index: usize,
    shape: &RecurrenceShape,
) -> Result<[Linear<B>; 4]> {
    let RecurrenceShape { key_heads, value_heads, key_width, value_width, .. } = *shape;
    let stem = |suffix: &str| format!("blk.{index}.{suffix}");
    let whole = |suffix: &str, rows: usize| loader.linear(&[Candidate::whole(stem(suffix), rows)], rows, width, false);
    let (shared, values) = (value_heads / key_heads, value_heads / key_heads * value_width);
    // The rows of a part of each head of keys.
    let parts = |of_head: usize, first: usize, rows: usize| -> Vec<Range<usize>> {
        let starts = (0..key_heads).map(|head| head * of_head + first);
        starts.map(|start| start..start + rows).collect()
    };
    let of_head = 2 * (key_width + values);
    let part = |first: usize, rows: usize| parts(of_head, first, rows);
    let input = |parts: &[Range<usize>]| loader.gathered(&stem("ssm_in"), parts, [key_heads * of_head, width]);
    let [qkv, gate] = match loader.has(&stem("ssm_in")) {
        true => {
            let qkv = [part(0, key_width), part(key_width, key_width), part(2 * key_width, values)].concat();
            [input(&qkv)?, input(&part(2 * key_width + values, values))?]
        }
        false => [whole("attn_qkv", shape.inputs_len())?, whole("attn_gate", shape.values_len())?],
    };
    let scalars =
        |first: usize| loader.gathered(&stem("ssm_ba"), &parts(2 * shared, first, shared), [2 * value_heads, width]);
    let [alpha, beta] = match loader.has(&stem("ssm_ba")) {
        true => [scalars(shared)?, scalars(0)?],
        false => [whole("ssm_alpha", value_heads)?, whole("ssm_beta", value_heads)?],
    };
    Ok([qkv, gate, alpha, beta])
}

impl DeltaNet<Candle> {
    /// Computes whole texts, without states and with a graph of the operations.
    pub fn forward_texts(
        &self,
        ctx: &Context<'_, Candle>,
        normed: &Tensor<Candle>,
        texts: &[Range<usize>],
    ) -> Result<Tensor<Candle>> {
        let Projected { qkv, gate, a, b } = self.project(ctx, normed)?;
        let mut qkv = ctx.text_causal_conv(&self.conv, texts, &qkv)?;
        ctx.activate(Activation::Silu, &mut qkv, None)?;
        let out = ctx.text_delta_rule(&self.rule, texts, &DeltaRuleInputs { qkv, a: &a, b: &b })?;
        self.gated(ctx, &out, gate)
    }
}
