//! Images and latents in the memory of the host.

use crate::backend::{Backend, Tensor};
use crate::error::Result;

/// An image or latents: `[height, width, channels]`.
#[derive(Clone, Debug)]
pub struct Raster {
    pub values: Vec<f32>,
    /// Height and width.
    pub size: [usize; 2],
    pub channels: usize,
}

impl Raster {
    pub(super) fn upload<B: Backend>(&self, backend: &B) -> Result<Tensor<B>> {
        backend.tensor(&self.values, [1, self.size[0], self.size[1], self.channels])
    }

    pub(super) fn download<B: Backend>(backend: &B, x: Tensor<B>) -> Result<Self> {
        let (len, size, channels) = (x.len(), x.size, x.channels);
        let mut values = backend.download(x)?;
        values.truncate(len);
        Ok(Self { values, size, channels })
    }
}
