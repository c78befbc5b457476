//! Agents: instructions, model, tools and memory under one id. Each change makes a version; the
//! old ones stay readable.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use serde_json::json;

use super::access::{Access, Scope};
use super::audit::Note;
use super::change::Change;
use super::holdings::{self, Holding, signed};
use super::page::{Listing, Page, PageRequest, page};
use super::version::Expected;
use super::{authority, claim, fields, tools, transcript};
use crate::clock_rng::{ClockRng, Timestamp};
use crate::error::{Error, Result};
use crate::ids::{AgentId, BadId, ProjectId};
pub use crate::storage::agents::MemoryFields as Memory;
use crate::storage::agents::{self as stored, AgentRecord, AgentVersionRecord};
use crate::storage::{Reader, Store, WriteTx, project_resources};

/// Versions that an agent keeps; of more, the oldest go.
pub const MOST_VERSIONS: u64 = 1_000;
const LONGEST_INSTRUCTIONS: usize = 256_000;
const MOST_REMEMBERED: u32 = 4096;

/// An agent as it is in one of its versions.
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
    /// When the agent was made.
    pub created_at: Timestamp,
    /// When this version was made.
    pub updated_at: Timestamp,
}

impl Agent {
    fn new(id: AgentId, record: &AgentRecord, version: u64, content: AgentVersionRecord) -> Self {
        let AgentVersionRecord { name, model, instructions, tools, memory, metadata, made_at } = content;
        let (project, created_at) = (record.project, record.created_at);
        Self {
            id,
            project,
            version,
            name,
            model,
            instructions,
            tools,
            memory,
            metadata,
            created_at,
            updated_at: made_at,
        }
    }
}

/// What a new agent is made of.
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

/// What a change does to each field.
#[derive(Clone, Debug)]
pub struct AgentChange {
    pub name: Change<String>,
    pub model: Change<String>,
    pub instructions: Change<String>,
    pub tools: Change<String>,
    pub memory: Change<Memory>,
    pub metadata: Change<String>,
}

/// One version of an agent, as an entry of a listing.
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
        let bad = || BadId { kind: "agent version" };
        let (agent, version) = text.split_once('@').ok_or_else(bad)?;
        Ok(Self { agent: agent.parse()?, version: version.parse().map_err(|_| bad())? })
    }
}

/// The rules of agents.
#[derive(Clone)]
pub struct Agents {
    store: Store,
    clock_rng: Arc<dyn ClockRng>,
}

impl Agents {
    pub fn new(store: Store, clock_rng: Arc<dyn ClockRng>) -> Self {
        Self { store, clock_rng }
    }

    /// Makes an agent.
    pub async fn create(&self, access: &Access, new: NewAgent) -> Result<Agent> {
        let now = self.clock_rng.now();
        let project = new.project.unwrap_or_else(|| access.project());
        let NewAgent { name, model, instructions, tools, memory, metadata, project: _ } = new;
        let tools = tools.and_then(some_tools);
        let content = AgentVersionRecord { name, model, instructions, tools, memory, metadata, made_at: now };
        check(&content)?;
        let id = AgentId::generate(&*self.clock_rng);
        let note = self.note(access, "agent.created");
        let written = claim::write(&self.store, access, now, authority::manages(project), move |tx, caller| {
            let owner = authority::named_project(tx, caller, project)?;
            authority::living(&owner).map_err(|error| error.param("project_id"))?;
            let bytes = content.bytes();
            holdings::charge(tx, project, now, Holding::Agent, 1, signed(bytes))?;
            let record = AgentRecord { project, version: 1, oldest: 1, bytes, created_at: now };
            project_resources::insert(tx, id.to_bytes(), &record)?;
            stored::put_version(tx, id, 1, &content)?;
            note.write(tx, project, id, &json!({ "name": content.name, "model": content.model }))?;
            Ok(Agent::new(id, &record, 1, content.clone()))
        });
        written.await
    }

