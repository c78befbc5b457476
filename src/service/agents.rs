//! Agents: instructions, model, tools and memory under one id. Each change creates a version; old versions stay
//! readable.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use serde_json::json;

use super::access::{Access, Scope};
use super::audit::AuditEntry;
use super::limited_read::{LimitedRead, PAGE_BYTES, needs_page};
use super::pagination::{Listing, Page, PageRequest, short_page};
use super::patch::Patch;
use super::precondition::Precondition;
use super::quotas::{self, QuotaKind, signed};
use super::{authorize, message_validation, tool_definitions, validation};
use crate::clock_rng::{ClockRng, Timestamp};
use crate::error::{Error, Result};
use crate::ids::{AgentId, BadId, ProjectId};
pub use crate::storage::agents::MemoryFields as Memory;
use crate::storage::agents::{self as stored, AgentRecord, AgentVersionRecord};
use crate::storage::{Reader, Store, WriteTx, project_resources};

/// Versions kept per agent; the oldest are removed.
pub const MAX_VERSIONS: u64 = 1_000;
const MAX_INSTRUCTIONS_CHARS: usize = 256_000;
const MAX_LAST_MESSAGES: u32 = 4096;
/// A version is not larger than the requests that have made it.
const MAX_VERSION_BYTES: u64 = 8 << 20;

/// An agent at one of its versions.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Agent {
    pub id: AgentId,
    pub project: ProjectId,
    pub version: u64,
    pub name: Option<String>,
    pub model: Option<String>,
    pub instructions: Option<String>,
    /// A JSON array of tool definitions, as text; none if it has no tool.
    pub tools: Option<String>,
    pub memory: Option<Memory>,
    /// A JSON object, as text.
    pub metadata: Option<String>,
    /// When the agent was created.
    pub created_at: Timestamp,
    /// When this version was created.
    pub updated_at: Timestamp,
}

impl Agent {
    fn new(id: AgentId, record: &AgentRecord, version: u64, content: AgentVersionRecord) -> Self {
        let AgentVersionRecord { name, model, instructions, tools, memory, metadata, created_at: updated_at } = content;
        let (project, created_at) = (record.project, record.created_at);
        Self { id, project, version, name, model, instructions, tools, memory, metadata, created_at, updated_at }
    }
}

/// The fields of a new agent.
#[derive(Clone, Debug, Default)]
pub struct NewAgent {
    /// Default: the project of the caller's key.
    pub project: Option<ProjectId>,
    pub name: Option<String>,
    pub model: Option<String>,
    pub instructions: Option<String>,
    pub tools: Option<String>,
    pub memory: Option<Memory>,
    pub metadata: Option<String>,
}

/// An update, field by field.
#[derive(Clone, Debug)]
pub struct AgentPatch {
    pub name: Patch<String>,
    pub model: Patch<String>,
    pub instructions: Patch<String>,
    pub tools: Patch<String>,
    pub memory: Patch<Memory>,
    pub metadata: Patch<String>,
}

/// The id of an agent's version in a listing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct VersionId {
    pub agent: AgentId,
    pub version: u64,
}

impl fmt::Display for VersionId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}@{}", self.agent, self.version)
    }
}

impl FromStr for VersionId {
    type Err = BadId;

    fn from_str(text: &str) -> Result<Self, BadId> {
        let bad = || BadId { kind: "agent version", form: "an agent ID followed by '@' and a version number" };
        let (agent, version) = text.split_once('@').ok_or_else(bad)?;
        Ok(Self { agent: agent.parse()?, version: version.parse().map_err(|_| bad())? })
    }
}

/// The agents service.
#[derive(Clone)]
pub struct Agents {
    store: Store,
    clock_rng: Arc<dyn ClockRng>,
}

impl Agents {
    pub fn new(store: Store, clock_rng: Arc<dyn ClockRng>) -> Self {
        Self { store, clock_rng }
    }

