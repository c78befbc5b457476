//! The rules of each resource, of access and of the audit log. Every function that touches a resource demands
//! an [`Access`], which only a checked key yields.

pub mod access;
pub mod agents;
pub mod audit;
mod authorize;
mod base62;
mod cache;
pub mod change;
pub mod concurrency_limit;
pub mod conversations;
mod dataset;
mod example;
pub mod export;
mod failures;
mod fields;
pub mod files;
mod grace;
pub mod idempotency;
mod job;
pub mod jobs;
pub mod json;
pub mod keys;
pub mod limits;
pub mod page;
pub mod pictures;
pub mod projects;
pub mod quotas;
pub mod secrets;
pub mod setup;
pub mod tools;
pub mod training;
pub mod transcript;
pub mod upload;
pub mod usage;
pub mod version;

pub use access::{Access, Scope, Scopes};
pub use agents::{Agent, AgentChange, Agents, Memory, NewAgent};
pub use audit::{Audit, AuditEvent, AuditFilter};
pub use change::Change;
pub use conversations::{Conversation, Conversations, NewConversation, Replacement, Transcript};
pub use keys::{Key, KeyChange, Keys, NewKey, Rotation};
pub use page::{Page, PageRequest};
pub use projects::{NewProject, Project, ProjectSettings, Projects};
pub use secrets::Secret;
pub use setup::{FirstKey, first_start, new_admin_key};
pub use version::{Expected, IfMatch};
