//! Sparse mixtures of experts: a router selects a few feed-forward networks for each token (Shazeer et al. 2017,
//! <https://arxiv.org/abs/1701.06538>; Mixtral: Jiang et al. 2024, <https://arxiv.org/abs/2401.04088>).

use super::context::Context;
use super::linear::Linear;
use super::mlp::Mlp;
use crate::models::backend::{Backend, Tensor};
use crate::models::error::Result;

#[derive(Debug)]
pub(in crate::models) struct MixtureOfExperts<B: Backend> {
    pub router: Linear<B>,
    pub experts: Vec<Mlp<B>>,
    pub experts_per_token: usize,
    /// Whether the weights of the selected experts are scaled to a sum of one.
    pub normalise_weights: bool,
}

impl<B: Backend> MixtureOfExperts<B> {
    /// `x` and the result are `[1, tokens, 1, width]`. Tokens are gathered by expert, so that each weight is read once.
    pub fn forward(&self, ctx: &Context<'_, B>, x: &Tensor<B>) -> Result<Tensor<B>> {
        let mut scores = ctx.download(self.router.forward(ctx, x)?)?;
        let mut tokens_of: Vec<Vec<(usize, f32)>> = vec![Vec::new(); self.experts.len()];
        for (token, scores) in scores.chunks_exact_mut(self.experts.len().max(1)).take(x.rows()).enumerate() {
            softmax(scores);
            for (expert, weight) in self.select_experts(scores) {
                tokens_of[expert].push((token, weight));
            }
        }
        ctx.recycle(scores);
        let mut out = ctx.zeros(x.shape())?;
        for (expert, tokens) in self.experts.iter().zip(tokens_of).filter(|(_, tokens)| !tokens.is_empty()) {
            let rows: Vec<usize> = tokens.iter().map(|(token, _)| *token).collect();
            let y = expert.forward(ctx, &ctx.gather_rows(x, &rows)?)?;
            ctx.add_scaled_rows(&mut out, &tokens, &y)?;
        }
        Ok(out)
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
