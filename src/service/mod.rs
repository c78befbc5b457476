//! The rules of projects, keys, access and audit. Every function that touches a resource demands
//! an [`Access`], which only a checked key yields.

pub mod access;
pub mod audit;
mod authority;
mod base62;
mod cache;
pub mod claim;
mod dataset;
mod example;
pub mod export;
mod fields;
pub mod files;
mod grace;
pub mod holdings;
mod job;
pub mod jobs;
pub mod keys;
pub mod limits;
pub mod page;
mod places;
pub mod projects;
pub mod secrets;
pub mod setup;
pub mod training;
pub mod upload;
pub mod usage;

pub use access::{Access, Scope, Scopes};
pub use audit::{Audit, AuditEvent, AuditFilter};
pub use keys::{Change, Key, KeyChange, Keys, NewKey, Rotation};
pub use page::{Page, PageRequest};
pub use projects::{NewProject, Project, ProjectSettings, Projects};
pub use secrets::Secret;
pub use setup::{FirstKey, first_start, new_admin_key};
