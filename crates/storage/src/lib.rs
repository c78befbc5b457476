//! Durable storage: one redb file, one writer thread, many readers.
//!
//! [`Store::write`] runs a closure in a transaction shared with other waiting writes, and resolves once the transaction
//! is durable. [`Store::read`] sees one consistent snapshot. Every value starts with a version byte. Records that
//! decide access have a MAC bound to their key, so damage results in an error and never in a different permission. All
//! others have a checksum. For damaged pages a caller gets `storage_unavailable`.
//!
//! The files in the data folder: `outpost.redb`, `pepper` (without it no key can be checked) and
//! `lock` (held while a process uses the folder).

mod backup;
mod cluster;
mod codec;
mod engine;
pub mod error;
mod exchanges;
pub mod ids;
mod meta;
mod numbered;
mod pepper;
mod postgres;
mod private_files;
mod records;
mod redb;
mod remote;
mod scopes;
mod shared_state;
mod store;
mod store_copy;
mod store_engine;
mod store_error;
mod tables;
mod transaction;
mod verify;
mod write_queue;

pub use backup::BackupReport;
pub use cluster::{Cluster, NodeProcess, Peers};
pub use codec::Record;
pub use exchanges::Exchanges;
pub use pepper::{Digest, Pepper};
pub use postgres::{PostgresLocation, PostgresOpenError, PostgresSettings, StoreUrlError};
pub use private_files::{DATABASE as DATABASE_FILE, NewFile, PEPPER as PEPPER_FILE, protect_secret};
pub use records::limits::LevelsRecord;
pub use records::{
    agents, audit, batches, chat_completions, content_chunks, conversations, files, fine_tuning_checkpoints,
    fine_tuning_jobs, idempotency_keys, keys, latest_time, limits, project_resources, projects, quota_usage,
    response_steps, responses, stored_images, usage, work_leases,
};
pub use redb::check::check;
pub use redb::database::Opener;
pub use redb::database::{FolderLock, lock_folder};
pub use redb::migrations::LAYOUT;
pub use redb::restore::{RestoreReport, restore};
pub use redb::unfinished::require_finished;
pub use scopes::{Scope, Scopes};
pub use shared_state::Watcher;
pub use store::{Store, StoreSettings, WriteStats};
pub use store_copy::{StoreCopyReport, StorePlace, copy_store};
pub use store_error::{BackupError, CheckError, OpenError, RestoreError, StoreCopyError};
pub use tables::Table;
pub use transaction::{ReadTx, Reader, WriteTx};
pub use verify::report::CheckReport;
