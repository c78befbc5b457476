//! An adapter of a loaded model.

use crate::engine::runtime::memory_budget::Lease;
use crate::engine::text::scheduler::{AdapterId, Tenant};
use crate::models::peft::LoadedAdapter;

/// A loaded adapter.
pub struct ModelAdapter {
    /// Unique to this load of the adapter.
    pub key: AdapterId,
    pub weights: LoadedAdapter,
    /// The share of the memory budget; released with the adapter.
    pub lease: Lease,
    /// The project that may use it; `None`: all.
    pub owner: Option<Tenant>,
}
