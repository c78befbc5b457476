//! The gated short convolution as the mixer of a decoder layer (LFM2: Liquid AI 2025, <https://arxiv.org/abs/2511.23404>).

use std::ops::Range;

use crate::backend::{Candle, CausalConv, Recurrent, StatePart, Tensor};
use crate::decoder_config::ShortConvConfig;
use crate::error::Result;
use crate::nn::{Context, Linear};
use crate::weights::{Candidate, Loader};

/// `output(c · conv(b · x))`, where `b`, `c` and `x` are projections of the input.
#[derive(Debug)]
pub(super) struct ShortConv<B: Recurrent> {
    /// `b`, `c` and `x`.
    inputs: [Linear<B>; 3],
    conv: CausalConv<B>,
    pub output: Linear<B>,
}

impl<B: Recurrent> ShortConv<B> {
    /// `width`: elements of the residual stream.
    pub fn load(loader: &Loader<'_, B>, width: usize, index: usize, plan: &ShortConvConfig) -> Result<Self> {
        let ShortConvConfig { kernel, biases } = *plan;
        let stem = |suffix: &str| format!("blk.{index}.shortconv.{suffix}");
        let input = |part: usize| {
            let fused = Candidate { stem: stem("in_proj"), first: part * width, total: 3 * width };
            loader.linear(&[fused], width, width, biases)
        };
        let conv = loader.causal_conv(&stem("conv"), width, kernel, biases)?;
        let output = loader.linear(&[Candidate::whole(stem("out_proj"), width)], width, width, biases)?;
        Ok(Self { inputs: [input(0)?, input(1)?, input(2)?], conv, output })
    }

    /// Continues from the sequences' states, and writes the new ones.
    pub fn forward(&self, ctx: &Context<'_, B>, normed: &Tensor<B>, states: StatePart<'_, B>) -> Result<Tensor<B>> {
        self.gated(ctx, normed, |x| ctx.causal_conv(&self.conv, states, x))
    }

    fn gated(
        &self,
        ctx: &Context<'_, B>,
        normed: &Tensor<B>,
        convolve: impl FnOnce(&Tensor<B>) -> Result<Tensor<B>>,
    ) -> Result<Tensor<B>> {
        let [b, c, x] = &self.inputs;
        let [b, c, mut x] = Linear::forward_all(ctx, [b, c, x], normed)?;
        ctx.multiply_by(&mut x, &b)?;
        drop(b);
        let mut out = convolve(&x)?;
        ctx.multiply_by(&mut out, &c)?;
        Ok(out)
    }
}

impl ShortConv<Candle> {
    /// The convolution of whole texts, without states and with a graph of its operations.
    pub fn forward_texts(
        &self,
        ctx: &Context<'_, Candle>,
        normed: &Tensor<Candle>,
        texts: &[Range<usize>],
    ) -> Result<Tensor<Candle>> {
        self.gated(ctx, normed, |x| ctx.text_causal_conv(&self.conv, texts, x))
    }
}
