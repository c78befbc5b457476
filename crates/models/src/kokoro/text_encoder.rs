//! The encoder of phonemes for the decoder: convolutions and an LSTM, as in StyleTTS 2 (Li et al. 2023,
//! <https://arxiv.org/abs/2306.07691>).

use super::config::KokoroConfig;
use crate::backend::{Conv1dShape, Norm, Tensor, TimeConvolutions};
use crate::error::Result;
use crate::nn::{BidirectionalLstm, Context, Conv1d, EmbeddingTable};
use crate::weights::Loader;

const SLOPE: f32 = 0.2;
const EPSILON: f32 = 1e-5;

#[derive(Debug)]
pub(super) struct TextEncoder<B: TimeConvolutions> {
    width: usize,
    embedding: EmbeddingTable,
    layers: Vec<(Conv1d<B>, Norm<B>)>,
    lstm: BidirectionalLstm<B>,
}

impl<B: TimeConvolutions> TextEncoder<B> {
    pub fn load(loader: &Loader<'_, B>, config: &KokoroConfig) -> Result<Self> {
        let KokoroConfig { hidden: width, kernel, .. } = *config;
        let padding = [(kernel - 1) / 2; 2];
        let shape = Conv1dShape { inputs: width, outputs: width, kernel, stride: 1, dilation: 1, padding };
        let layer = |index: usize| {
            let stem = format!("text_encoder.cnn.{index}");
            let norm = Norm::load_layer_norm(loader, &format!("{stem}.1"), width, EPSILON)?;
            Ok((loader.conv1d(&format!("{stem}.0"), shape)?, norm))
        };
        Ok(Self {
            width,
            embedding: loader.table("text_encoder.embedding", config.vocabulary, width)?,
            layers: (0..config.layers).map(layer).collect::<Result<_>>()?,
            lstm: BidirectionalLstm::load(loader, "text_encoder.lstm", width, width / 2)?,
        })
    }

    /// The encodings of tokens: `[1, tokens, 1, hidden]`.
    pub fn forward(&self, ctx: &Context<'_, B>, tokens: &[u32]) -> Result<Tensor<B>> {
        let mut x = ctx.upload([1, tokens.len(), 1, self.width], &mut |x| {
            self.embedding.look_up(tokens.iter().copied(), false, x)
        })?;
        for (conv, norm) in &self.layers {
            x = ctx.norm(norm, &conv.forward(ctx, &x)?)?;
            ctx.leaky_relu(&mut x, SLOPE)?;
        }
        self.lstm.forward(ctx, &x)
    }
}
