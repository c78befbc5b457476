//! Agents: instructions, model, tools and memory under one id. Each change creates a version; old versions stay
//! readable.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use serde_json::json;

use super::access::authorize;
use super::access::{Access, Scope};
use super::audit::AuditEntry;
use super::limited_read::{LimitedRead, PAGE_BYTES, needs_page};
use super::limits::quotas::{self, QuotaKind, signed};
use super::pagination::{Listing, Page, PageRequest, short_page};
use super::validation;
use super::validation::message_validation;
use super::validation::tool_definitions;
use super::writes::precondition::Precondition;
use crate::clock_rng::{ClockRng, Timestamp};
use crate::error::{Error, Result};
use crate::ids::{AgentId, BadId, ProjectId};
use crate::storage::agents::{self as stored, AgentRecord, AgentVersionRecord};
pub use crate::storage::agents::{AgentFields, MemoryFields as Memory};
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
    #[serde(flatten)]
    pub fields: AgentFields,
    /// When the agent was created.
    pub created_at: Timestamp,
    /// When this version was created.
    pub updated_at: Timestamp,
}

impl Agent {
    fn new(id: AgentId, record: &AgentRecord, version: u64, content: AgentVersionRecord) -> Self {
        let AgentVersionRecord { fields, created_at: updated_at } = content;
        Self { id, project: record.project, version, fields, created_at: record.created_at, updated_at }
    }
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

    /// Creates an agent. Default project: that of the key.
    pub async fn create(&self, access: &Access, project: Option<ProjectId>, fields: AgentFields) -> Result<Agent> {
        let now = self.clock_rng.now();
        let project = project.unwrap_or_else(|| access.project());
        let fields = normalized(fields);
        check(&fields)?;
        let id = AgentId::generate(&*self.clock_rng);
        let entry = self.audit_entry(access, "agent.created");
        let permit = authorize::manage_project(project);
        let written = authorize::write(&self.store, access, now, permit, move |tx, caller| {
            let owner = authorize::named_project(tx, caller, project)?;
            authorize::require_active(&owner).map_err(|error| error.param("project_id"))?;
            let bytes = fields.bytes();
            quotas::charge(tx, project, now, QuotaKind::Agent, 1, signed(bytes))?;
            let record = AgentRecord { project, version: 1, oldest: 1, bytes, created_at: now };
            project_resources::insert(tx, id.to_bytes(), &record)?;
            let content = AgentVersionRecord { fields: fields.clone(), created_at: now };
            stored::put_version(tx, id, 1, &content)?;
            entry.write(tx, project, id, &json!({ "name": fields.name, "model": fields.model }))?;
            Ok(Agent::new(id, &record, 1, content))
        });
        written.await
    }

    /// Replaces the fields by those that `change` makes of them. An update that changes nothing creates no version.
    ///
    /// What `change` sets must not depend on what it gets: new values are checked before the stored agent is read.
    pub async fn update(
        &self,
        access: &Access,
        id: AgentId,
        change: impl Fn(AgentFields) -> AgentFields + Send + 'static,
        precondition: Precondition,
    ) -> Result<Agent> {
        let now = self.clock_rng.now();
        check(&normalized(change(AgentFields::default())))?;
        let entry = self.audit_entry(access, "agent.updated");
        let permit = authorize::manage_owner::<AgentRecord>(id.to_bytes());
        let written = authorize::write(&self.store, access, now, permit, move |tx, caller| {
            let record = find(tx, caller, Scope::Project, id)?;
            authorize::require_active_owner(tx, record.project)?;
            precondition.check(Some(record.version))?;
            let old = stored::current(tx, id, &record)?;
            let fields = normalized(change(old.fields.clone()));
            if fields == old.fields {
                return Ok(Agent::new(id, &record, record.version, old));
            }
            let new = AgentVersionRecord { fields, created_at: now };
            let record = add_version(tx, id, record, &new, now)?;
            let detail = json!({ "version": record.version, "name": new.fields.name, "model": new.fields.model });
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
            let name = stored::current(tx, id, &record)?.fields.name;
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
        bytes += content.fields.bytes();
        agents.push(Agent::new(id, &record, version, content));
    }
    Ok(Some(Versions { is_cut: agents.len() < end, agents }))
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
    let mut bytes = old.bytes + content.fields.bytes();
    for removed in old.oldest..oldest {
        bytes =
            bytes.saturating_sub(stored::find_version(tx, id, removed)?.map_or(0, |version| version.fields.bytes()));
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

fn check(fields: &AgentFields) -> Result<()> {
    fields.name.as_deref().map_or(Ok(()), validation::name)?;
    fields.model.as_deref().map_or(Ok(()), validation::model)?;
    validation::metadata(fields.metadata.as_deref())?;
    let length = fields.instructions.as_ref().map_or(0, |text| text.chars().count());
    if length > MAX_INSTRUCTIONS_CHARS {
        let text = format!("'instructions' has {length} characters; it may have {MAX_INSTRUCTIONS_CHARS}.");
        return Err(Error::invalid("instructions", text));
    }
    fields.tools.as_deref().map_or(Ok(()), tool_definitions::check)?;
    match fields.memory.and_then(|memory| memory.last_messages) {
        Some(count) if !(1..=MAX_LAST_MESSAGES).contains(&count) => {
            let text = format!("'memory.last_messages' is {count}; it must be 1 to {MAX_LAST_MESSAGES}.");
            Err(Error::invalid("memory.last_messages", text))
        }
        _ => Ok(()),
    }
}

/// The fields with compact tools; without any for an empty array.
fn normalized(fields: AgentFields) -> AgentFields {
    AgentFields { tools: fields.tools.and_then(non_empty_tools), ..fields }
}

/// `None` for an empty array of tools.
fn non_empty_tools(json: String) -> Option<String> {
    let json = message_validation::compact_json(&json);
    (json != "[]").then_some(json)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As it is stored under an idempotency key, by this and earlier versions of the program.
    #[test]
    fn an_agents_fields_stand_beside_the_others_in_json() {
        let fields = AgentFields {
            name: Some("guide".to_owned()),
            memory: Some(Memory { truncate: Some(true), last_messages: None }),
            ..AgentFields::default()
        };
        let agent = Agent {
            id: AgentId::from_bytes([1; 16]),
            project: ProjectId::from_bytes([2; 16]),
            version: 3,
            fields,
            created_at: Timestamp::from_millis(0),
            updated_at: Timestamp::from_millis(1_000),
        };
        let json = concat!(
            r#"{"id":"agent_01010101010101010101010101010101","project":"proj_02020202020202020202020202020202","version":3,"#,
            r#""name":"guide","model":null,"instructions":null,"tools":null,"#,
            r#""memory":{"truncate":true,"last_messages":null},"metadata":null,"#,
            r#""created_at":"1970-01-01T00:00:00.000Z","updated_at":"1970-01-01T00:00:01.000Z"}"#
        );
        assert_eq!(serde_json::to_string(&agent).unwrap(), json);
        assert_eq!(serde_json::from_str::<Agent>(json).unwrap(), agent);
    }
}
