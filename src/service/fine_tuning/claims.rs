//! Which server trains a job, if several share the store.

use super::Jobs;
use super::job::JobState;
use crate::error::{Error, Result};
use crate::ids::JobId;
use crate::service::background_work;
use crate::storage::fine_tuning_jobs::JobRecord;
use crate::storage::work_leases::{self, Work};
use crate::storage::{Reader, WriteTx, project_resources};

impl Jobs {
    /// Claims the training of a job. `false`: another process trains it.
    pub async fn claim(&self, id: JobId) -> Result<bool> {
        background_work::claim(&self.store, Work::Job(id)).await
    }

    /// Gives a job up that has ended or is to be trained later.
    pub async fn release(&self, id: JobId) {
        background_work::release(&self.store, Work::Job(id)).await;
    }

    /// The number of live servers that train jobs, with this one.
    pub fn servers(&self) -> usize {
        self.store.cluster().map_or(1, |cluster| cluster.alive())
    }

    /// True if other servers share the store and may train the jobs.
    pub fn is_shared(&self) -> bool {
        self.store.cluster().is_some()
    }

    /// The state of a job.
    ///
    /// # Errors
    /// [`work_leases::is_taken_over`] if another process trains it now.
    pub async fn state(&self, id: JobId) -> Result<JobState> {
        let peers = self.store.peers();
        let read = self.store.read(move |tx| {
            work_leases::check(tx, Work::Job(id), &peers)?;
            Ok(JobState::from_number(of(tx, id)?.state))
        });
        read.await
    }
}

/// A job that this process has claimed.
pub(super) fn claimed(tx: &WriteTx, id: JobId) -> Result<JobRecord> {
    let (claimed, record) = (work_leases::require(tx, Work::Job(id)), of(tx, id));
    claimed.and(record)
}

pub(super) fn of(tx: &impl Reader, id: JobId) -> Result<JobRecord> {
    project_resources::find(tx, id.to_bytes())?.ok_or_else(|| Error::not_found("fine-tuning job", id))
}
