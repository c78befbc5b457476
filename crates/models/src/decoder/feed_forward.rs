//! The feed-forward network of a decoder layer: dense, or a mixture of experts, or both.

use crate::backend::{Activation, Backend, Norm, Tensor};
use crate::decoder_config::{DecoderConfig, DenseConfig, FeedForwardConfig, MoeConfig, SharedExpertConfig};
use crate::decoder_family;
use crate::error::{ModelError, Result};
use crate::nn::{ChannelFactors, Context, MixtureOfExperts, Mlp, SharedExpert};
use crate::weights::{Candidate, Loader, Role};

#[derive(Debug)]
pub(super) enum FeedForward<B: Backend> {
    Dense(Mlp<B>),
    Sparse(MixtureOfExperts<B>),
    Both(Box<DenseAndExperts<B>>),
}

/// See [`FeedForwardConfig::Both`].
#[derive(Debug)]
pub(super) struct DenseAndExperts<B: Backend> {
    dense: Mlp<B>,
    /// The norm of the output of the dense network.
    dense_post_norm: Norm<B>,
    experts: MixtureOfExperts<B>,
    /// The norms of the inputs of the experts and of their router. The weights of the latter are divided by the square root of the
    /// width.
    experts_norm: Norm<B>,
    router_norm: Norm<B>,
    /// The norm of the output of the experts.
    experts_post_norm: Norm<B>,
}

impl<B: Backend> FeedForward<B> {
    pub fn load(
        loader: &Loader<'_, B>,
        config: &DecoderConfig,
        layer: usize,
        plan: &FeedForwardConfig,
    ) -> Result<Self> {
        let width = config.width;
        Ok(match plan {
            FeedForwardConfig::Dense(plan) => Self::Dense(load_dense(loader, width, layer, plan)?),
            FeedForwardConfig::Sparse(plan) => Self::Sparse(load_mixture(loader, width, layer, plan)?),
            FeedForwardConfig::Both(dense, experts) => {
                let router_norm = format!("blk.{layer}.ffn_gate_inp.scale");
                let router_factor = (width as f32).sqrt().recip();
                let norm = |suffix: &str| Norm::load(loader, &format!("blk.{layer}.{suffix}"), width, config.norm);
                Self::Both(Box::new(DenseAndExperts {
                    dense: load_dense(loader, width, layer, dense)?,
                    dense_post_norm: norm("post_ffw_norm_1")?,
                    experts: load_mixture(loader, width, layer, experts)?,
                    experts_norm: norm("pre_ffw_norm_2")?,
                    router_norm: Norm::load_scaled(loader, &router_norm, width, config.norm, router_factor)?,
                    experts_post_norm: norm("post_ffw_norm_2")?,
                }))
            }
        })
    }

    /// `input`, which is normalized, and the result are `[1, tokens, 1, width]`. `x`: the residual stream.
    pub fn forward(&self, ctx: &Context<'_, B>, input: &Tensor<B>, x: &Tensor<B>) -> Result<Tensor<B>> {
        match self {
            Self::Dense(mlp) => mlp.forward(ctx, input),
            Self::Sparse(experts) => experts.forward(ctx, input),
            Self::Both(both) => both.forward(ctx, input, x),
        }
    }
}

impl<B: Backend> DenseAndExperts<B> {
    fn forward(&self, ctx: &Context<'_, B>, input: &Tensor<B>, x: &Tensor<B>) -> Result<Tensor<B>> {
        let mut out = ctx.norm(&self.dense_post_norm, &self.dense.forward(ctx, input)?)?;
        let [experts_input, router_input] = [ctx.norm(&self.experts_norm, x)?, ctx.norm(&self.router_norm, x)?];
        let of_experts = self.experts.forward_routed(ctx, &experts_input, &router_input)?;
        ctx.add(&mut out, &ctx.norm(&self.experts_post_norm, &of_experts)?)?;
        Ok(out)
    }
}

/// Loads the network of a dense layer.
fn load_dense<B: Backend>(loader: &Loader<'_, B>, width: usize, layer: usize, plan: &DenseConfig) -> Result<Mlp<B>> {
    let DenseConfig { inner, activation, gated } = *plan;
    load_network(loader, layer, "", [width, inner], activation, gated)
}

