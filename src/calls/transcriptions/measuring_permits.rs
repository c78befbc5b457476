//! Which files may be measured: some at once, and one of each project. Others wait in the order they came.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError, Weak};

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::error::{Error, Result};
use crate::ids::ProjectId;

/// Files that are measured at once.
const MAX_MEASURING: usize = 4;

pub struct MeasuringPermits {
    all: Arc<Semaphore>,
    /// One permit for each project whose files are measured or wait.
    by_project: Mutex<HashMap<ProjectId, Weak<Semaphore>>>,
}

/// Allows one file to be measured, until it is dropped.
pub struct MeasuringPermit {
    _of_project: OwnedSemaphorePermit,
    _of_all: OwnedSemaphorePermit,
}

impl Default for MeasuringPermits {
    fn default() -> Self {
        Self { all: Arc::new(Semaphore::new(MAX_MEASURING)), by_project: Mutex::default() }
    }
}

impl MeasuringPermits {
    /// Waits for a permit. Cancel-safe.
    pub async fn acquire(&self, project: ProjectId) -> Result<MeasuringPermit> {
        // A project waits for itself first, so that its files do not queue up before those of others.
        let of_project = self.of_project(project).acquire_owned().await.map_err(Error::internal)?;
        let of_all = Arc::clone(&self.all).acquire_owned().await.map_err(Error::internal)?;
        Ok(MeasuringPermit { _of_project: of_project, _of_all: of_all })
    }

    fn of_project(&self, project: ProjectId) -> Arc<Semaphore> {
        let mut by_project = self.by_project.lock().unwrap_or_else(PoisonError::into_inner);
        by_project.retain(|_, semaphore| semaphore.strong_count() > 0);
        if let Some(semaphore) = by_project.get(&project).and_then(Weak::upgrade) {
            return semaphore;
        }
        let semaphore = Arc::new(Semaphore::new(1));
        by_project.insert(project, Arc::downgrade(&semaphore));
        semaphore
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::{MAX_MEASURING, MeasuringPermits};
    use crate::ids::ProjectId;

    #[tokio::test]
    async fn a_project_measures_one_file_at_a_time_and_does_not_hold_up_others() {
        let permits = MeasuringPermits::default();
        let project = |number: usize| ProjectId::from_bytes((number as u128).to_be_bytes());
        let at_once = |number| tokio::time::timeout(Duration::from_millis(20), permits.acquire(project(number)));
        let first = at_once(0).await.unwrap().unwrap();
        assert!(at_once(0).await.is_err());
        let mut others = Vec::new();
        for number in 1..MAX_MEASURING {
            others.push(at_once(number).await.unwrap().unwrap());
        }
        assert!(at_once(MAX_MEASURING).await.is_err());
        drop(first);
        assert!(at_once(MAX_MEASURING).await.is_ok());
        assert!(at_once(0).await.is_ok());
        drop(others);
        drop(at_once(0).await);
        assert!(permits.by_project.lock().unwrap().len() <= 1);
    }
}
