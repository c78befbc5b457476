//! The handle of a device.

use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};

use candle_core::{DType, Device, Tensor as Array};

use super::weights::CandleLinear;
use crate::backend::cpu::Cpu;
use crate::backend::interface::{RequestOptions, Tensor};
use crate::backend::types::Dropout;
use crate::error::{ModelError, Result};

/// A device of candle: CUDA, Metal, or the CPU.
///
/// The elements of a tensor are f32 and contiguous: `[rows, channels]`. Each tensor has storage of its own, because
/// `write_rows` writes in place. Operations keep the gradients of candle's variables, except for attention
/// over the KV cache.
#[derive(Clone)]
pub struct Candle {
    device: Device,
    /// For work on the host.
    host: Cpu,
    /// Ones and zeros of the widths that were used.
    constants: Arc<Mutex<HashMap<usize, [Array; 2]>>>,
    /// Maximum elements of the scores of attention, and of keys or values that are gathered for it.
    max_elements: usize,
    request: Option<RequestOptions>,
    /// Dropout of the inputs of down-projections in training; each module mixes its index into the key.
    dropout: Option<Dropout>,
    /// Set if kernels compute gradients of the CPU device, and not candle.
    host_gradients: bool,
}

impl Candle {
    /// `host` runs what the device does not, such as sampling.
    pub fn new(device: Device, host: Cpu) -> Self {
        let host_gradients = device.is_cpu();
        let max_elements = if host_gradients { 4 << 20 } else { 64 << 20 };
        Self { device, host, constants: Arc::default(), max_elements, request: None, dropout: None, host_gradients }
    }

    /// Limits the elements of scores.
    #[cfg(test)]
    pub(super) fn with_max_elements(self, max_elements: usize) -> Self {
        Self { max_elements, ..self }
    }

    /// Computes gradients like another device.
    #[cfg(test)]
    pub(super) fn without_host_gradients(self) -> Self {
        Self { host_gradients: false, ..self }
    }

    /// True if kernels compute an operation of `x`, because it needs a gradient on the CPU.
    pub(super) fn computes_on_host(&self, x: &Array) -> bool {
        self.host_gradients && x.track_op()
    }

    pub(super) fn max_elements(&self) -> usize {
        self.max_elements
    }

    pub fn device(&self) -> &Device {
        &self.device
    }

    pub(super) fn host(&self) -> &Cpu {
        &self.host
    }

    pub(super) fn request(&self) -> Option<&RequestOptions> {
        self.request.as_ref()
    }

    pub(super) fn with_request(&self, options: RequestOptions) -> Self {
        Self { request: Some(options), ..self.clone() }
    }

    /// A handle that applies dropout to the inputs of down-projections in training.
    pub(crate) fn with_dropout(&self, dropout: Option<Dropout>) -> Self {
        Self { dropout, ..self.clone() }
    }

    /// The dropout of the input of a matrix.
    pub(super) fn dropout_of(&self, linear: &CandleLinear) -> Option<Dropout> {
        let (Dropout { rate, key }, module) = self.dropout.zip(linear.module)?;
        Some(Dropout { rate, key: Dropout::mixed_key(key, module as u64) })
    }

    /// Computes something small, to find out whether the device works. After some errors, a GPU does nothing any more for
    /// the process.
    pub fn check(&self) -> Result<()> {
        let two = (Array::ones(1, DType::F32, &self.device)? + 1.)?;
        match two.to_vec1::<f32>()?.as_slice() {
            [2.] => Ok(()),
            other => Err(ModelError::Device(format!("1 + 1 is {other:?} there"))),
        }
    }

    /// Uploads indices.
    pub(super) fn indices(&self, indices: Vec<u32>) -> Result<Array> {
        let count = indices.len();
        Ok(Array::from_vec(indices, count, &self.device)?)
    }

    /// Uploads row numbers.
    pub(crate) fn row_indices(&self, rows: impl Iterator<Item = usize>) -> Result<Array> {
        self.indices(rows.map(|row| row as u32).collect())
    }

    /// `[ones, zeros]`, each `[width]`.
    pub(super) fn ones_and_zeros(&self, width: usize) -> Result<[Array; 2]> {
        let mut constants = self.constants.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(pair) = constants.get(&width) {
            return Ok(pair.clone());
        }
        let pair = [Array::ones(width, DType::F32, &self.device)?, Array::zeros(width, DType::F32, &self.device)?];
        constants.insert(width, pair.clone());
        Ok(pair)
    }
}

impl fmt::Debug for Candle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Candle").field("device", &self.device.location()).finish_non_exhaustive()
    }
}

/// A tensor of these elements, which may have any shape. Copies them if they are not contiguous.
pub(super) fn tensor([images, height, width, channels]: [usize; 4], data: &Array) -> Result<Tensor<Candle>> {
    let shape = [images * height * width, channels];
    // Each reshaping adds a node to the graph.
    let data = if data.dims() == shape && data.is_contiguous() { data.clone() } else { data.reshape(&shape)? };
    Ok(Tensor { images, size: [height, width], channels, data })
}

/// A tensor with the pixels of `x`.
pub(super) fn tensor_like(x: &Tensor<Candle>, channels: usize, data: &Array) -> Result<Tensor<Candle>> {
    tensor([x.images, x.size[0], x.size[1], channels], data)
}

impl Tensor<Candle> {
    /// `[images, pixels, channels]`
    pub(super) fn by_image(&self) -> Result<Array> {
        Ok(self.data.reshape((self.images, self.pixels(), self.channels))?)
    }
}
