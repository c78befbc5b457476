//! Loaded models that share a network: the network itself, and adapters of it.

use std::ops::Deref;
use std::sync::Arc;

use crate::ids::{AdapterId, Tenant};
use crate::runtime::memory_budget::Lease;
use outpost_models::peft::LoadedAdapter;

/// A loaded adapter.
pub struct ModelAdapter {
    /// Unique to this load of the adapter.
    pub key: AdapterId,
    pub weights: LoadedAdapter,
    /// A hash of its weights.
    pub content_hash: u64,
    /// The share of the memory budget; released with the adapter.
    pub lease: Lease,
    /// The project that may use it; `None`: all.
    pub owner: Option<Tenant>,
}

/// A loaded model: a network, or an adapter of one. Dereferences to the network.
pub struct AdaptedNetwork<N> {
    id: String,
    network: Arc<N>,
    adapter: Option<ModelAdapter>,
}

impl<N> AdaptedNetwork<N> {
    /// A network without an adapter.
    pub fn new(id: &str, network: N) -> Self {
        Self { id: id.to_owned(), network: Arc::new(network), adapter: None }
    }

    /// The model `id`, which is an adapter of this one.
    pub fn with_adapter(&self, id: &str, adapter: ModelAdapter) -> Self {
        Self { id: id.to_owned(), network: Arc::clone(&self.network), adapter: Some(adapter) }
    }

    pub fn id(&self) -> &str {
        &self.id
    }

    /// The adapter, unless the model is a network.
    pub fn adapter(&self) -> Option<&ModelAdapter> {
        self.adapter.as_ref()
    }

    /// True if both models compute with the same network, such as a base model and its adapter.
    pub fn shares_network_with(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.network, &other.network)
    }

    /// Number of models, loaded or in use, that compute with its network.
    pub fn network_users(&self) -> usize {
        Arc::strong_count(&self.network)
    }
}

impl<N> Deref for AdaptedNetwork<N> {
    type Target = N;

    fn deref(&self) -> &N {
        &self.network
    }
}