    /// Creates an agent.
    pub async fn create(&self, access: &Access, new: NewAgent) -> Result<Agent> {
        let now = self.clock_rng.now();
        let project = new.project.unwrap_or_else(|| access.project());
        let NewAgent { name, model, instructions, tools, memory, metadata, project: _ } = new;
        let tools = tools.and_then(non_empty_tools);
        let content = AgentVersionRecord { name, model, instructions, tools, memory, metadata, created_at: now };
        check(&content)?;
        let id = AgentId::generate(&*self.clock_rng);
        let entry = self.audit_entry(access, "agent.created");
        let permit = authorize::manage_project(project);
        let written = authorize::write(&self.store, access, now, permit, move |tx, caller| {
            let owner = authorize::named_project(tx, caller, project)?;
            authorize::require_active(&owner).map_err(|error| error.param("project_id"))?;
            let bytes = content.bytes();
            quotas::charge(tx, project, now, QuotaKind::Agent, 1, signed(bytes))?;
            let record = AgentRecord { project, version: 1, oldest: 1, bytes, created_at: now };
            project_resources::insert(tx, id.to_bytes(), &record)?;
            stored::put_version(tx, id, 1, &content)?;
            entry.write(tx, project, id, &json!({ "name": content.name, "model": content.model }))?;
            Ok(Agent::new(id, &record, 1, content.clone()))
        });
        written.await
    }

    /// Updates fields. An update that changes nothing creates no version.
    pub async fn update(
        &self,
        access: &Access,
        id: AgentId,
        change: AgentPatch,
        precondition: Precondition,
    ) -> Result<Agent> {
        let now = self.clock_rng.now();
        // The checks of single fields do not depend on the stored agent.
        check(&change.clone().apply(AgentVersionRecord::empty(now), now))?;
        let entry = self.audit_entry(access, "agent.updated");
        let permit = authorize::manage_owner::<AgentRecord>(id.to_bytes());
        let written = authorize::write(&self.store, access, now, permit, move |tx, caller| {
            let record = find(tx, caller, Scope::Project, id)?;
            authorize::require_active_owner(tx, record.project)?;
            precondition.check(Some(record.version))?;
            let old = stored::current(tx, id, &record)?;
            let new = change.clone().apply(old.clone(), old.created_at);
            if new == old {
                return Ok(Agent::new(id, &record, record.version, old));
            }
            let new = AgentVersionRecord { created_at: now, ..new };
            let record = add_version(tx, id, record, &new, now)?;
            let detail = json!({ "version": record.version, "name": new.name, "model": new.model });
            entry.write(tx, record.project, id, &detail)?;
            Ok(Agent::new(id, &record, record.version, new))
        });
        written.await
    }

    /// Deletes an agent with all its versions.
    pub async fn delete(&self, access: &Access, id: AgentId, precondition: Precondition) -> Result<()> {
        let now = self.clock_rng.now();
        let entry = self.audit_entry(access, "agent.deleted");
        let permit = authorize::manage_owner::<AgentRecord>(id.to_bytes());
        let written = authorize::write(&self.store, access, now, permit, move |tx, caller| {
            let record = find(tx, caller, Scope::Project, id)?;
            authorize::require_active_owner(tx, record.project)?;
            precondition.check(Some(record.version))?;
            let name = stored::current(tx, id, &record)?.name;
            quotas::charge(tx, record.project, now, QuotaKind::Agent, -1, -signed(record.bytes))?;
            (record.oldest..=record.version).try_for_each(|version| stored::remove_version(tx, id, version))?;
            project_resources::remove(tx, id.to_bytes(), &record)?;
            entry.write(tx, record.project, id, &json!({ "name": name, "version": record.version }))
        });
        written.await
    }

    /// An agent, at its current version or at `version`. All versions together may have `limit` bytes.
    pub async fn get(
        &self,
        access: &Access,
        id: AgentId,
        version: Option<u64>,
        limit: u64,
    ) -> Result<LimitedRead<Agent>> {
        let access = access.clone();
        let read = self.store.read(move |tx| {
            let record = find(tx, &access, Scope::Project, id)?;
            if record.bytes.min(MAX_VERSION_BYTES) > limit {
                return Ok(LimitedRead::TooLarge { bytes: record.bytes.min(MAX_VERSION_BYTES) });
            }
            let version = version.unwrap_or(record.version);
            let content = stored::find_version(tx, id, version)?.ok_or_else(|| no_version(version, &record))?;
            Ok(LimitedRead::Read(Agent::new(id, &record, version, content)))
        });
        read.await
    }

