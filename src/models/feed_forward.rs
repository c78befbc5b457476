//! What follows attention in a block: a network with a gate (Shazeer 2020, <https://arxiv.org/abs/2002.05202>) or
//! without, or experts of that kind.

use outpost_kernels::Pool;

use super::decoder_config::DecoderConfig;
use super::error::Result;
use super::mixture_of_experts::MixtureOfExperts;
use super::mlp::Mlp;
use super::weights::Loader;

#[derive(Debug)]
pub(super) enum FeedForward {
    Dense(Mlp),
    Sparse(MixtureOfExperts),
}

impl FeedForward {
    pub fn load(loader: &Loader<'_>, config: &DecoderConfig, block: usize, sparse: bool) -> Result<Self> {
        match &config.experts {
            Some(sizes) if sparse => MixtureOfExperts::load(loader, config, sizes, block).map(Self::Sparse),
            _ => Mlp::dense(loader, config, block).map(Self::Dense),
        }
    }

    /// `x` and `out`: `[m, width]`; `buffers`: of no meaning before and after.
    pub fn forward(
        &self,
        pool: &Pool,
        x: &[f32],
        m: usize,
        buffers: [&mut Vec<f32>; 2],
        out: &mut [f32],
    ) -> Result<()> {
        match self {
            Self::Dense(mlp) => mlp.forward(pool, x, m, buffers, out),
            Self::Sparse(experts) => experts.forward(pool, x, m, buffers, out),
        }
    }
}
