//! Frees memory by unloading idle models, least recently used first. Pinned models stay.

use super::{Eviction, Loaded, Registry, is_in_use, lock};
use crate::device_worker::DeviceWorker;
use crate::error::LoadError;
use crate::runtime::DeviceIndex;
use crate::runtime::memory_budget::{Lease, Reclaim};

impl Registry {
    pub(super) fn lease(
        &self,
        device: &DeviceWorker,
        weights: u64,
        scratch: u64,
        eviction: Eviction,
    ) -> Result<Lease, LoadError> {
        let (runtime, index) = (&device.runtime, device.runtime.device.index);
        let (needed, budget) = (weights.saturating_add(scratch), runtime.memory.total());
        if needed > budget {
            return Err(LoadError::TooLarge { needed, budget });
        }
        // Models are not unloaded for one that does not fit beside the pinned ones.
        if needed.saturating_add(self.pinned_bytes(index)) <= budget {
            loop {
                if let Some(lease) = runtime.lease(weights, scratch) {
                    return Ok(lease);
                }
                if matches!(eviction, Eviction::Never) || !self.unload_idle(index) {
                    break;
                }
            }
        }
        Err(LoadError::OutOfMemory { needed, budget, pinned: self.loaded_pins(index) })
    }

    /// Frees memory of a device: drops stale models, else a draft model, else the least recently used idle model.
    /// `false`: there is nothing to free.
    fn unload_idle(&self, device: DeviceIndex) -> bool {
        if self.drop_stale(Some(device)) || self.drop_draft_model(device) {
            return true;
        }
        let settings = self.model_settings.load_full();
        let oldest = || {
            let loaded = lock(&self.loaded);
            let on_device = loaded.iter().filter(|(_, entry)| entry.device == device);
            let idle = on_device.filter(|(id, entry)| !is_in_use(&entry.model) && !settings.is_pinned(id));
            idle.min_by_key(|(_, entry)| entry.last_used).map(|(id, _)| id.clone())
        };
        // If a request takes the model up in between, try the next one.
        while let Some(id) = oldest() {
            if self.unload(&id).is_ok() {
                return true;
            }
        }
        false
    }

    /// The memory of the pinned models that are loaded on a device. Without adapters, because they are parts of their base.
    fn pinned_bytes(&self, device: DeviceIndex) -> u64 {
        let (settings, loaded) = (self.model_settings.load(), lock(&self.loaded));
        let is_pinned = |(id, entry): &(&String, &Loaded)| {
            entry.device == device && settings.is_pinned(id) && !entry.model.is_adapter()
        };
        loaded.iter().filter(is_pinned).map(|(_, entry)| entry.model.lease().weights()).sum()
    }

    /// The pinned models that are loaded on a device, sorted.
    fn loaded_pins(&self, device: DeviceIndex) -> Vec<String> {
        let loaded = lock(&self.loaded);
        let settings = self.model_settings.load();
        let is_here = |id: &&str| loaded.get(*id).is_some_and(|entry| entry.device == device);
        settings.pinned().filter(is_here).map(str::to_owned).collect()
    }
}

impl Reclaim for Registry {
    fn reclaim(&self, device: DeviceIndex) -> bool {
        self.unload_idle(device)
    }
}
