//! Fine-tuning of decoders with LoRA adapters: losses, gradients and the optimizer. The decoder itself does not change.
//!
//! The network is the same as for inference ([`Decoder`]), on candle, which computes gradients.
//!
//! An interrupted training ends with the same bytes. The plan of the steps depends only on the examples' lengths, the
//! options and the seed. The state has the parameters, the moments of the optimizer and the number of tokens that are
//! computed at once, because sums depend on their order. Each pair of DPO is compared with the base alone, and
//! validation examples are computed one by one, for the same reason. Whether activations are kept or computed again
//! changes no bit, so it may differ after a restart with less memory.

mod activation_memory;
mod adam_w;
mod learning_rate;
mod lora_parameters;
mod lora_trainer;
mod split_mix;

pub use super::decoder::{TargetScore, TrainingText};
pub use activation_memory::activation_bytes;
pub use adam_w::AdamW;
pub use learning_rate::LearningRate;
pub use lora_parameters::{LoraModule, LoraParameters};
pub use lora_trainer::{LoraTrainer, PreferenceScore, preference_score};
pub use split_mix::SplitMix;
