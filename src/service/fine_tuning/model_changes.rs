//! Tells what keeps tuned models in memory that some were created or deleted, on this node or another one.

use std::sync::Arc;

use super::Jobs;
use crate::storage::{Table, Watcher, fine_tuning_checkpoints};

/// Is told of changes: of this process before they are acknowledged, of other nodes within a second.
pub trait ModelObserver: Send + Sync {
    /// A tuned model was created or deleted.
    fn changed(&self, name: &str);

    /// Any of them may have changed.
    fn changes_unknown(&self);
}

/// Dropping this ends the notifications.
#[derive(Clone)]
pub struct ModelObservation {
    _watcher: Arc<dyn Watcher>,
}

struct ModelWatcher<O>(Arc<O>);

impl<O: ModelObserver> Watcher for ModelWatcher<O> {
    fn changed(&self, table: Table, key: &[u8]) {
        if table != fine_tuning_checkpoints::NAMES {
            return;
        }
        match std::str::from_utf8(key) {
            Ok(name) => self.0.changed(name),
            Err(_) => self.0.changes_unknown(),
        }
    }

    fn changes_unknown(&self) {
        self.0.changes_unknown();
    }
}

impl Jobs {
    /// Registers `observer` for changes of tuned models.
    pub fn observe_models<O: ModelObserver + 'static>(&self, observer: Arc<O>) -> ModelObservation {
        let watcher: Arc<dyn Watcher> = Arc::new(ModelWatcher(observer));
        self.store.watch(Arc::downgrade(&watcher));
        ModelObservation { _watcher: watcher }
    }

    /// True if all changes were announced to the observers. False if a shared store has not answered recently.
    pub fn models_are_current(&self) -> bool {
        self.store.is_current()
    }
}