    /// Changes fields. What changes nothing makes no version.
    pub async fn update(&self, access: &Access, id: AgentId, change: AgentChange, expected: Expected) -> Result<Agent> {
        let now = self.clock_rng.now();
        // Each field by itself does not depend on what is stored.
        check(&change.clone().apply(AgentVersionRecord::empty(now), now))?;
        let note = self.note(access, "agent.updated");
        let permit = authority::manages_owner::<AgentRecord>(id.to_bytes());
        let written = claim::write(&self.store, access, now, permit, move |tx, caller| {
            let record = find(tx, caller, Scope::Project, id)?;
            authority::living_owner(tx, record.project)?;
            expected.check(Some(record.version))?;
            let old = stored::current(tx, id, &record)?;
            let new = change.clone().apply(old.clone(), old.made_at);
            if new == old {
                return Ok(Agent::new(id, &record, record.version, old));
            }
            let new = AgentVersionRecord { made_at: now, ..new };
            let record = add_version(tx, id, record, &new, now)?;
            let detail = json!({ "version": record.version, "name": new.name, "model": new.model });
            note.write(tx, record.project, id, &detail)?;
            Ok(Agent::new(id, &record, record.version, new))
        });
        written.await
    }

    /// Removes an agent with all its versions.
    pub async fn delete(&self, access: &Access, id: AgentId, expected: Expected) -> Result<()> {
        let now = self.clock_rng.now();
        let note = self.note(access, "agent.deleted");
        let permit = authority::manages_owner::<AgentRecord>(id.to_bytes());
        let written = claim::write(&self.store, access, now, permit, move |tx, caller| {
            let record = find(tx, caller, Scope::Project, id)?;
            authority::living_owner(tx, record.project)?;
            expected.check(Some(record.version))?;
            let name = stored::current(tx, id, &record)?.name;
            holdings::charge(tx, record.project, now, Holding::Agent, -1, -signed(record.bytes))?;
            (record.oldest..=record.version).try_for_each(|version| stored::remove_version(tx, id, version))?;
            project_resources::remove(tx, id.to_bytes(), &record)?;
            note.write(tx, record.project, id, &json!({ "name": name, "version": record.version }))
        });
        written.await
    }

    /// An agent as it is now, or as it was in `version`.
    pub async fn get(&self, access: &Access, id: AgentId, version: Option<u64>) -> Result<Agent> {
        let access = access.clone();
        let read = self.store.read(move |tx| {
            let record = find(tx, &access, Scope::Project, id)?;
            let version = version.unwrap_or(record.version);
            let content = stored::find_version(tx, id, version)?.ok_or_else(|| no_version(version, &record))?;
            Ok(Agent::new(id, &record, version, content))
        });
        read.await
    }

    /// An agent for a chat call: needs the scope `inference` in its project.
    pub async fn recall(&self, access: &Access, id: AgentId) -> Result<Agent> {
        let access = access.clone();
        let read = self.store.read(move |tx| {
            let record = find(tx, &access, Scope::Inference, id)?;
            authority::living_owner(tx, record.project)?;
            let content = stored::current(tx, id, &record)?;
            Ok(Agent::new(id, &record, record.version, content))
        });
        read.await.map_err(|error| error.param("agent_id"))
    }

    /// A page of a project's agents, the newest first. Default: the project of the key.
    pub async fn list(&self, access: &Access, project: Option<ProjectId>, request: PageRequest) -> Result<Page<Agent>> {
        let project = project.unwrap_or_else(|| access.project());
        let listing = Listing { name: "agents", owner: Some(project.to_bytes()) };
        let window = request.window(self.store.pepper(), listing, AgentId::to_bytes)?;
        let access = access.clone();
        let rows = self.store.read(move |tx| {
            authority::named_project(tx, &access, project)?;
            let rows = project_resources::newest::<AgentRecord>(tx, project, window.before, window.rows())?;
            let seen = |(id, record): ([u8; 16], AgentRecord)| {
                let id = AgentId::from_bytes(id);
                Ok(Agent::new(id, &record, record.version, stored::current(tx, id, &record)?))
            };
            rows.into_iter().map(seen).collect::<Result<Vec<_>>>()
        });
        Ok(page(self.store.pepper(), listing, window, rows.await?, |agent: &Agent| agent.id.to_bytes()))
    }

