//! Reports of the loop that runs a batch. These methods have no [`Access`](super::Access) of a caller: the server
//! itself calls them. If nodes share the store, each of them requires that this process has claimed the batch.

use std::collections::HashMap;
use std::time::Duration;

use super::input::{BatchInput, InputLines, PendingRequest};
use super::output::{self, BatchResult, OutputFiles, WrittenFile};
use super::validation::{input_deleted, validate};
use super::{Batch, Batches};
use crate::clock_rng::Timestamp;
use crate::error::{Error, Result};
use crate::ids::{BatchId, FileId};
use crate::service::access::Access;
use crate::service::access::authorize;
use crate::service::background_work;
use crate::service::files::Purpose;
use crate::service::limits::quotas::{self, QuotaKind, signed};
use crate::service::usage::{Outcome, UsageRecorder};
use crate::service::writes::persistent_write;
use crate::storage::batches::{self, BatchErrorRecord as BatchError, BatchRecord, BatchState};
use crate::storage::files::{self, FileRecord};
use crate::storage::work_leases::{self, Work};
use crate::storage::{Reader, WriteTx, project_resources};

/// Results that are removed per transaction; other writes wait meanwhile.
const REMOVE_BATCH: usize = 256;

/// The next step of a batch.
#[derive(Clone, Debug)]
pub enum NextStep {
    /// Run it with this access.
    Run(Access),
    /// The project may store no more: try again later.
    Wait,
    /// The input was deleted: fail the batch.
    InputDeleted,
    /// The batch is not in progress any more, or its project is archived.
    Stop,
}

impl Batches {
    /// The batches that have something to be done and that no other live process does, oldest first. Those of archived
    /// projects wait.
    pub async fn open(&self) -> Result<Vec<Batch>> {
        let peers = self.store.peers();
        let open = self.store.read(move |tx| {
            let (mut open, mut active) = (batches::open(tx)?, HashMap::new());
            for (_, record) in &open {
                active.insert(record.project, authorize::is_active_project(tx, record.project)?);
            }
            open.retain(|(_, record)| active.get(&record.project) == Some(&true));
            work_leases::retain_available(tx, &mut open, |(id, _)| Work::Batch(*id), &peers)?;
            Ok(open)
        });
        Ok(open.await?.into_iter().map(|(id, record)| Batch { id, record }).collect())
    }

    /// Claims the next step of a batch. `false`: another process does it.
    pub async fn claim(&self, id: BatchId) -> Result<bool> {
        background_work::claim(&self.store, Work::Batch(id)).await
    }

    /// Gives a batch up after a step.
    pub async fn release(&self, id: BatchId) {
        background_work::release(&self.store, Work::Batch(id)).await;
    }

    /// Validates the input of a batch. Then it is in progress or has failed.
    pub async fn validate(&self, batch: &Batch) -> Result<()> {
        let (id, endpoint) = (batch.id, batch.record.endpoint);
        let validated = match self.lines(batch.record.input_file).await? {
            Some(lines) => run_blocking(move || validate(lines, endpoint)).await?,
            None => Err(vec![input_deleted()]),
        };
        let now = self.clock_rng.now();
        self.change(id, move |record| {
            if record.state != BatchState::Validating {
                return;
            }
            match &validated {
                Ok(total) => {
                    record.total = *total;
                    record.state = BatchState::InProgress;
                    record.times.in_progress = Some(now);
                }
                Err(errors) => {
                    record.errors.clone_from(errors);
                    record.ends_as = Some(BatchState::Failed);
                    record.state = BatchState::Finalizing;
                }
            }
        })
        .await
    }

    /// The requests of a batch that have no result yet. `None`: its input was deleted.
    pub async fn input(&self, batch: &Batch) -> Result<Option<BatchInput>> {
        let id = batch.id;
        let Some(lines) = self.lines(batch.record.input_file).await? else { return Ok(None) };
        let done = self.store.read(move |tx| batches::lines_with_results(tx, id)).await?;
        Ok(Some(BatchInput::new(lines, batch.record.endpoint, done)))
    }

