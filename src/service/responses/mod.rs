//! Stored responses of the Responses API. A response names the one that it continues, so that a conversation is a chain of
//! responses, each with its own input and output only.
//!
//! A key that may call models may also read and delete the responses of its project: clients fetch and delete what they
//! have created, and whoever can continue a response learns what it says.
//!
//! The prompt is built from the chain. Storing the whole conversation with each response would take space that grows
//! with the square of its length. The price is that a chain ends if one of its responses is deleted or expires.
//! Responses are kept for 30 days, as OpenAI does: `store` is true if absent, and without a limit every response of a
//! client that never deletes would stay.
//!
//! There is no list of responses. That a response of another project exists is not revealed to a request that would
//! continue it, as in OpenAI's API. Elsewhere it is a 403, as for every resource.

mod background;
mod generations;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};
use tokio::sync::watch;

pub use self::background::{BackgroundRequest, EndedResponse, OpenResponse, OpenState, StartedResponse};
pub use self::generations::{GenerationParts, GenerationProgress, MAX_PARTS, MAX_STEPS_BYTES};
use super::access::authorize;
use super::access::{Access, Scope};
use super::audit::AuditEntry;
use super::limited_read::LimitedRead;
use super::limits::quotas::{self, QuotaKind, signed};
use super::validation;
use crate::clock_rng::{ClockRng, Timestamp};
use crate::error::{Code, Error, Result};
use crate::ids::{ProjectId, ResponseId};
use crate::storage::responses::{self as stored, OpenResponseRecord, ResponseContentRecord, ResponseRecord};
use crate::storage::{Reader, Store, WriteTx, project_resources};

/// Max responses of a chain.
pub const MAX_CHAIN: u32 = 1_000;
/// Max JSON bytes of the inputs and responses of a chain, as of a conversation.
pub const MAX_CHAIN_BYTES: u64 = 8 << 20;
/// Max responses of a project that are generated in the background and have not ended.
const MAX_OPEN: usize = 100;
/// How long a response is kept, as in OpenAI's API.
pub const RETENTION: Duration = Duration::from_secs(30 * 24 * 3600);
/// Responses per step of the sweep.
pub(super) const SWEEP_BATCH: usize = 64;

/// A stored response.
#[derive(Clone, Debug)]
pub struct StoredResponse {
    pub id: ResponseId,
    /// The JSON of each item of its input.
    pub input: Vec<String>,
    /// The JSON of the response.
    pub response: String,
}

impl StoredResponse {
    fn new(id: ResponseId, content: ResponseContentRecord) -> Self {
        Self { id, input: content.input, response: content.response }
    }
}

/// The responses that a request continues.
#[derive(Debug, Default)]
pub struct Chain {
    /// The earliest first.
    pub responses: Vec<StoredResponse>,
    /// Bytes of their inputs and responses.
    bytes: u64,
}

impl Chain {
    fn last(&self) -> Option<ResponseId> {
        self.responses.last().map(|response| response.id)
    }
}

/// Where a new response belongs: its project and its place in a chain.
#[derive(Clone, Debug)]
pub struct ChainLink {
    previous: Option<ResponseId>,
    length: u32,
    bytes: u64,
}

impl From<&Chain> for ChainLink {
    /// The place after a chain.
    fn from(chain: &Chain) -> Self {
        let length = u32::try_from(chain.responses.len()).unwrap_or(u32::MAX).saturating_add(1);
        Self { previous: chain.last(), length, bytes: chain.bytes }
    }
}

/// The stored responses service. Clones share it.
#[derive(Clone)]
pub struct Responses {
    store: Store,
    clock_rng: Arc<dyn ClockRng>,
    /// Changes when a response may have to be generated in the background, or need not be any more.
    changes: Arc<watch::Sender<()>>,
}

impl Responses {
    pub fn new(store: Store, clock_rng: Arc<dyn ClockRng>) -> Self {
        Self { store, clock_rng, changes: Arc::new(watch::channel(()).0) }
    }

    /// Lets what generates responses in the background look at them.
    pub(in crate::service) fn look(&self) {
        self.changes.send_replace(());
    }

    /// Checks the caller's quotas before a response is generated. `bytes`: of its input.
    pub async fn admit(&self, access: &Access, bytes: u64) -> Result<()> {
        let project = access.project();
        let check = move |tx: &_| quotas::check(tx, project, QuotaKind::Response, 1, signed(bytes.max(1)));
        self.store.read(check).await
    }

    /// Stores a response for the caller's project. It counts against the project's quotas until it is removed.
    /// `created_at`: when its generation began.
    pub async fn create(
        &self,
        access: &Access,
        response: StoredResponse,
        link: ChainLink,
        created_at: Timestamp,
    ) -> Result<()> {
        self.insert(access, response, link, created_at, None).await
    }