    /// A page of an agent's versions, the newest first.
    pub async fn versions(&self, access: &Access, id: AgentId, request: PageRequest) -> Result<Page<Agent>> {
        let listing = Listing { name: "agent_versions", owner: Some(id.to_bytes()) };
        let position = |version: u64| u128::from(version).to_be_bytes();
        let window = request.window(self.store.pepper(), listing, |after: VersionId| position(after.version))?;
        let access = access.clone();
        let rows = self.store.read(move |tx| {
            let record = find(tx, &access, Scope::Project, id)?;
            let before = window.before.map(|before| u64::try_from(u128::from_be_bytes(before)).unwrap_or(u64::MAX));
            let rows = stored::newest_versions(tx, id, before, window.rows())?;
            Ok(rows.into_iter().map(|(version, content)| Agent::new(id, &record, version, content)).collect())
        });
        Ok(page(self.store.pepper(), listing, window, rows.await?, |agent: &Agent| position(agent.version)))
    }

    fn note(&self, access: &Access, action: &'static str) -> Note {
        Note::new(&self.clock_rng, Some(access), action)
    }
}

impl AgentChange {
    fn apply(self, old: AgentVersionRecord, made_at: Timestamp) -> AgentVersionRecord {
        let tools = match self.tools {
            Change::Set(tools) => some_tools(tools).map_or(Change::Clear, Change::Set),
            other => other,
        };
        AgentVersionRecord {
            name: self.name.applied(old.name),
            model: self.model.applied(old.model),
            instructions: self.instructions.applied(old.instructions),
            tools: tools.applied(old.tools),
            memory: self.memory.applied(old.memory),
            metadata: self.metadata.applied(old.metadata),
            made_at,
        }
    }
}

/// Adds a version and drops the oldest beyond what is kept.
fn add_version(
    tx: &WriteTx,
    id: AgentId,
    old: AgentRecord,
    content: &AgentVersionRecord,
    now: Timestamp,
) -> Result<AgentRecord> {
    let version = old.version + 1;
    let oldest = old.oldest.max((version + 1).saturating_sub(MOST_VERSIONS));
    let mut bytes = old.bytes + content.bytes();
    for gone in old.oldest..oldest {
        bytes = bytes.saturating_sub(stored::find_version(tx, id, gone)?.map_or(0, |gone| gone.bytes()));
    }
    holdings::charge(tx, old.project, now, Holding::Agent, 0, signed(bytes) - signed(old.bytes))?;
    (old.oldest..oldest).try_for_each(|gone| stored::remove_version(tx, id, gone))?;
    let record = AgentRecord { version, oldest, bytes, ..old };
    project_resources::replace(tx, id.to_bytes(), &record)?;
    stored::put_version(tx, id, version, content)?;
    Ok(record)
}

fn find(tx: &impl Reader, access: &Access, scope: Scope, id: AgentId) -> Result<AgentRecord> {
    authority::owned(tx, access, scope, "agent", (id, id.to_bytes()))
}

fn no_version(version: u64, record: &AgentRecord) -> Error {
    let (oldest, newest) = (record.oldest, record.version);
    let text = format!("The agent has no version {version}. It has the versions {oldest} to {newest}.");
    Error::new(crate::error::Code::NotFound, text).param("version")
}

fn check(content: &AgentVersionRecord) -> Result<()> {
    content.name.as_deref().map_or(Ok(()), fields::name)?;
    content.model.as_deref().map_or(Ok(()), fields::model)?;
    fields::metadata(content.metadata.as_deref())?;
    let length = content.instructions.as_ref().map_or(0, |text| text.chars().count());
    if length > LONGEST_INSTRUCTIONS {
        let text = format!("'instructions' has {length} characters; it may have {LONGEST_INSTRUCTIONS}.");
        return Err(Error::invalid("instructions", text));
    }
    content.tools.as_deref().map_or(Ok(()), tools::check)?;
    match content.memory.and_then(|memory| memory.last_messages) {
        Some(count) if !(1..=MOST_REMEMBERED).contains(&count) => {
            let text = format!("'memory.last_messages' is {count}; it must be 1 to {MOST_REMEMBERED}.");
            Err(Error::invalid("memory.last_messages", text))
        }
        _ => Ok(()),
    }
}

/// An empty array of tools is none.
fn some_tools(json: String) -> Option<String> {
    let json = transcript::compact(&json);
    (json != "[]").then_some(json)
}