    /// An agent for a chat request; needs the scope `inference` in its project.
    pub async fn get_for_chat(&self, access: &Access, id: AgentId) -> Result<Agent> {
        let access = access.clone();
        let read = self.store.read(move |tx| {
            let record = find(tx, &access, Scope::Inference, id)?;
            authorize::require_active_owner(tx, record.project)?;
            let content = stored::current(tx, id, &record)?;
            Ok(Agent::new(id, &record, record.version, content))
        });
        read.await.map_err(|error| error.param("agent_id"))
    }

    /// A page of a project's agents, newest first. Default project: that of the key. It ends early when it has
    /// [`PAGE_BYTES`].
    pub async fn list(
        &self,
        access: &Access,
        project: Option<ProjectId>,
        request: PageRequest,
        limit: u64,
    ) -> Result<LimitedRead<Page<Agent>>> {
        let project = project.unwrap_or_else(|| access.project());
        let listing = Listing { name: "agents", owner: Some(project.to_bytes()) };
        let window = request.window(self.store.pepper(), listing, AgentId::to_bytes)?;
        let access = access.clone();
        let read = self.store.read(move |tx| {
            authorize::named_project(tx, &access, project)?;
            let rows = project_resources::newest::<AgentRecord>(tx, project, window.before, window.rows())?;
            let rows = rows.into_iter().map(|(id, record)| (AgentId::from_bytes(id), record.version, record));
            read_versions(tx, rows.collect(), limit)
        });
        let Some(Versions { agents, is_cut }) = read.await? else {
            return Ok(LimitedRead::TooLarge { bytes: PAGE_BYTES });
        };
        let position = |agent: &Agent| agent.id.to_bytes();
        Ok(LimitedRead::Read(short_page(self.store.pepper(), listing, window, agents, is_cut, position)))
    }

    /// A page of an agent's versions, newest first. It ends early when it has [`PAGE_BYTES`].
    pub async fn versions(
        &self,
        access: &Access,
        id: AgentId,
        request: PageRequest,
        limit: u64,
    ) -> Result<LimitedRead<Page<Agent>>> {
        let listing = Listing { name: "agent_versions", owner: Some(id.to_bytes()) };
        let position = |version: u64| u128::from(version).to_be_bytes();
        let window = request.window(self.store.pepper(), listing, |after: VersionId| position(after.version))?;
        let access = access.clone();
        let read = self.store.read(move |tx| {
            let record = find(tx, &access, Scope::Project, id)?;
            let before = window.before.map(|before| u64::try_from(u128::from_be_bytes(before)).unwrap_or(u64::MAX));
            let versions = stored::newest_versions(tx, id, before, window.rows())?;
            let rows = versions.into_iter().map(|version| (id, version, record.clone()));
            read_versions(tx, rows.collect(), limit)
        });
        let Some(Versions { agents, is_cut }) = read.await? else {
            return Ok(LimitedRead::TooLarge { bytes: PAGE_BYTES });
        };
        let position = |agent: &Agent| position(agent.version);
        Ok(LimitedRead::Read(short_page(self.store.pepper(), listing, window, agents, is_cut, position)))
    }

    fn audit_entry(&self, access: &Access, action: &'static str) -> AuditEntry {
        AuditEntry::new(&self.clock_rng, Some(access), action)
    }
}

/// Versions of agents.
struct Versions {
    agents: Vec<Agent>,
    /// Whether not all were read, because those that were have [`PAGE_BYTES`].
    is_cut: bool,
}