    /// `open`: what a response is to be generated from in the background.
    async fn insert(
        &self,
        access: &Access,
        response: StoredResponse,
        link: ChainLink,
        created_at: Timestamp,
        open: Option<OpenResponseRecord>,
    ) -> Result<()> {
        let (now, project) = (self.clock_rng.now(), access.project());
        let StoredResponse { id, input, response } = response;
        let content = ResponseContentRecord { input, response };
        let bytes = content.bytes() + open.as_ref().map_or(0, |open| open.request.len() as u64);
        let record = ResponseRecord {
            project,
            previous: link.previous.map(ResponseId::to_bytes),
            chain_length: link.length,
            chain_bytes: link.bytes.saturating_add(content.bytes()),
            bytes,
            created_at,
        };
        let entry = AuditEntry::new(&self.clock_rng, Some(access), "response.created");
        let permit = move |_: &WriteTx, caller: &Access| caller.require(project, Scope::Inference);
        let written = authorize::write(&self.store, access, now, permit, move |tx, caller| {
            caller.require(project, Scope::Inference)?;
            authorize::require_active_owner(tx, project)?;
            quotas::charge(tx, project, now, QuotaKind::Response, 1, signed(bytes))?;
            stored::insert(tx, id, &record, &content)?;
            if let Some(open) = &open {
                check_open(tx, project)?;
                stored::put_open(tx, id, open)?;
            }
            entry.write(tx, project, id, &json!({ "previous_response_id": link.previous, "bytes": bytes }))
        });
        written.await
    }

    /// The response `last` with all that it continues. A response of another project counts as absent.
    pub async fn chain(&self, access: &Access, last: ResponseId) -> Result<Chain> {
        let access = access.clone();
        let read = self.store.read(move |tx| {
            let record = find_visible(tx, &access, last)?.ok_or_else(|| previous_not_found(last))?;
            check_chain(last, &record)?;
            if stored::is_open(tx, last)? {
                let text = format!(
                    "The response '{last}' is still generated in the background. Continue it when its status is no longer queued or in_progress."
                );
                return Err(Error::invalid("previous_response_id", text));
            }
            let (mut responses, mut next) = (Vec::new(), Some(last));
            while let Some(id) = next {
                let record = find_visible(tx, &access, id)?.ok_or_else(|| previous_not_found(id))?;
                responses.push(StoredResponse::new(id, stored::content(tx, id)?));
                next = record.previous.map(ResponseId::from_bytes).filter(|_| responses.len() < MAX_CHAIN as usize);
            }
            responses.reverse();
            Ok(Chain { responses, bytes: record.chain_bytes })
        });
        read.await
    }

    /// For each position, the response with the largest id that is not above it: an item's id is its response's id plus a
    /// small number. Those of other projects are left out.
    pub async fn at_positions(&self, access: &Access, positions: Vec<u128>) -> Result<Vec<StoredResponse>> {
        let access = access.clone();
        let read = self.store.read(move |tx| {
            let (mut found, mut bytes) = (BTreeMap::new(), 0);
            for position in positions {
                let above = ResponseId::from_bytes(position.saturating_add(1).to_be_bytes());
                let Some((id, record)) = stored::below(tx, above, 1)?.into_iter().next() else { continue };
                if found.contains_key(&id) || access.require(record.project, Scope::Inference).is_err() {
                    continue;
                }
                bytes += record.bytes;
                if bytes > MAX_CHAIN_BYTES || found.len() >= MAX_CHAIN as usize {
                    let text = format!(
                        "The responses of the items that 'input' refers to have more than {MAX_CHAIN_BYTES} bytes, or are more than {MAX_CHAIN}. Send previous_response_id instead, or fewer items."
                    );
                    return Err(Error::invalid("input", text));
                }
                found.insert(id, StoredResponse::new(id, stored::content(tx, id)?));
            }
            Ok(found.into_values().collect())
        });
        read.await
    }

    /// A response, if it has at most `limit` bytes.
    pub async fn get(&self, access: &Access, id: ResponseId, limit: u64) -> Result<LimitedRead<StoredResponse>> {
        let access = access.clone();
        let read = self.store.read(move |tx| {
            let record = find(tx, &access, id)?;
            if record.bytes > limit {
                return Ok(LimitedRead::TooLarge { bytes: record.bytes });
            }
            Ok(LimitedRead::Read(StoredResponse::new(id, stored::content(tx, id)?)))
        });
        read.await
    }

