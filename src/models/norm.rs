//! Norms and their weights.

use outpost_kernels::{self as kernels, NormKind, Pool};

use super::decoder_config::DecoderConfig;
use super::error::ModelError;
use super::scratch_buffers::grow;
use super::weights::{Loader, Role};

#[derive(Debug)]
pub(super) struct Norm {
    kind: NormKind,
    weight: Vec<f32>,
    bias: Option<Vec<f32>>,
    epsilon: f32,
}

impl Norm {
    /// Loads an RMS norm of a decoder.
    pub fn load(loader: &Loader<'_>, config: &DecoderConfig, stem: &str, width: usize) -> Result<Self, ModelError> {
        let weight = loader.vector(stem, width)?.into_iter().map(|weight| weight + config.norm_weight_offset).collect();
        Ok(Self { kind: NormKind::Rms, weight, bias: None, epsilon: config.epsilon })
    }

    /// Loads a layer norm, with a bias if the checkpoint has one.
    pub fn load_layer_norm(loader: &Loader<'_>, stem: &str, width: usize, epsilon: f32) -> Result<Self, ModelError> {
        let (weight, bias) = (loader.vector(stem, width)?, loader.optional_vector(stem, Role::Bias, width)?);
        Ok(Self { kind: NormKind::Layer, weight, bias, epsilon })
    }

    /// Loads an RMS norm without a bias.
    pub fn load_rms_norm(loader: &Loader<'_>, stem: &str, width: usize, epsilon: f32) -> Result<Self, ModelError> {
        Ok(Self { kind: NormKind::Rms, weight: loader.vector(stem, width)?, bias: None, epsilon })
    }

    /// Weight and bias.
    pub fn into_parts(self) -> (Vec<f32>, Option<Vec<f32>>) {
        (self.weight, self.bias)
    }

    fn kernel(&self) -> kernels::Norm<'_> {
        let Self { kind, weight, bias, epsilon } = self;
        kernels::Norm { kind: *kind, weight, bias: bias.as_deref(), epsilon: *epsilon }
    }

    /// Normalizes each row of `x`, `[rows, width]`.
    pub fn forward(&self, pool: &Pool, x: &[f32], out: &mut [f32]) {
        self.kernel().forward(pool, x, out);
    }

    /// Adds `y` to `x`, and normalizes each row of the sum.
    pub fn add_forward(&self, pool: &Pool, x: &mut [f32], y: &[f32], out: &mut [f32]) {
        self.kernel().add_forward(pool, x, y, out);
    }

    /// Normalizes the first `len` elements of `x` in place, in rows of the weight's width.
    pub fn forward_in_place(&self, pool: &Pool, x: &mut Vec<f32>, len: usize, scratch: &mut Vec<f32>) {
        self.forward(pool, grow(x, len), grow(scratch, len));
        std::mem::swap(x, scratch);
    }

    /// Replaces `x` by the norm of `x + y`.
    pub fn add_forward_in_place(&self, pool: &Pool, x: &mut Vec<f32>, y: &[f32], scratch: &mut Vec<f32>) {
        self.add_forward(pool, grow(x, y.len()), y, grow(scratch, y.len()));
        std::mem::swap(x, scratch);
    }
}
