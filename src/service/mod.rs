//! The business rules of each resource, of access and of the audit log. Every function on a resource requires an
//! [`Access`], which only a valid key yields.

pub mod access;
pub mod agents;
mod all_services;
pub mod api_key_secret;
pub mod audit;
mod auth_throttle;
mod authorize;
mod base62;
pub mod concurrency_limit;
pub mod conversations;
pub mod export;
pub mod files;
pub mod fine_tuning;
pub mod idempotency;
pub mod json_fields;
mod key_cache;
pub mod keys;
pub mod limits;
pub mod message_validation;
mod monotonic_time;
pub mod pagination;
pub mod patch;
pub mod precondition;
pub mod projects;
pub mod quotas;
pub mod setup;
mod signed_urls;
pub mod stored_images;
pub mod tool_definitions;
pub mod training_data;
pub mod upload;
pub mod usage;
mod validation;

pub use access::{Access, Scope, Scopes};
pub use agents::{Agent, AgentPatch, Agents, Memory, NewAgent};
pub use all_services::Services;
pub use api_key_secret::Secret;
pub use audit::{Audit, AuditEvent, AuditFilter};
pub use conversations::{Conversation, Conversations, NewConversation, Replacement, Transcript};
pub use keys::{Key, KeyPatch, Keys, NewKey, Rotation};
pub use pagination::{Page, PageRequest};
pub use patch::Patch;
pub use precondition::{IfMatch, Precondition};
pub use projects::{NewProject, Project, ProjectSettings, Projects};
pub use setup::{FirstKey, first_start, new_admin_key};