    /// Deletes a response, and ends its generation. Responses that continue it cannot be continued any more.
    pub async fn delete(&self, access: &Access, id: ResponseId) -> Result<()> {
        let now = self.clock_rng.now();
        let entry = AuditEntry::new(&self.clock_rng, Some(access), "response.deleted");
        let permit = authorize::scope_of_owner::<ResponseRecord>(id.to_bytes(), Scope::Inference);
        let written = authorize::write(&self.store, access, now, permit, move |tx, caller| {
            let record = find(tx, caller, id)?;
            authorize::require_active_owner(tx, record.project)?;
            quotas::charge(tx, record.project, now, QuotaKind::Response, -1, -signed(record.bytes))?;
            stored::remove(tx, id, &record)?;
            entry.write(tx, record.project, id, &Value::Null)
        });
        written.await?;
        self.look();
        Ok(())
    }

    /// Removes responses whose time is over; returns their number.
    pub async fn sweep(&self) -> Result<usize> {
        let mut swept = 0;
        loop {
            let now = self.clock_rng.now();
            let before = ResponseId::first_at(oldest_kept(now));
            let expired = self.store.read(move |tx| stored::below(tx, before, SWEEP_BATCH)).await?;
            if expired.is_empty() {
                return Ok(swept);
            }
            for (id, _) in expired {
                self.remove(id, now).await?;
                swept += 1;
            }
        }
    }

    async fn remove(&self, id: ResponseId, now: Timestamp) -> Result<()> {
        let removed = self.store.write(move |tx| {
            let Some(record) = project_resources::find::<ResponseRecord>(tx, id.to_bytes())? else { return Ok(()) };
            quotas::charge(tx, record.project, now, QuotaKind::Response, -1, -signed(record.bytes))?;
            stored::remove(tx, id, &record)
        });
        removed.await
    }
}

/// Finds a response that the caller may use.
fn find(tx: &impl Reader, access: &Access, id: ResponseId) -> Result<ResponseRecord> {
    let record: Option<ResponseRecord> = project_resources::find(tx, id.to_bytes())?;
    let record = record.ok_or_else(|| {
        let text = format!("No response '{id}' exists. It was not stored, or it was deleted, or its 30 days are over.");
        Error::new(Code::NotFound, text)
    })?;
    access.require(record.project, Scope::Inference)?;
    Ok(record)
}

/// Like [`find`]; `None` also for a response of another project.
fn find_visible(tx: &impl Reader, access: &Access, id: ResponseId) -> Result<Option<ResponseRecord>> {
    let record: Option<ResponseRecord> = project_resources::find(tx, id.to_bytes())?;
    match record.filter(|record| access.is_admin() || record.project == access.project()) {
        Some(record) => access.require(record.project, Scope::Inference).map(|()| Some(record)),
        None => Ok(None),
    }
}

/// 429 while too many responses of a project have not ended.
fn check_open(tx: &WriteTx, project: ProjectId) -> Result<()> {
    let open = stored::open(tx)?.iter().filter(|(_, record)| record.project == project).count();
    if open < MAX_OPEN {
        return Ok(());
    }
    let text = format!(
        "The project has {open} responses in the background that have not ended; at most {MAX_OPEN} are allowed. Create more when some have ended."
    );
    Err(Error::new(Code::RateLimited, text).retry_after(Duration::from_secs(10)))
}

/// 400 if a chain has no room for another response.
fn check_chain(last: ResponseId, record: &ResponseRecord) -> Result<()> {
    let ResponseRecord { chain_length, chain_bytes, .. } = record;
    if *chain_length < MAX_CHAIN && *chain_bytes < MAX_CHAIN_BYTES {
        return Ok(());
    }
    let text = format!(
        "The response '{last}' ends a chain of {chain_length} responses with {chain_bytes} bytes; a chain may have {MAX_CHAIN} responses and {MAX_CHAIN_BYTES} bytes. Begin another chain, with a summary of this one."
    );
    Err(Error::invalid("previous_response_id", text))
}

/// Checks the metadata of a response, a JSON object.
pub fn check_metadata(json: &str) -> Result<()> {
    validation::metadata(Some(json))
}

/// The error for a response that does not exist, in the words of OpenAI's API, by which clients recognise it.
pub fn previous_not_found(id: impl std::fmt::Display) -> Error {
    let text = format!(
        "Previous response with id '{id}' not found. It was not stored, or it was deleted, or its 30 days are over. Send the whole conversation in 'input'."
    );
    Error::new(Code::PreviousResponseNotFound, text).param("previous_response_id")
}

/// When the oldest responses that are still kept were created.
pub(super) fn oldest_kept(now: Timestamp) -> Timestamp {
    let retention = i64::try_from(RETENTION.as_millis()).unwrap_or(i64::MAX);
    Timestamp::from_millis(now.as_millis().saturating_sub(retention))
}