    async fn lines(&self, id: FileId) -> Result<Option<InputLines>> {
        let file = self.store.read(move |tx| project_resources::find::<FileRecord>(tx, id.to_bytes())).await?;
        Ok(file.map(|file| InputLines::new(self.store.clone(), id, file.chunks)))
    }

    /// The next step of a batch. It acts for the project with the models of the key that created the batch, even if
    /// that key is revoked.
    pub async fn next_step(&self, id: BatchId) -> Result<NextStep> {
        let read = self.store.read(move |tx| {
            let record = of(tx, id)?;
            let is_running = record.state == BatchState::InProgress;
            let access = authorize::background_access(tx, record.project, record.key)?;
            let Some(access) = access.filter(|_| is_running) else { return Ok(NextStep::Stop) };
            if project_resources::find::<FileRecord>(tx, record.input_file.to_bytes())?.is_none() {
                return Ok(NextStep::InputDeleted);
            }
            if quotas::check_bytes(tx, record.project, 1).is_err() {
                return Ok(NextStep::Wait);
            }
            Ok(NextStep::Run(access))
        });
        read.await
    }

    /// True while requests of a batch should run.
    ///
    /// # Errors
    /// [`work_leases::is_taken_over`] if another process does it now.
    pub async fn is_in_progress(&self, id: BatchId) -> Result<bool> {
        let peers = self.store.peers();
        let read = self.store.read(move |tx| {
            work_leases::check(tx, Work::Batch(id), &peers)?;
            Ok(of(tx, id)?.state == BatchState::InProgress)
        });
        read.await
    }

    /// Records a response together with its usage, both or neither. A result that is already stored stays.
    pub async fn record(
        &self,
        id: BatchId,
        request: &PendingRequest,
        result: &BatchResult,
        recorder: &UsageRecorder,
    ) -> Result<()> {
        let (line, stored) = (request.line, output::responded(&*self.clock_rng, &request.custom_id, result)?);
        let now = self.clock_rng.now();
        let usage = recorder.entry(Outcome::of_status(result.status));
        let write = move |tx: &WriteTx| {
            let (claimed, has_result) = (claimed(tx, id), batches::has_result(tx, id, line)?);
            let mut record = claimed?;
            if has_result {
                return Ok(());
            }
            usage.as_ref().map_or(Ok(()), |usage| usage.write(tx))?;
            if !matches!(record.state, BatchState::InProgress | BatchState::Cancelling) {
                return Ok(());
            }
            batches::put_result(tx, id, line, &stored)?;
            let count = if stored.succeeded { &mut record.completed } else { &mut record.failed };
            *count += 1;
            let bytes = stored.json.len() as u64;
            record.result_bytes += bytes;
            quotas::charge_unchecked(tx, record.project, now, QuotaKind::File, 0, signed(bytes))?;
            project_resources::replace(tx, id.to_bytes(), &record)
        };
        persistent_write::write(&self.store, format!("line {line} of {id}"), move |tx, _| write(tx)).await
    }

    /// Begins the end of a batch: no more results are stored. `ends_as`: its final state, unless it is cancelled, or every
    /// request has a result.
    pub async fn finalize(&self, id: BatchId, ends_as: BatchState, error: Option<BatchError>) -> Result<()> {
        let now = self.clock_rng.now();
        self.change(id, move |record| {
            let state = record.state;
            if state.is_final() || state == BatchState::Finalizing {
                return;
            }
            let is_whole = record.total > 0 && record.completed + record.failed == record.total;
            let ends_as = match state {
                BatchState::Cancelling => BatchState::Cancelled,
                _ if is_whole => BatchState::Completed,
                _ => ends_as,
            };
            record.errors.extend(error.clone().filter(|_| ends_as == BatchState::Failed));
            record.state = BatchState::Finalizing;
            record.ends_as = Some(ends_as);
            record.times.finalizing = Some(now);
        })
        .await
    }

    /// The error of a batch whose input was deleted.
    pub fn input_deleted() -> BatchError {
        input_deleted()
    }

