//! The tuned models that the engine knows, compared with the store when that has changed, on this node or another one.

use std::collections::HashSet;
use std::mem::take;
use std::sync::Arc;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::Notify;

use crate::engine::Engine;
use crate::service::fine_tuning::{Jobs, ModelObserver};

/// The time until the store is asked again that has failed.
const RETRY_DELAY: Duration = Duration::from_secs(1);

/// The tuned models that are registered with the engine.
pub struct RegisteredModels {
    engine: Engine,
    names: Mutex<Names>,
    /// Notified when there are doubtful names.
    has_doubts: Notify,
}

/// The names of registered models.
#[derive(Default)]
struct Names {
    /// Those that were in the store when they were last looked for, and have not changed since.
    confirmed: HashSet<String>,
    /// Those that may have been deleted.
    doubtful: HashSet<String>,
    /// The number of changes that were announced.
    changes: u64,
}

impl RegisteredModels {
    pub fn new(engine: Engine) -> Self {
        Self { engine, names: Mutex::default(), has_doubts: Notify::new() }
    }

    fn names(&self) -> MutexGuard<'_, Names> {
        self.names.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn is_confirmed(&self, name: &str) -> bool {
        self.names().confirmed.contains(name)
    }

    /// The number of changes that were announced.
    pub fn changes(&self) -> u64 {
        self.names().changes
    }

    /// Notes that a registered model is in the store. `changes`: their number before it was looked for. After further ones
    /// nothing is certain.
    pub fn confirm(&self, name: &str, changes: u64) {
        let mut names = self.names();
        if names.changes == changes {
            names.confirmed.insert(name.to_owned());
        } else {
            names.doubtful.insert(name.to_owned());
            self.has_doubts.notify_one();
        }
    }

    /// Lets the engine forget a model.
    pub fn remove(&self, name: &str) {
        self.names().confirmed.remove(name);
        self.engine.models().remove_adapter(name);
    }

    /// Lets the engine forget models that were deleted. Runs until it is dropped.
    pub async fn remove_deleted(self: Arc<Self>, jobs: Jobs) {
        loop {
            self.has_doubts.notified().await;
            let doubtful = take(&mut self.names().doubtful);
            for name in doubtful {
                match jobs.has_model(&name).await {
                    Ok(true) => {}
                    Ok(false) => self.remove(&name),
                    Err(error) => {
                        tracing::warn!(model = name, %error, "it is not known whether a tuned model was deleted; it is looked for again");
                        self.names().doubtful.insert(name);
                        self.has_doubts.notify_one();
                        tokio::time::sleep(RETRY_DELAY).await;
                    }
                }
            }
        }
    }
}

impl ModelObserver for RegisteredModels {
    fn changed(&self, name: &str) {
        let mut names = self.names();
        names.changes += 1;
        names.confirmed.remove(name);
        if self.engine.models().is_registered(name) {
            names.doubtful.insert(name.to_owned());
            self.has_doubts.notify_one();
        }
    }

    fn changes_unknown(&self) {
        let mut names = self.names();
        names.changes += 1;
        let confirmed = take(&mut names.confirmed);
        names.doubtful.extend(confirmed);
        self.has_doubts.notify_one();
    }
}
