//! The predictors of prosody: durations of phonemes, pitch and energy.

use super::config::KokoroConfig;
use super::residual::{BlockShape, ResidualBlock};
use super::style::StyledLayerNorm;
use crate::backend::{Conv1dShape, Tensor, TimeConvolutions};
use crate::error::Result;
use crate::nn::{BidirectionalLstm, Context, Conv1d, Linear};
use crate::weights::{Candidate, Loader};

#[derive(Debug)]
pub(super) struct ProsodyPredictor<B: TimeConvolutions> {
    /// The duration encoder: LSTMs, each followed by a norm.
    layers: Vec<(BidirectionalLstm<B>, StyledLayerNorm)>,
    duration_lstm: BidirectionalLstm<B>,
    duration: Linear<B>,
    max_duration: usize,
    /// The LSTM before pitch and energy.
    shared: BidirectionalLstm<B>,
    pitch: Curve<B>,
    energy: Curve<B>,
}

/// Predicts two values for each frame.
#[derive(Debug)]
struct Curve<B: TimeConvolutions> {
    blocks: Vec<ResidualBlock<B>>,
    projection: Conv1d<B>,
}

impl<B: TimeConvolutions> Curve<B> {
    fn load(loader: &Loader<'_, B>, name: &str, config: &KokoroConfig) -> Result<Self> {
        let KokoroConfig { hidden, style, .. } = *config;
        let half = hidden / 2;
        let shapes = [(hidden, hidden, false), (hidden, half, true), (half, half, false)];
        let block = |(index, (inputs, outputs, upsamples)): (usize, (usize, usize, bool))| {
            let shape = BlockShape { inputs, outputs, style, upsamples };
            ResidualBlock::load(loader, &format!("predictor.{name}.{index}"), shape)
        };
        let shape = Conv1dShape { inputs: half, outputs: 1, kernel: 1, stride: 1, dilation: 1, padding: [0; 2] };
        Ok(Self {
            blocks: shapes.into_iter().enumerate().map(block).collect::<Result<_>>()?,
            projection: loader.conv1d(&format!("predictor.{name}_proj"), shape)?,
        })
    }

    fn forward(&self, ctx: &Context<'_, B>, mut x: Tensor<B>, style: &[f32]) -> Result<Tensor<B>> {
        for block in &self.blocks {
            x = block.forward(ctx, x, style)?;
        }
        self.projection.forward(ctx, &x)
    }
}

impl<B: TimeConvolutions> ProsodyPredictor<B> {
    pub fn load(loader: &Loader<'_, B>, config: &KokoroConfig) -> Result<Self> {
        let KokoroConfig { hidden, style, max_duration, .. } = *config;
        let lstm = |stem: &str| BidirectionalLstm::load(loader, stem, hidden + style, hidden / 2);
        let layer = |index: usize| {
            let stem = |index: usize| format!("predictor.text_encoder.lstms.{index}");
            let norm = StyledLayerNorm::load(loader, &stem(2 * index + 1), style, hidden)?;
            Ok((lstm(&stem(2 * index))?, norm))
        };
        let duration = Candidate::whole("predictor.duration_proj.linear_layer".to_owned(), max_duration);
        Ok(Self {
            layers: (0..config.layers).map(layer).collect::<Result<_>>()?,
            duration_lstm: lstm("predictor.lstm")?,
            duration: loader.linear(&[duration], max_duration, hidden, true)?,
            max_duration,
            shared: lstm("predictor.shared")?,
            pitch: Curve::load(loader, "F0", config)?,
            energy: Curve::load(loader, "N", config)?,
        })
    }

    /// The encodings of tokens from which prosody is predicted, `[1, tokens, 1, hidden + style]`. `x` are those of ALBERT,
    /// `style` is `[style]`.
    pub fn encode(&self, ctx: &Context<'_, B>, x: &Tensor<B>, style: &[f32]) -> Result<Tensor<B>> {
        let rows = ctx.tensor(&style.repeat(x.rows()), [1, x.rows(), 1, style.len()])?;
        let mut x = ctx.concat_channels(x, &rows)?;
        for (lstm, norm) in &self.layers {
            let y = norm.forward(ctx, &lstm.forward(ctx, &x)?, style)?;
            x = ctx.concat_channels(&y, &rows)?;
        }
        Ok(x)
    }

    /// The duration of each token in frames, at least one.
    pub fn durations(&self, ctx: &Context<'_, B>, encoded: &Tensor<B>, speed: f32) -> Result<Vec<usize>> {
        let x = self.duration_lstm.forward(ctx, encoded)?;
        let logits = ctx.to_vec(&self.duration.forward(ctx, &x)?)?;
        // Each of the logits says whether the token has one more frame.
        let duration = |logits: &[f32]| {
            let frames = logits.iter().map(|logit| 1. / (1. + (-logit).exp())).sum::<f32>() / speed;
            frames.round_ties_even().max(1.)
        };
        Ok(logits.chunks_exact(self.max_duration).map(|logits| duration(logits) as usize).collect())
    }

    /// The pitch in Hz and the energy of half frames, each `[1, 2 · frames, 1, 1]`. `encoded` has the encoding of each
    /// frame's token.
    pub fn curves(&self, ctx: &Context<'_, B>, encoded: &Tensor<B>, style: &[f32]) -> Result<[Tensor<B>; 2]> {
        let x = self.shared.forward(ctx, encoded)?;
        let pitch = self.pitch.forward(ctx, ctx.copy(&x)?, style)?;
        Ok([pitch, self.energy.forward(ctx, x, style)?])
    }
}
