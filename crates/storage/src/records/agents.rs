//! Stored agents. The content is in the versions of an agent. The record has the range of versions.
//!
//! The current state is the newest version. Nothing is stored twice, so the bytes that count toward the project's quota
//! can be verified.

use serde::{Deserialize, Serialize};

use super::project_resources::{ProjectResource, ResourceKind};
use crate::codec::{self, Record};
use crate::error::Result;
use crate::ids::{AgentId, ProjectId};
use crate::tables::{AGENT_VERSIONS, AGENTS, Table};
use crate::transaction::{Reader, WriteTx};
use outpost_common::clock_rng::Timestamp;

#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct AgentRecord {
    pub project: ProjectId,
    /// The current version, counted from 1.
    pub version: u64,
    /// The oldest stored version.
    pub oldest: u64,
    /// Content bytes of all stored versions, for the quota.
    pub bytes: u64,
    pub created_at: Timestamp,
}

impl Record for AgentRecord {
    const TABLE: Table = AGENTS;
    const VERSION: u8 = 1;
    const SEALED: bool = true;
}

impl ProjectResource for AgentRecord {
    const KIND: ResourceKind = ResourceKind::Agent;

    fn project(&self) -> ProjectId {
        self.project
    }
}

/// One version of an agent.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AgentVersionRecord {
    pub fields: AgentFields,
    pub created_at: Timestamp,
}

/// The content of an agent, which its owner sets.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct AgentFields {
    pub name: Option<String>,
    pub model: Option<String>,
    pub instructions: Option<String>,
    /// A JSON array of tool definitions, as text; none if it has no tool.
    pub tools: Option<String>,
    pub memory: Option<MemoryFields>,
    /// A JSON object, as text.
    pub metadata: Option<String>,
}

/// Memory settings of an agent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct MemoryFields {
    /// Whether the oldest turns may be left out if the context is too small; absent: the request's setting.
    pub truncate: Option<bool>,
    /// Max number of a conversation's last messages.
    pub last_messages: Option<u32>,
}

impl Record for AgentVersionRecord {
    const TABLE: Table = AGENT_VERSIONS;
    const VERSION: u8 = 1;
}

impl AgentFields {
    /// Bytes, for the quota; memory settings do not count.
    pub fn bytes(&self) -> u64 {
        let texts = [&self.name, &self.model, &self.instructions, &self.tools, &self.metadata];
        texts.into_iter().flatten().map(|text| text.len() as u64).sum()
    }
}

pub fn find_version(tx: &impl Reader, id: AgentId, version: u64) -> Result<Option<AgentVersionRecord>> {
    tx.get(&row_key(id, version))
}

/// The current version.
pub fn current(tx: &impl Reader, id: AgentId, record: &AgentRecord) -> Result<AgentVersionRecord> {
    version(tx, id, record.version)
}

/// A version that exists.
pub fn version(tx: &impl Reader, id: AgentId, version: u64) -> Result<AgentVersionRecord> {
    let found = find_version(tx, id, version)?;
    found.ok_or_else(|| codec::inconsistent(format!("version {version} of {id} does not exist")))
}

pub fn put_version(tx: &WriteTx, id: AgentId, version: u64, record: &AgentVersionRecord) -> Result<()> {
    tx.put(&row_key(id, version), record)
}

pub fn remove_version(tx: &WriteTx, id: AgentId, version: u64) -> Result<()> {
    tx.remove::<AgentVersionRecord>(&row_key(id, version))
}

/// The numbers of up to `limit` versions older than `before`, newest first.
pub fn newest_versions(tx: &impl Reader, id: AgentId, before: Option<u64>, limit: usize) -> Result<Vec<u64>> {
    let before = before.map(|version| row_key(id, version));
    let keys = tx.keys(AGENT_VERSIONS, &id.to_bytes(), before.as_deref(), Some(limit))?;
    keys.iter().map(|key| number(key)).collect()
}

/// The version number in the key of a version.
pub(crate) fn number(key: &[u8]) -> Result<u64> {
    let digits = key.get(16..).and_then(|digits| digits.try_into().ok());
    digits.map(u64::from_be_bytes).ok_or_else(|| codec::inconsistent("a malformed key of an agent's version"))
}

fn row_key(id: AgentId, version: u64) -> Vec<u8> {
    [&id.to_bytes()[..], &version.to_be_bytes()].concat()
}
