//! The text encoders of a pipeline.

use crate::backend::Recurrent;
use crate::diffusion::bert::Bert;
use crate::diffusion::clip::Clip;
use crate::diffusion::components::TextEncoderConfig;
use crate::diffusion::t5::T5;
use crate::error::Result;
use crate::weights::Loader;

#[derive(Debug)]
#[expect(clippy::large_enum_variant, reason = "a pipeline has at most three")]
pub(super) enum TextEncoder<B: Recurrent> {
    Clip(Clip<B>),
    T5(T5<B>),
    Bert(Bert<B>),
}

impl<B: Recurrent> TextEncoder<B> {
    pub fn load(loader: &Loader<'_, B>, config: &TextEncoderConfig) -> Result<Self> {
        Ok(match config {
            TextEncoderConfig::Clip(config) => Self::Clip(Clip::load(loader, config.clone())?),
            TextEncoderConfig::T5(config) => Self::T5(T5::load(loader, config.clone())?),
            TextEncoderConfig::Bert(config) => Self::Bert(Bert::load(loader, config)?),
        })
    }
}