/// Reads a version of each agent until they have [`PAGE_BYTES`]; `None` if they may be too large for `limit`.
fn read_versions(tx: &impl Reader, rows: Vec<(AgentId, u64, AgentRecord)>, limit: u64) -> Result<Option<Versions>> {
    let (mut agents, mut bytes, end) = (Vec::new(), 0, rows.len());
    for (id, version, record) in rows {
        if needs_page(bytes + record.bytes.min(MAX_VERSION_BYTES), limit) {
            return Ok(None);
        }
        if bytes >= PAGE_BYTES {
            break;
        }
        let content = stored::version(tx, id, version)?;
        bytes += content.bytes();
        agents.push(Agent::new(id, &record, version, content));
    }
    Ok(Some(Versions { is_cut: agents.len() < end, agents }))
}

impl AgentPatch {
    fn apply(self, old: AgentVersionRecord, created_at: Timestamp) -> AgentVersionRecord {
        let tools = match self.tools {
            Patch::Set(tools) => non_empty_tools(tools).map_or(Patch::Clear, Patch::Set),
            other => other,
        };
        AgentVersionRecord {
            name: self.name.apply_to(old.name),
            model: self.model.apply_to(old.model),
            instructions: self.instructions.apply_to(old.instructions),
            tools: tools.apply_to(old.tools),
            memory: self.memory.apply_to(old.memory),
            metadata: self.metadata.apply_to(old.metadata),
            created_at,
        }
    }
}

/// Adds a version and removes versions beyond the limit.
fn add_version(
    tx: &WriteTx,
    id: AgentId,
    old: AgentRecord,
    content: &AgentVersionRecord,
    now: Timestamp,
) -> Result<AgentRecord> {
    let version = old.version + 1;
    let oldest = old.oldest.max((version + 1).saturating_sub(MAX_VERSIONS));
    let mut bytes = old.bytes + content.bytes();
    for removed in old.oldest..oldest {
        bytes = bytes.saturating_sub(stored::find_version(tx, id, removed)?.map_or(0, |version| version.bytes()));
    }
    quotas::charge(tx, old.project, now, QuotaKind::Agent, 0, signed(bytes) - signed(old.bytes))?;
    (old.oldest..oldest).try_for_each(|removed| stored::remove_version(tx, id, removed))?;
    let record = AgentRecord { version, oldest, bytes, ..old };
    project_resources::replace(tx, id.to_bytes(), &record)?;
    stored::put_version(tx, id, version, content)?;
    Ok(record)
}

fn find(tx: &impl Reader, access: &Access, scope: Scope, id: AgentId) -> Result<AgentRecord> {
    authorize::resource(tx, access, scope, "agent", (id, id.to_bytes()))
}

fn no_version(version: u64, record: &AgentRecord) -> Error {
    let (oldest, newest) = (record.oldest, record.version);
    let text = format!("The agent has no version {version}. It has the versions {oldest} to {newest}.");
    Error::new(crate::error::Code::NotFound, text).param("version")
}

fn check(content: &AgentVersionRecord) -> Result<()> {
    content.name.as_deref().map_or(Ok(()), validation::name)?;
    content.model.as_deref().map_or(Ok(()), validation::model)?;
    validation::metadata(content.metadata.as_deref())?;
    let length = content.instructions.as_ref().map_or(0, |text| text.chars().count());
    if length > MAX_INSTRUCTIONS_CHARS {
        let text = format!("'instructions' has {length} characters; it may have {MAX_INSTRUCTIONS_CHARS}.");
        return Err(Error::invalid("instructions", text));
    }
    content.tools.as_deref().map_or(Ok(()), tool_definitions::check)?;
    match content.memory.and_then(|memory| memory.last_messages) {
        Some(count) if !(1..=MAX_LAST_MESSAGES).contains(&count) => {
            let text = format!("'memory.last_messages' is {count}; it must be 1 to {MAX_LAST_MESSAGES}.");
            Err(Error::invalid("memory.last_messages", text))
        }
        _ => Ok(()),
    }
}

/// `None` for an empty array of tools.
fn non_empty_tools(json: String) -> Option<String> {
    let json = message_validation::compact_json(&json);
    (json != "[]").then_some(json)
}
