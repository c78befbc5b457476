//! The business rules of each resource, of access and of the audit log. Every function on a resource requires an
//! [`Access`], which only a valid key yields. A resource is a file or folder; [`access`], [`audit`], [`limits`], [`pagination`],
//! [`validation`] and [`writes`] are what they share.

pub mod access;
pub mod agents;
mod all_services;
pub mod audit;
mod background_work;
pub mod batches;
pub mod chat_completions;
pub mod conversations;
pub mod export;
pub mod files;
pub mod fine_tuning;
pub mod keys;
pub mod limited_read;
pub mod limits;
pub mod maintenance;
pub mod pagination;
pub mod projects;
pub mod responses;
pub mod stored_images;
pub mod training_data;
pub mod usage;
pub mod validation;
pub mod writes;

pub use access::{Access, Scope, Scopes};
pub use agents::{Agent, AgentFields, Agents, Memory};
pub use all_services::Services;
pub use audit::{Audit, AuditEvent, AuditFilter};
pub use background_work::is_taken_over;
pub use conversations::{Conversation, Conversations, NewConversation, Replacement, Transcript};
pub use keys::secret::Secret;
pub use keys::setup::{FirstKey, first_start, new_admin_key};
pub use keys::{Key, Keys, NewKey, Rotation};
pub use pagination::{Page, PageRequest};
pub use projects::{NewProject, Project, Projects};
pub use writes::patch::Patch;
pub use writes::precondition::{IfMatch, Precondition};
