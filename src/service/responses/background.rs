//! Responses that are generated in the background: no client waits for them, and they outlive the process.
//!
//! What generates them ([`crate::calls::responses::background`]) reports back through the methods without an [`Access`] of a
//! caller: the server itself calls them. The end of a response is stored in the transaction that records its usage, so a
//! restart generates it again or not at all. If nodes share the store, that also requires that this process has claimed it.
//!
//! After a restart, a response is generated again from its beginning. Storing tokens as they are generated would cost
//! writes for every token of every response, to save some seconds after a rare event. The seed is stored with the
//! request, so the text is the same up to rounding.

use serde_json::json;
use tokio::sync::watch;

use super::generations::{self, MAX_STEPS_BYTES};
use super::{ChainLink, ResponseContentRecord, ResponseRecord, Responses, StoredResponse, find};
use crate::clock_rng::Timestamp;
use crate::error::{Error, Result};
use crate::ids::{ProjectId, ResponseId};
use crate::service::access::authorize;
use crate::service::access::{Access, Scope};
use crate::service::audit::AuditEntry;
use crate::service::background_work;
use crate::service::limited_read::LimitedRead;
use crate::service::limits::quotas::{self, QuotaKind, signed};
use crate::service::usage::{Outcome, UsageEntry, UsageRecorder};
use crate::service::writes::persistent_write;
use crate::storage::response_steps::{self, ResponseStepsRecord};
use crate::storage::responses::{self as stored, OpenResponseRecord};
use crate::storage::work_leases::{self, Work};
use crate::storage::{Reader, WriteTx, project_resources};

/// The sources of a background response, in addition to its input.
#[derive(Clone, Debug)]
pub struct BackgroundRequest {
    /// The JSON of the request, without the input.
    pub json: String,
    /// Whether the steps of its output are kept.
    pub keeps_steps: bool,
}

/// A response that has not ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OpenResponse {
    pub id: ResponseId,
    pub project: ProjectId,
}

/// The state of a response that has not ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OpenState {
    /// Whether the steps of its output are kept.
    pub keeps_steps: bool,
    /// Whether a node of a shared store has told that it generates the response.
    pub is_running: bool,
}

/// A response whose generation begins.
#[derive(Clone, Debug)]
pub struct StartedResponse {
    pub stored: StoredResponse,
    pub created_at: Timestamp,
    pub request: BackgroundRequest,
    /// The access with which it is generated: the models of the key that created it.
    pub access: Access,
}

/// How a response has ended.
#[derive(Clone, Debug)]
pub struct EndedResponse {
    /// The JSON of the response.
    pub response: String,
    /// The steps of its output, as JSON, if they are kept; empty if there are none.
    pub steps: Option<String>,
    pub outcome: Outcome,
}

impl Responses {
    /// Changes when a response may have to be generated in the background, or need not be any more.
    pub fn changes(&self) -> watch::Receiver<()> {
        self.changes.subscribe()
    }

    /// Stores a response that is to be generated in the background.
    pub async fn create_in_background(
        &self,
        access: &Access,
        response: StoredResponse,
        link: ChainLink,
        created_at: Timestamp,
        request: BackgroundRequest,
    ) -> Result<()> {
        let BackgroundRequest { json, keeps_steps } = request;
        let open = OpenResponseRecord { key: access.key(), request: json, keeps_steps };
        self.insert(access, response, link, created_at, Some(open)).await?;
        self.look();
        Ok(())
    }

    /// The responses that have not ended and that no other live process generates, the oldest first. Those of archived
    /// projects wait.
    pub async fn open(&self) -> Result<Vec<OpenResponse>> {
        let peers = self.store.peers();
        let open = self.store.read(move |tx| {
            let mut open = Vec::new();
            for (id, record) in stored::open(tx)? {
                if authorize::is_active_project(tx, record.project)? {
                    open.push(OpenResponse { id, project: record.project });
                }
            }
            work_leases::retain_available(tx, &mut open, |response| Work::Response(response.id), &peers)?;
            Ok(open)
        });
        open.await
    }

    /// Claims the generation of a response. `false`: another process does it.
    pub async fn claim(&self, id: ResponseId) -> Result<bool> {
        background_work::claim(&self.store, Work::Response(id)).await
    }

    /// Gives a response up that has ended or is to be generated later.
    pub async fn release(&self, id: ResponseId) {
        background_work::release(&self.store, Work::Response(id)).await;
    }

    /// What is needed to generate a response; `None` if it has ended or its project is archived.
    pub async fn start(&self, id: ResponseId) -> Result<Option<StartedResponse>> {
        let read = self.store.read(move |tx| {
            let Some(open) = stored::find_open(tx, id)? else { return Ok(None) };
            let record = of(tx, id)?;
            let access = authorize::background_access(tx, record.project, open.key)?;
            let stored = StoredResponse::new(id, stored::content(tx, id)?);
            let request = BackgroundRequest { json: open.request, keeps_steps: open.keeps_steps };
            let started = |access| StartedResponse { stored, created_at: record.created_at, request, access };
            Ok(access.map(started))
        });
        read.await
    }

    /// Whether a response has not ended.
    ///
    /// # Errors
    /// [`work_leases::is_taken_over`] if another process generates it now.
    pub async fn is_open(&self, id: ResponseId) -> Result<bool> {
        let peers = self.store.peers();
        let read = self.store.read(move |tx| {
            work_leases::check(tx, Work::Response(id), &peers)?;
            stored::is_open(tx, id)
        });
        read.await
    }

