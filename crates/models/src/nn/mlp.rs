//! Feed-forward networks with a gate (GLU: Shazeer 2020, <https://arxiv.org/abs/2002.05202>) or without.

use super::context::Context;
use super::linear::Linear;
use crate::backend::{Activation, Backend, FeedForward, Tensor};
use crate::error::Result;

/// `down(activation(gate(x)) · up(x))`, or `down(activation(up(x)))` without a gate.
#[derive(Debug)]
pub(crate) struct Mlp<B: Backend> {
    pub gate: Option<Linear<B>>,
    pub up: Linear<B>,
    pub down: Linear<B>,
    pub activation: Activation,
}

impl<B: Backend> Mlp<B> {
    pub fn forward(&self, ctx: &Context<'_, B>, x: &Tensor<B>) -> Result<Tensor<B>> {
        match self.has_lora(ctx) {
            true => self.forward_with_lora(ctx, x),
            false => ctx.feed_forward(self.network(), x),
        }
    }

    /// Whether an adapter of the computation changes one of its layers.
    fn has_lora(&self, ctx: &Context<'_, B>) -> bool {
        let layers = [self.gate.as_ref(), Some(&self.up), Some(&self.down)];
        layers.into_iter().flatten().any(|layer| ctx.lora().has(layer.id()))
    }

    /// Its weights.
    pub fn network(&self) -> FeedForward<'_, B> {
        let Self { gate, up, down, activation } = self;
        let gate = gate.as_ref().map(Linear::weight);
        FeedForward { gate, up: up.weight(), down: down.weight(), activation: *activation }
    }

    /// Layer by layer, to add the deltas of each. Computes some rows at a time, because the hidden layer is wide, unless
    /// deltas depend on the row.
    fn forward_with_lora(&self, ctx: &Context<'_, B>, x: &Tensor<B>) -> Result<Tensor<B>> {
        if x.rows() <= B::LORA_ROWS || ctx.lora().are_by_row() {
            return self.forward_layers(ctx, x);
        }
        let mut out = ctx.zeros([x.images, x.size[0], x.size[1], self.down.rows()])?;
        for first in (0..x.rows()).step_by(B::LORA_ROWS) {
            let x = ctx.rows(x, first..x.rows().min(first + B::LORA_ROWS))?;
            ctx.write_rows(&mut out, first, &self.forward_layers(ctx, &x)?)?;
        }
        Ok(out)
    }

    fn forward_layers(&self, ctx: &Context<'_, B>, x: &Tensor<B>) -> Result<Tensor<B>> {
        let hidden = match &self.gate {
            Some(gate) => {
                let [mut gate, up] = Linear::forward_all(ctx, [gate, &self.up], x)?;
                ctx.activate(self.activation, &mut gate, Some(&up))?;
                gate
            }
            None => {
                let mut up = self.up.forward(ctx, x)?;
                ctx.activate(self.activation, &mut up, None)?;
                up
            }
        };
        self.down.forward(ctx, &hidden)
    }
}
