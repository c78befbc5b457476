//! The feed-forward network of a decoder layer: dense, or a mixture of experts.

use crate::backend::{Activation, Backend, Tensor};
use crate::decoder_config::{DenseConfig, FeedForwardConfig, MoeConfig};
use crate::error::Result;
use crate::nn::{Context, MixtureOfExperts, Mlp, SharedExpert};
use crate::weights::{Candidate, Loader};

#[derive(Debug)]
pub(super) enum FeedForward<B: Backend> {
    Dense(Mlp<B>),
    Sparse(MixtureOfExperts<B>),
}

impl<B: Backend> FeedForward<B> {
    /// `width`: elements of the residual stream.
    pub fn load(loader: &Loader<'_, B>, width: usize, layer: usize, plan: &FeedForwardConfig) -> Result<Self> {
        match plan {
            FeedForwardConfig::Dense(plan) => load_dense(loader, width, layer, plan).map(Self::Dense),
            FeedForwardConfig::Sparse(plan) => load_mixture(loader, width, layer, plan).map(Self::Sparse),
        }
    }

    /// `x` and the result are `[1, tokens, 1, width]`.
    pub fn forward(&self, ctx: &Context<'_, B>, x: &Tensor<B>) -> Result<Tensor<B>> {
        match self {
            Self::Dense(mlp) => mlp.forward(ctx, x),
            Self::Sparse(experts) => experts.forward(ctx, x),
        }
    }
}

/// Loads the network of a dense layer. Phi-3 fuses the gate and up projections in one tensor, gate first, which GGUF
/// calls `ffn_up`.
fn load_dense<B: Backend>(loader: &Loader<'_, B>, width: usize, layer: usize, plan: &DenseConfig) -> Result<Mlp<B>> {
    let DenseConfig { inner, activation, fused_gate_up } = *plan;
    let stem = |suffix: &str| format!("blk.{layer}.{suffix}");
    let whole = |suffix: &str| [stem(suffix), stem(suffix)].map(|stem| Candidate::whole(stem, inner));
    let half = |suffix: &str, first: usize| Candidate { stem: stem(suffix), first, total: 2 * inner };
    let (gate, up) = match fused_gate_up {
        true => ([half("ffn_gate_up", 0), half("ffn_up", 0)], [half("ffn_gate_up", inner), half("ffn_up", inner)]),
        false => (whole("ffn_gate"), whole("ffn_up")),
    };
    let down = [Candidate::whole(stem("ffn_down"), width)];
    load_mlp(loader, [&gate, &up, &down], [width, inner], activation)
}

/// Loads a network from the candidates for gate, up and down.
fn load_mlp<B: Backend>(
    loader: &Loader<'_, B>,
    [gate, up, down]: [&[Candidate]; 3],
    [width, inner]: [usize; 2],
    activation: Activation,
) -> Result<Mlp<B>> {
    Ok(Mlp {
        gate: Some(loader.linear(gate, inner, width, false)?),
        up: loader.linear(up, inner, width, false)?,
        down: loader.linear(down, width, inner, false)?,
        activation,
    })
}

fn load_mixture<B: Backend>(
    loader: &Loader<'_, B>,
    width: usize,
    layer: usize,
    plan: &MoeConfig,
) -> Result<MixtureOfExperts<B>> {
    let MoeConfig { count, activation, routing, selection_bias, shared_inner, .. } = *plan;
    let router = [Candidate::whole(format!("blk.{layer}.ffn_gate_inp"), count)];
    let router = loader.linear(&router, count, width, false)?;
    let bias = || loader.bias(&format!("blk.{layer}.exp_probs_b"), count);
    let experts = (0..count).map(|expert| load_expert(loader, width, layer, plan, expert));
    let shared = || shared_inner.map(|inner| load_shared_expert(loader, [width, inner], layer, activation)).transpose();
    Ok(MixtureOfExperts {
        router,
        routing,
        selection_bias: selection_bias.then(bias).transpose()?,
        experts: experts.collect::<Result<_>>()?,
        shared: shared()?,
    })
}

fn load_shared_expert<B: Backend>(
    loader: &Loader<'_, B>,
    [width, inner]: [usize; 2],
    layer: usize,
    activation: Activation,
) -> Result<SharedExpert<B>> {
    let stem = |suffix: &str| format!("blk.{layer}.ffn_{suffix}_shexp");
    let projection = |suffix: &str, rows: usize| [Candidate::whole(stem(suffix), rows)];
    let [gate, up, down] = [projection("gate", inner), projection("up", inner), projection("down", width)];
    let mlp = load_mlp(loader, [&gate, &up, &down], [width, inner], activation)?;
    Ok(SharedExpert { mlp, gate: loader.row(&stem("gate_inp"), width)? })
}

/// Loads an expert from tensors of its own, or from its rows of the tensors that hold all experts.
fn load_expert<B: Backend>(
    loader: &Loader<'_, B>,
    width: usize,
    layer: usize,
    plan: &MoeConfig,
    expert: usize,
) -> Result<Mlp<B>> {
    let MoeConfig { count, inner, activation, .. } = *plan;
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
    load_mlp(loader, [&gate, &up, &candidates("down", width)], [width, inner], activation)
}
