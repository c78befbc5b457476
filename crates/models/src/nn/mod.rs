//! Layers that networks share.

mod channel_factors;
mod context;
mod conv;
mod conv1d;
mod grouped_norm;
mod linear;
mod lora;
mod lstm;
mod mixture_of_experts;
mod mlp;
mod norm;
mod norm_spec;
mod relative_bias;
pub mod rope;

pub(super) use super::backend::EmbeddingTable;
pub(super) use channel_factors::ChannelFactors;
pub use context::Context;
pub(super) use conv::Conv;
pub(super) use conv1d::{Conv1d, ConvTranspose1d, ConvTranspose1dShape};
pub(super) use grouped_norm::GroupedNorm;
pub(super) use linear::Linear;
pub use lora::{Adapter, LoraDeltas};
pub(super) use lora::{DownProjection, LoraDelta};
pub(super) use lstm::BidirectionalLstm;
pub(super) use mixture_of_experts::{MixtureOfExperts, SharedExpert};
pub(super) use mlp::Mlp;
pub use norm_spec::NormSpec;
pub(super) use relative_bias::RelativeBias;
