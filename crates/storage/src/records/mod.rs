//! The records, grouped by resource: their types, and the functions that read and write them in a transaction.

pub mod agents;
pub mod audit;
pub mod batches;
pub mod chat_completions;
pub mod content_chunks;
pub mod conversations;
pub mod files;
pub mod fine_tuning_checkpoints;
pub mod fine_tuning_jobs;
pub mod idempotency_keys;
pub mod keys;
pub mod latest_time;
pub mod limits;
pub mod project_resources;
pub mod projects;
pub mod quota_usage;
pub mod response_steps;
pub mod responses;
pub mod stored_images;
pub mod usage;
pub mod work_leases;
