//! Loads pinned models, and unloads models that were idle for too long. Both run every second.
//!
//! Only the operator decides how long models stay loaded. A pinned model cannot be unloaded over the API, because it
//! would be loaded again a second later; an operator who wants its memory changes the file.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use super::{FailedPin, Registry, is_in_use, lock};

/// The time until a pinned model that could not be loaded is tried again.
const RETRY_AFTER: Duration = Duration::from_secs(30);

impl Registry {
    /// Unloads the models that nothing has used for the time that their settings allow. The time begins when the last
    /// request has ended.
    pub fn unload_unused(&self) {
        let (settings, now) = (self.model_settings.load_full(), self.clock.uptime());
        let mut due = Vec::new();
        for (id, entry) in &mut *lock(&self.loaded) {
            let Some(limit) = settings.unload_after(id) else { continue };
            if Arc::strong_count(&entry.model) > 1 {
                entry.last_used = now;
            } else if now.saturating_sub(entry.last_used) >= limit && !is_in_use(&entry.model) {
                due.push((id.clone(), limit));
            }
        }
        for (model, limit) in due {
            // A request may use it again by now.
            if self.unload(&model).is_ok() {
                tracing::info!(model, ?limit, "unloaded an idle model (unload_after)");
            }
        }
    }

    /// Loads the pinned models that are not loaded, one after another. Blocks while their weights are read. Why a model
    /// cannot be loaded is logged once.
    pub fn load_pinned(&self) {
        let settings = self.model_settings.load_full();
        let mut failed = lock(&self.failed_pins);
        failed.retain(|id, _| settings.is_pinned(id));
        for id in settings.pinned() {
            self.load_pin(id, &mut failed);
        }
    }

    fn load_pin(&self, id: &str, failed: &mut HashMap<String, FailedPin>) {
        let now = self.clock.uptime();
        let is_waiting = failed.get(id).is_some_and(|failure| now < failure.retry_at);
        let is_loaded = lock(&self.loaded).contains_key(id);
        if is_waiting || is_loaded || self.find(id).is_some_and(|model| model.is_upstream()) {
            return;
        }
        match self.preload(id, 0) {
            Ok(()) => {
                failed.remove(id);
                tracing::info!(model = id, "loaded a pinned model");
            }
            Err(error) => {
                let reason = error.to_string();
                if failed.get(id).is_none_or(|failure| failure.reason != reason) {
                    tracing::warn!(model = id, reason, "a pinned model cannot be loaded; the server tries again");
                }
                failed.insert(id.to_owned(), FailedPin { retry_at: now + RETRY_AFTER, reason });
            }
        }
    }
}
