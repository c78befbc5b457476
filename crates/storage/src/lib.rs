//! Durable storage: one redb file, one writer thread, many readers.
//!
//! [`Store::write`] runs a closure in a transaction shared with other waiting writes, and resolves once the transaction
//! is durable. [`Store::read`] sees one consistent snapshot. Every value starts with a version byte. Records that
//! decide access have a MAC bound to their key, so damage results in an error and never in a different permission. All
//! others have a checksum. For damaged pages a caller gets `storage_unavailable`.
//!
//! The files in the data folder: `outpost.redb`, `pepper` (without it no key can be checked) and
//! `lock` (held while a process uses the folder).

pub mod agents;
pub mod audit;
mod backup;
pub mod batches;
pub mod chat_completions;
mod check_report;
mod cluster;
mod codec;
pub mod content_chunks;
pub mod conversations;
mod engine;
pub mod error;
mod exchanges;
pub mod file_records;
pub mod fine_tuning_checkpoints;
pub mod fine_tuning_jobs;
pub mod idempotency_records;
pub mod ids;
mod jobs;
pub mod keys;
pub mod latest_time;
pub mod limits;
mod meta;
mod peers;
mod pepper;
mod postgres;
mod private_files;
pub mod project_resources;
pub mod projects;
pub mod quota_usage;
mod record_serde;
mod redb;
mod remote;
pub mod response_steps;
pub mod responses;
mod shared_state;
mod store;
mod store_copy;
mod store_engine;
mod store_error;
pub mod stored_images;
mod tables;
mod transaction;
pub mod usage;
mod verify;
mod verify_batches;
mod verify_chat_completions;
mod verify_responses;
mod verify_usage_sums;
mod watchers;
pub mod work_leases;

pub use backup::BackupReport;
pub use check_report::CheckReport;
pub use cluster::{Cluster, NodeProcess};
pub use codec::Record;
pub use exchanges::Exchanges;
pub use limits::LevelsRecord;
pub use peers::Peers;
pub use pepper::{Digest, Pepper};
pub use postgres::{PostgresLocation, PostgresOpenError, PostgresSettings, StoreUrlError};
pub use private_files::{DATABASE as DATABASE_FILE, NewFile, PEPPER as PEPPER_FILE, protect_secret};
pub use record_serde::{key_id, maybe_key_id, maybe_project_id, maybe_time, project_id, time};
pub use redb::check::check;
pub use redb::database::Opener;
pub use redb::database::{FolderLock, lock_folder};
pub use redb::migrations::LAYOUT;
pub use redb::restore::{RestoreReport, restore};
pub use redb::unfinished::require_finished;
pub use store::{Store, StoreSettings, WriteStats};
pub use store_copy::{StoreCopyReport, StorePlace, copy_store};
pub use store_error::{BackupError, CheckError, OpenError, RestoreError, StoreCopyError};
pub use tables::Table;
pub use transaction::{ReadTx, Reader, WriteTx};
pub use watchers::Watcher;