    /// Stores the end of a response together with its usage. If it was cancelled or deleted, only the usage is recorded.
    /// `failed`: what is stored instead if the response cannot be, because it is too large.
    pub async fn end(
        &self,
        id: ResponseId,
        ended: EndedResponse,
        recorder: &UsageRecorder,
        failed: impl FnOnce(&Error) -> Result<EndedResponse>,
    ) -> Result<()> {
        let usage = recorder.entry(ended.outcome);
        match self.store_end(id, ended, usage.clone()).await {
            Err(error) if work_leases::is_taken_over(&error) => Err(error),
            Err(error) => self.store_end(id, failed(&error)?, usage).await,
            stored => stored,
        }
    }

    async fn store_end(&self, id: ResponseId, ended: EndedResponse, usage: Option<UsageEntry>) -> Result<()> {
        let now = self.clock_rng.now();
        let EndedResponse { response, steps, .. } = ended;
        let steps = steps.map(|json| match json.len() > MAX_STEPS_BYTES {
            true => ResponseStepsRecord::default(),
            false => ResponseStepsRecord { json },
        });
        let write = move |tx: &WriteTx, attempts: u64| {
            let (claimed, is_open) = (work_leases::require(tx, Work::Response(id)), stored::is_open(tx, id)?);
            claimed?;
            if is_open || attempts == 0 {
                usage.as_ref().map_or(Ok(()), |usage| usage.write(tx))?;
            }
            match is_open {
                true => replace(tx, id, now, response.clone(), steps.as_ref()),
                false => Ok(()),
            }
        };
        persistent_write::write(&self.store, format!("the end of {id}"), write).await
    }

    /// Cancels a response that has not ended; returns its JSON. `cancelled` changes that to the JSON of a cancelled
    /// response. A response that has ended stays as it is.
    pub async fn cancel(
        &self,
        access: &Access,
        id: ResponseId,
        cancelled: impl Fn(&str) -> Result<String> + Send + 'static,
    ) -> Result<String> {
        let now = self.clock_rng.now();
        let entry = AuditEntry::new(&self.clock_rng, Some(access), "response.cancelled");
        let permit = authorize::scope_of_owner::<ResponseRecord>(id.to_bytes(), Scope::Inference);
        let written = authorize::write(&self.store, access, now, permit, move |tx, caller| {
            let record = find(tx, caller, id)?;
            let response = stored::content(tx, id)?.response;
            let Some(open) = stored::find_open(tx, id)? else { return Ok(response) };
            authorize::require_active_owner(tx, record.project)?;
            let response = cancelled(&response)?;
            let no_steps = open.keeps_steps.then(ResponseStepsRecord::default);
            replace(tx, id, now, response.clone(), no_steps.as_ref())?;
            entry.write(tx, record.project, id, &json!({}))?;
            Ok(response)
        });
        let response = written.await?;
        self.look();
        Ok(response)
    }

    /// The steps of a response's output, as JSON; `None` if it has not ended, or they are not kept; empty if there are none.
    pub async fn steps(&self, access: &Access, id: ResponseId) -> Result<Option<String>> {
        let access = access.clone();
        let read = self.store.read(move |tx| {
            find(tx, &access, id)?;
            Ok(response_steps::find(tx, id)?.map(|steps| steps.json))
        });
        read.await
    }

    /// A response, and its state if it has not ended. It may have `limit` bytes, with the steps of its output.
    pub async fn get_with_state(
        &self,
        access: &Access,
        id: ResponseId,
        limit: u64,
    ) -> Result<LimitedRead<(StoredResponse, Option<OpenState>)>> {
        let (access, cluster) = (access.clone(), self.store.cluster().cloned());
        let read = self.store.read(move |tx| {
            let record = find(tx, &access, id)?;
            if record.bytes > limit {
                return Ok(LimitedRead::TooLarge { bytes: record.bytes });
            }
            let state = match stored::find_open(tx, id)? {
                Some(OpenResponseRecord { keeps_steps, .. }) => {
                    let is_running = generations::is_running(tx, id, cluster.as_deref())?;
                    Some(OpenState { keeps_steps, is_running })
                }
                None => None,
            };
            Ok(LimitedRead::Read((StoredResponse::new(id, stored::content(tx, id)?), state)))
        });
        read.await
    }
}

/// Ends an open response with its final JSON.
fn replace(
    tx: &WriteTx,
    id: ResponseId,
    now: Timestamp,
    response: String,
    steps: Option<&ResponseStepsRecord>,
) -> Result<()> {
    let record = of(tx, id)?;
    let old = stored::content(tx, id)?;
    let before = old.bytes();
    let content = ResponseContentRecord { response, ..old };
    let bytes = content.bytes() + steps.map_or(0, |steps| steps.json.len() as u64);
    quotas::charge_unchecked(tx, record.project, now, QuotaKind::Response, 0, signed(bytes) - signed(record.bytes))?;
    let chain_bytes = (record.chain_bytes + content.bytes()).saturating_sub(before);
    stored::replace(tx, id, &ResponseRecord { bytes, chain_bytes, ..record }, &content)?;
    steps.map_or(Ok(()), |steps| response_steps::put(tx, id, steps))?;
    stored::close(tx, id)
}

fn of(tx: &impl Reader, id: ResponseId) -> Result<ResponseRecord> {
    project_resources::find(tx, id.to_bytes())?.ok_or_else(|| Error::not_found("response", id))
}
