//! The feed-forward network of a decoder layer: dense, or a mixture of experts.

use crate::backend::{Backend, Routing, Tensor};
use crate::decoder_config::{DecoderConfig, MoeConfig};
use crate::error::Result;
use crate::nn::{Context, MixtureOfExperts, Mlp};
use crate::weights::{Candidate, Loader};

#[derive(Debug)]
pub(super) enum FeedForward<B: Backend> {
    Dense(Mlp<B>),
    Sparse(MixtureOfExperts<B>),
}

impl<B: Backend> FeedForward<B> {
    pub fn load(loader: &Loader<'_, B>, config: &DecoderConfig, layer: usize, sparse: bool) -> Result<Self> {
        match &config.experts {
            Some(sizes) if sparse => load_mixture(loader, config, sizes, layer).map(Self::Sparse),
            _ => load_dense(loader, config, layer).map(Self::Dense),
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
fn load_dense<B: Backend>(loader: &Loader<'_, B>, config: &DecoderConfig, layer: usize) -> Result<Mlp<B>> {
    let inner = config.inner;
    let stem = |suffix: &str| format!("blk.{layer}.{suffix}");
    let whole = |suffix: &str| [stem(suffix), stem(suffix)].map(|stem| Candidate::whole(stem, inner));
    let half = |suffix: &str, first: usize| Candidate { stem: stem(suffix), first, total: 2 * inner };
    let (gate, up) = match config.family.fused_gate_up {
        true => ([half("ffn_gate_up", 0), half("ffn_up", 0)], [half("ffn_gate_up", inner), half("ffn_up", inner)]),
        false => (whole("ffn_gate"), whole("ffn_up")),
    };
    load_mlp(loader, config, [&gate, &up, &[Candidate::whole(stem("ffn_down"), config.width)]], inner)
}

/// Loads a network from the candidates for gate, up and down.
fn load_mlp<B: Backend>(
    loader: &Loader<'_, B>,
    config: &DecoderConfig,
    [gate, up, down]: [&[Candidate]; 3],
    inner: usize,
) -> Result<Mlp<B>> {
    Ok(Mlp {
        gate: Some(loader.linear(gate, inner, config.width, false)?),
        up: loader.linear(up, inner, config.width, false)?,
        down: loader.linear(down, config.width, inner, false)?,
        activation: config.activation,
    })
}

fn load_mixture<B: Backend>(
    loader: &Loader<'_, B>,
    config: &DecoderConfig,
    sizes: &MoeConfig,
    layer: usize,
) -> Result<MixtureOfExperts<B>> {
    let router = [Candidate::whole(format!("blk.{layer}.ffn_gate_inp"), sizes.count)];
    let router = loader.linear(&router, sizes.count, config.width, false)?;
    let experts = (0..sizes.count).map(|expert| load_expert(loader, config, sizes, layer, expert));
    Ok(MixtureOfExperts {
        router,
        experts: experts.collect::<Result<_>>()?,
        routing: Routing { experts_per_token: sizes.experts_per_token, normalise_weights: sizes.normalise_weights },
    })
}

/// Loads an expert from tensors of its own, or from its rows of the tensors that hold all experts.
fn load_expert<B: Backend>(
    loader: &Loader<'_, B>,
    config: &DecoderConfig,
    sizes: &MoeConfig,
    layer: usize,
    expert: usize,
) -> Result<Mlp<B>> {
    let candidates = |suffix: &str, rows: usize| {
        let stacked = Candidate {
            stem: format!("blk.{layer}.ffn_{suffix}_exps"),
            first: expert * rows,
            total: sizes.count * rows,
        };
        [stacked, Candidate::whole(format!("blk.{layer}.ffn_{suffix}.{expert}"), rows)]
    };
    let fused = |offset: usize| Candidate {
        stem: format!("blk.{layer}.ffn_gate_up_exps"),
        first: (2 * expert + offset) * sizes.inner,
        total: 2 * sizes.count * sizes.inner,
    };
    let with_fused = |[stacked, own]: [Candidate; 2], offset: usize| [stacked, own, fused(offset)];
    let gate = with_fused(candidates("gate", sizes.inner), 0);
    let up = with_fused(candidates("up", sizes.inner), 1);
    load_mlp(loader, config, [&gate, &up, &candidates("down", config.width)], sizes.inner)
}
