//! An adapter in the memory of its network's device.

use std::any::Any;
use std::fmt;
use std::sync::Arc;

use crate::backend::Backend;
use crate::error::{ModelError, Result};
use crate::nn::{Adapter, LoraDeltas};

/// An adapter in memory. Only the network that has loaded it can compute with it. Clones share the weights.
#[derive(Clone)]
pub struct LoadedAdapter {
    /// [`Adapter`] on the network's backend.
    adapter: Arc<dyn Any + Send + Sync>,
    /// Identifies the network.
    network: usize,
}

impl LoadedAdapter {
    /// An adapter of the network with this ID, which is unique among all networks in memory.
    pub(crate) fn new<B: Backend>(adapter: Adapter<B>, network: usize) -> Self {
        Self { adapter: Arc::new(adapter), network }
    }

    /// The deltas of a batch for the network with this ID. `rows`: the number of tokens of each row, and its adapter.
    ///
    /// # Errors
    /// If another network has loaded an adapter.
    pub(crate) fn deltas<'a, B: Backend>(
        network: usize,
        rows: impl Iterator<Item = (usize, Option<&'a Self>)>,
    ) -> Result<LoraDeltas<B>> {
        let (mut deltas, mut offset) = (LoraDeltas::default(), 0);
        for (tokens, adapter) in rows {
            let end = offset + tokens;
            if let Some(Self { adapter, network: own }) = adapter {
                let adapter = Arc::clone(adapter).downcast().ok().filter(|_| *own == network);
                let adapter =
                    adapter.ok_or_else(|| ModelError::Compute("the adapter is of another network".to_owned()))?;
                deltas.push_rows(&adapter, offset..end);
            }
            offset = end;
        }
        Ok(deltas)
    }
}

impl fmt::Debug for LoadedAdapter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LoadedAdapter").field("network", &self.network).finish_non_exhaustive()
    }
}
