//! A Whisper network, without the type of its device.

use super::alignment::AttentionWeights;
use super::checkpoint::WhisperCheckpoint;
use crate::models::ModelError;
use crate::models::backend::{Backend, DType, Pause};

/// A network on its device.
pub trait DeviceNetwork: Send + Sync {
    /// Bytes of memory that a batch of `slots` windows takes beside the weights.
    fn batch_bytes(&self, slots: usize) -> u64;

    /// Starts a batch of at most `slots` windows. `pause` is called every few milliseconds of its computations.
    ///
    /// # Errors
    /// If the device has no memory.
    fn start_batch(&self, slots: usize, pause: Pause) -> Result<Box<dyn NetworkBatch + '_>, ModelError>;
}

/// Windows that are computed together, each in a slot.
pub trait NetworkBatch {
    /// Encodes the audio of windows, each for its slot. Samples: 16 kHz mono, at most 30 s.
    fn encode(&mut self, windows: &[(usize, &[f32])]) -> Result<(), ModelError>;

    /// Computes tokens of some slots. Returns the logits that the inputs ask for, `[logits, vocabulary]`.
    fn decode(&mut self, inputs: &[DecodeInput<'_>]) -> Result<Vec<f32>, ModelError>;

    /// The attention of the alignment heads over the audio of a slot, for these tokens, which begin at position 0.
    fn alignment(&mut self, slot: usize, tokens: &[u32]) -> Result<AttentionWeights, ModelError>;
}

/// The next tokens of a slot.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DecodeInput<'a> {
    pub slot: usize,
    /// The position of the first token. Later positions are forgotten.
    pub position: usize,
    pub tokens: &'a [u32],
    /// The tokens whose logits are returned, by index.
    pub logits_of: Vec<usize>,
}

/// Reads the weights of a network, rounded to `precision`.
pub fn load<B: Backend>(
    _files: &WhisperCheckpoint,
    _precision: Option<DType>,
    _backend: &B,
) -> Result<Box<dyn DeviceNetwork>, ModelError> {
    Err(ModelError::Checkpoint("not yet".to_owned()))
}
