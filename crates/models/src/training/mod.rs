//! Fine-tuning of decoders with LoRA adapters: losses, gradients and the optimizer. The decoder itself does not change.
//!
//! The network is the same as for inference ([`Decoder`]), on candle, which computes gradients.

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