/// Loads a network whose stems end in `ending`. Its gate and up projections may be one tensor, gate first: Phi-3's GGUF files call it
/// `ffn_up`.
fn load_network<B: Backend>(
    loader: &Loader<'_, B>,
    layer: usize,
    ending: &str,
    [width, inner]: [usize; 2],
    activation: Activation,
    gated: bool,
) -> Result<Mlp<B>> {
    let stem = |suffix: &str| format!("blk.{layer}.ffn_{suffix}{ending}");
    let (gate, up, fused) = (stem("gate"), stem("up"), stem("gate_up"));
    let is_fused_up = || loader.shape(&up).is_ok_and(|shape| shape.first() == Some(&(2 * inner)));
    let fused = match loader.has(&fused) {
        true => Some(fused),
        false if !loader.has(&gate) && is_fused_up() => Some(up.clone()),
        false => None,
    };
    let half = |stem: &str, first: usize| Candidate { stem: stem.to_owned(), first, total: 2 * inner };
    let [gate, up] = match &fused {
        Some(fused) => [half(fused, 0), half(fused, inner)],
        None => [Candidate::whole(gate, inner), Candidate::whole(up, inner)],
    };
    let down = [Candidate::whole(stem("down"), width)];
    let gate = if gated { vec![gate] } else { Vec::new() };
    load_mlp(loader, [&gate, &[up], &down], [width, inner], activation, false)
}

/// Loads a network from the candidates for gate, up and down. It has no gate if there are no candidates for one. With `biased`, it must
/// have biases.
fn load_mlp<B: Backend>(
    loader: &Loader<'_, B>,
    [gate, up, down]: [&[Candidate]; 3],
    [width, inner]: [usize; 2],
    activation: Activation,
    biased: bool,
) -> Result<Mlp<B>> {
    Ok(Mlp {
        gate: (!gate.is_empty()).then(|| loader.linear(gate, inner, width, biased)).transpose()?,
        up: loader.linear(up, inner, width, biased)?,
        down: loader.linear(down, width, inner, biased)?,
        activation,
    })
}

fn load_mixture<B: Backend>(
    loader: &Loader<'_, B>,
    width: usize,
    layer: usize,
    plan: &MoeConfig,
) -> Result<MixtureOfExperts<B>> {
    let MoeConfig { count, activation, gated, routing, selection_bias, biases, shared: shared_plan, .. } = *plan;
    // A rounded score may select another expert.
    let router = loader.precise(&format!("blk.{layer}.ffn_gate_inp"), count, width, biases)?;
    let bias = || loader.bias(&format!("blk.{layer}.exp_probs_b"), count);
    let experts = (0..count).map(|expert| load_expert(loader, width, layer, plan, expert));
    let gate = || loader.precise(&format!("blk.{layer}.ffn_gate_inp_shexp"), 1, width, false);
    let shared = |SharedExpertConfig { inner, kind }| {
        let mlp = load_network(loader, layer, "_shexp", [width, inner], activation, gated)?;
        let gate = (kind == decoder_family::SharedExpert::Gated).then(gate).transpose()?;
        Ok::<_, ModelError>(SharedExpert { mlp, gate, is_averaged: kind == decoder_family::SharedExpert::Averaged })
    };
    let scales = loader.optional_vector(&format!("blk.{layer}.ffn_down_exps.scale"), Role::Weight, count)?;
    let scales = scales.map(|scales| ChannelFactors::new(loader.backend(), &scales));
    Ok(MixtureOfExperts {
        router,
        routing,
        selection_bias: selection_bias.then(bias).transpose()?,
        expert_scales: scales.transpose()?,
        experts: experts.collect::<Result<_>>()?,
        shared: shared_plan.map(shared).transpose()?,
    })
}

/// Loads an expert from tensors of its own, or from its rows of the tensors that hold all experts.
fn load_expert<B: Backend>(
    loader: &Loader<'_, B>,
    width: usize,
    layer: usize,
    plan: &MoeConfig,
    expert: usize,
) -> Result<Mlp<B>> {
    let MoeConfig { count, inner, activation, gated, biases, .. } = *plan;
    let candidates = |suffix: &str, rows: usize| {
        let stacked =
            Candidate { stem: format!("blk.{layer}.ffn_{suffix}_exps"), first: expert * rows, total: count * rows };
        [stacked, Candidate::whole(format!("blk.{layer}.ffn_{suffix}.{expert}"), rows)]
    };
    let fused = |offset: usize| Candidate {
        stem: format!("blk.{layer}.ffn_gate_up_exps"),
        first: (2 * expert + offset) * inner,
        total: 2 * count * inner,
    };
    let with_fused = |[stacked, own]: [Candidate; 2], offset: usize| [stacked, own, fused(offset)];
    let gate = with_fused(candidates("gate", inner), 0);
    let up = with_fused(candidates("up", inner), 1);
    let gate: &[Candidate] = if gated { &gate } else { &[] };
    load_mlp(loader, [gate, &up, &candidates("down", width)], [width, inner], activation, biases)
}
