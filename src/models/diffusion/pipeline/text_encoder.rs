//! The text encoders of a pipeline.

use crate::models::backend::Backend;
use crate::models::diffusion::bert::Bert;
use crate::models::diffusion::clip::Clip;
use crate::models::diffusion::components::TextEncoderConfig;
use crate::models::diffusion::t5::T5;
use crate::models::error::Result;
use crate::models::weights::Loader;

#[derive(Debug)]
pub(super) enum TextEncoder<B: Backend> {
    Clip(Clip<B>),
    T5(T5<B>),
    Bert(Bert<B>),
}

impl<B: Backend> TextEncoder<B> {
    pub fn load(loader: &Loader<'_, B>, config: &TextEncoderConfig) -> Result<Self> {
        Ok(match config {
            TextEncoderConfig::Clip(config) => Self::Clip(Clip::load(loader, config.clone())?),
            TextEncoderConfig::T5(config) => Self::T5(T5::load(loader, config.clone())?),
            TextEncoderConfig::Bert(config) => Self::Bert(Bert::load(loader, config)?),
        })
    }
}
