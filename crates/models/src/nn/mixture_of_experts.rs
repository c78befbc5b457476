//! Sparse mixtures of experts: a router selects a few feed-forward networks for each token (Shazeer et al. 2017,
//! <https://arxiv.org/abs/1701.06538>; Mixtral: Jiang et al. 2024, <https://arxiv.org/abs/2401.04088>). One more network may
//! compute every token (DeepSeekMoE: Dai et al. 2024, <https://arxiv.org/abs/2401.06066>).

use super::channel_factors::ChannelFactors;
use super::context::Context;
use super::linear::Linear;
use super::mlp::Mlp;
use crate::backend::{Activation, Backend, RoutedExpert, RoutedTokens, Routing, Tensor};
use crate::error::Result;

#[derive(Debug)]
pub(crate) struct MixtureOfExperts<B: Backend> {
    pub router: Linear<B>,
    pub routing: Routing,
    /// A number for each expert; see [`Routing::select`].
    pub selection_bias: Option<Vec<f32>>,
    /// Factors of the weights of experts.
    pub expert_scales: Option<ChannelFactors<B>>,
    pub experts: Vec<Mlp<B>>,
    pub shared: Option<SharedExpert<B>>,
}

/// An expert that computes every token.
#[derive(Debug)]
pub(crate) struct SharedExpert<B: Backend> {
    pub mlp: Mlp<B>,
    /// Projects a token to one number. Its sigmoid is the weight of the expert, which is one without a gate.
    pub gate: Option<Linear<B>>,
    /// The output of the mixture is the mean of that of this expert and that of the others.
    pub is_averaged: bool,
}

impl<B: Backend> MixtureOfExperts<B> {
    /// `x` and the result are `[1, tokens, 1, width]`. Tokens are gathered by expert, so that each weight is read once.
    pub fn forward(&self, ctx: &Context<'_, B>, x: &Tensor<B>) -> Result<Tensor<B>> {
        self.forward_routed(ctx, x, x)
    }

    /// The router has an input of its own.
    pub fn forward_routed(&self, ctx: &Context<'_, B>, x: &Tensor<B>, router_input: &Tensor<B>) -> Result<Tensor<B>> {
        let scores = self.router.forward(ctx, router_input)?;
        let RoutedTokens { mut weights, tokens } = ctx.route(&self.routing, self.selection_bias.as_deref(), scores)?;
        if let Some(scales) = &self.expert_scales {
            scales.multiply(ctx, &mut weights)?;
        }
        let mut out = ctx.zeros(x.shape())?;
        // Adapters cannot target experts.
        let experts = self.experts.iter().zip(&tokens).enumerate().filter(|(_, (_, tokens))| !tokens.is_empty());
        let experts =
            experts.map(|(index, (expert, tokens))| RoutedExpert { index, network: expert.network(), tokens });
        ctx.add_experts(&mut out, &experts.collect::<Vec<_>>(), x, &weights)?;
        if let Some(shared) = &self.shared {
            shared.add_to(ctx, &mut out, x)?;
            if shared.is_averaged {
                ctx.multiply(&mut out, 0.5)?;
            }
        }
        Ok(out)
    }
}

impl<B: Backend> SharedExpert<B> {
    fn add_to(&self, ctx: &Context<'_, B>, out: &mut Tensor<B>, x: &Tensor<B>) -> Result<()> {
        let y = self.mlp.forward(ctx, x)?;
        let Some(gate) = &self.gate else { return ctx.add(out, &y) };
        let mut weights = gate.forward(ctx, x)?;
        ctx.activate(Activation::Sigmoid, &mut weights, None)?;
        let tokens: Vec<usize> = (0..x.rows()).collect();
        ctx.add_expert(out, &y, &tokens, &weights, 0)
    }
}
