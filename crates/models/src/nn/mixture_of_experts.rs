//! Sparse mixtures of experts: a router selects a few feed-forward networks for each token (Shazeer et al. 2017,
//! <https://arxiv.org/abs/1701.06538>; Mixtral: Jiang et al. 2024, <https://arxiv.org/abs/2401.04088>).

use super::context::Context;
use super::linear::Linear;
use super::mlp::Mlp;
use crate::backend::{Backend, RoutedTokens, Routing, Tensor};
use crate::error::Result;

#[derive(Debug)]
pub(crate) struct MixtureOfExperts<B: Backend> {
    pub router: Linear<B>,
    pub experts: Vec<Mlp<B>>,
    pub routing: Routing,
}

impl<B: Backend> MixtureOfExperts<B> {
    /// `x` and the result are `[1, tokens, 1, width]`. Tokens are gathered by expert, so that each weight is read once.
    pub fn forward(&self, ctx: &Context<'_, B>, x: &Tensor<B>) -> Result<Tensor<B>> {
        let RoutedTokens { weights, tokens } = ctx.route(self.routing, self.router.forward(ctx, x)?)?;
        let mut out = ctx.zeros(x.shape())?;
        for (index, (expert, tokens)) in self.experts.iter().zip(&tokens).enumerate() {
            if !tokens.is_empty() {
                let y = expert.forward(ctx, &ctx.gather_rows(x, tokens)?)?;
                ctx.add_expert(&mut out, &y, tokens, &weights, index)?;
            }
        }
        Ok(out)
    }
}