    /// Ends a batch that is being finalized: its results become files.
    pub async fn end(&self, batch: &Batch) -> Result<()> {
        let (this, ending) = (self.clone(), batch.clone());
        let lines = match batch.record.total {
            0 => None,
            _ => self.lines(batch.record.input_file).await?,
        };
        let write = move || output::write(&this.store, &this.contents, &*this.clock_rng, &ending, lines);
        let files = run_blocking(write).await?;
        self.close(batch, &files).await?;
        // The chunks of the results belong to files now.
        drop(files);
        self.remove_results(batch.id).await
    }

    async fn close(&self, batch: &Batch, files: &OutputFiles) -> Result<()> {
        let (id, now, project) = (batch.id, self.clock_rng.now(), batch.record.project);
        let new = |written: &WrittenFile, kind: &str| {
            written.as_ref().map(|(content, sha256)| {
                let record = FileRecord {
                    project,
                    name: format!("{id}_{kind}.jsonl"),
                    purpose: Purpose::BatchOutput,
                    bytes: content.bytes,
                    chunks: content.chunks,
                    examples: 0,
                    example_format: 0,
                    sha256: *sha256,
                    created_at: now,
                };
                (content.id, record)
            })
        };
        let (output, errors) = (new(&files.output, "output"), new(&files.errors, "error"));
        let written = self.store.write(move |tx| {
            let mut record = claimed(tx, id)?;
            if record.state != BatchState::Finalizing {
                return Ok(());
            }
            for (file, new) in output.iter().chain(&errors) {
                quotas::charge_unchecked(tx, project, now, QuotaKind::File, 1, signed(new.bytes))?;
                files::insert(tx, *file, new)?;
            }
            quotas::charge_unchecked(tx, project, now, QuotaKind::File, 0, -signed(record.result_bytes))?;
            record.result_bytes = 0;
            record.output_file = output.as_ref().map(|(file, _)| *file);
            record.error_file = errors.as_ref().map(|(file, _)| *file);
            record.state = record.ends_as.unwrap_or(BatchState::Failed);
            record.times.ended = Some(now);
            project_resources::replace(tx, id.to_bytes(), &record)
        });
        written.await
    }

    /// Removes the results of a batch that has ended, which are in files now.
    pub async fn remove_results(&self, id: BatchId) -> Result<()> {
        let remove = move |tx: &WriteTx| {
            work_leases::require(tx, Work::Batch(id))?;
            batches::remove_results(tx, id, REMOVE_BATCH)
        };
        while !self.store.write(remove).await? {}
        Ok(())
    }

    /// True once the completion window of a batch is over.
    pub fn is_expired(&self, batch: &Batch) -> bool {
        self.time_left(batch).is_zero()
    }

    /// The rest of the completion window of a batch.
    pub fn time_left(&self, batch: &Batch) -> Duration {
        let (now, expires): (Timestamp, Timestamp) = (self.clock_rng.now(), batch.record.times.expires);
        if now >= expires { Duration::ZERO } else { now.until(expires) }
    }

    async fn change(&self, id: BatchId, mut change: impl FnMut(&mut BatchRecord) + Send + 'static) -> Result<()> {
        let written = self.store.write(move |tx| {
            let mut record = claimed(tx, id)?;
            change(&mut record);
            project_resources::replace(tx, id.to_bytes(), &record)
        });
        written.await?;
        self.look();
        Ok(())
    }
}

async fn run_blocking<T: Send + 'static>(work: impl FnOnce() -> Result<T> + Send + 'static) -> Result<T> {
    tokio::task::spawn_blocking(work).await.unwrap_or_else(|panic| Err(Error::internal(panic)))
}

/// A batch whose next step this process has claimed.
fn claimed(tx: &WriteTx, id: BatchId) -> Result<BatchRecord> {
    let (claimed, record) = (work_leases::require(tx, Work::Batch(id)), of(tx, id));
    claimed.and(record)
}

fn of(tx: &impl Reader, id: BatchId) -> Result<BatchRecord> {
    project_resources::find(tx, id.to_bytes())?.ok_or_else(|| Error::not_found("batch", id))
}
