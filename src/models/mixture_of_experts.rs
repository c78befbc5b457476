//! Sparse mixtures of experts: a router selects a few feed-forward networks for each token (Shazeer et al. 2017,
//! <https://arxiv.org/abs/1701.06538>; Mixtral: Jiang et al. 2024, <https://arxiv.org/abs/2401.04088>).

use outpost_kernels::Pool;

use super::decoder_config::{DecoderConfig, MoeConfig};
use super::error::Result;
use super::linear::Linear;
use super::mlp::Mlp;
use super::weights::{Candidate, Loader};

#[derive(Debug)]
pub(super) struct MixtureOfExperts {
    router: Linear,
    experts: Vec<Mlp>,
    experts_per_token: usize,
    /// Whether the weights of the selected experts are scaled to a sum of one.
    normalise_weights: bool,
}

impl MixtureOfExperts {
    pub fn load(loader: &Loader<'_>, config: &DecoderConfig, sizes: &MoeConfig, layer: usize) -> Result<Self> {
        let router = [Candidate::whole(format!("blk.{layer}.ffn_gate_inp"), sizes.count)];
        let router = loader.linear(&router, sizes.count, config.width, false)?;
        let experts = (0..sizes.count).map(|expert| load_expert(loader, config, sizes, layer, expert));
        let experts = experts.collect::<std::result::Result<_, _>>()?;
        Ok(Self {
            router,
            experts,
            experts_per_token: sizes.experts_per_token,
            normalise_weights: sizes.normalise_weights,
        })
    }

    /// `x` and `out` are `[m, width]`; `buffers` are scratch space. Tokens are gathered by expert, so that each weight is
    /// read once.
    pub fn forward(
        &self,
        pool: &Pool,
        x: &[f32],
        m: usize,
        buffers: [&mut Vec<f32>; 2],
        out: &mut [f32],
    ) -> Result<()> {
        let width = x.len() / m.max(1);
        let [gate, up] = buffers;
        let mut scores = vec![0.; m * self.experts.len()];
        self.router.forward(pool, x, m, &mut scores)?;
        let mut tokens_of: Vec<Vec<(usize, f32)>> = vec![Vec::new(); self.experts.len()];
        for (token, scores) in scores.chunks_exact_mut(self.experts.len().max(1)).enumerate() {
            softmax(scores);
            for (expert, weight) in self.select_experts(scores) {
                tokens_of[expert].push((token, weight));
            }
        }
        out.fill(0.);
        let (mut inputs, mut outputs) = (Vec::new(), Vec::new());
        for (expert, tokens) in self.experts.iter().zip(tokens_of).filter(|(_, tokens)| !tokens.is_empty()) {
            inputs.clear();
            for (token, _) in &tokens {
                inputs.extend_from_slice(&x[token * width..(token + 1) * width]);
            }
            outputs.resize(inputs.len(), 0.);
            expert.forward(pool, &inputs, tokens.len(), [&mut *gate, &mut *up], &mut outputs)?;
            for ((token, weight), y) in tokens.iter().zip(outputs.chunks_exact(width)) {
                let sum = &mut out[token * width..(token + 1) * width];
                sum.iter_mut().zip(y).for_each(|(sum, y)| *sum += y * weight);
            }
        }
        Ok(())
    }

    /// The experts with the largest weights, and their weights. Of equal weights, the expert with the lower index comes
    /// first.
    fn select_experts(&self, weights: &[f32]) -> Vec<(usize, f32)> {
        let mut selected: Vec<(usize, f32)> = weights.iter().copied().enumerate().collect();
        selected.sort_by(|(_, a), (_, b)| b.total_cmp(a));
        selected.truncate(self.experts_per_token);
        let total: f32 = selected.iter().map(|(_, weight)| weight).sum();
        if self.normalise_weights {
            selected.iter_mut().for_each(|(_, weight)| *weight /= total);
        }
        selected
    }
}

/// Softmax in place.
fn softmax(scores: &mut [f32]) {
    let max = scores.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    scores.iter_mut().for_each(|score| *score = (*score - max).exp());
    let total: f32 = scores.iter().sum();
    scores.iter_mut().for_each(|score| *score /= total);
}

/// Loads an expert from tensors of its own, or from its rows of the tensors that hold all experts.
fn load_expert(
    loader: &Loader<'_>,
    config: &DecoderConfig,
    sizes: &MoeConfig,
    layer: usize,
    expert: usize,
) -> Result<Mlp> {
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
    Mlp::load(loader, config, [&gate, &up, &candidates("down", config.width)], sizes.inner)
}
