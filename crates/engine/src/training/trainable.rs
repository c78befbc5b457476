//! A base model that is loaded for training: on candle, which computes gradients. On the CPU, these are weights of their
//! own besides those that answer requests.

use crate::runtime::DeviceIndex;
use crate::runtime::memory_budget::Lease;
use outpost_models::backend::Candle;
use outpost_models::decoder::Decoder;
use outpost_models::training::LoraParameters;

/// A base model and the memory for training an adapter of it.
pub struct TrainableModel {
    pub id: String,
    pub device: DeviceIndex,
    pub decoder: Decoder<Candle>,
    pub backend: Candle,
    /// An adapter as it is before the first step.
    pub parameters: LoraParameters,
    /// Max tokens that are computed at once.
    pub micro_batch: usize,
    /// Set if the graphs of all layers fit into memory. Otherwise, they are computed again in the backward pass.
    pub keep_graphs: bool,
    pub lease: Lease,
}
