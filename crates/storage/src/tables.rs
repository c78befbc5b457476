//! All tables of the database. They map bytes to bytes: keys in sort order, values as [`codec`](crate::codec) encodes
//! them. This lets backup and verification iterate over any table.

use outpost_common::disk_space::DataClass;

/// The name of a table; part of the input of a record's MAC.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Table(&'static str);

impl Table {
    pub fn name(self) -> &'static str {
        self.0
    }

    /// True for tables whose values may have half a mebibyte or more.
    pub(super) fn has_large_values(self) -> bool {
        matches!(
            self,
            CONTENT_CHUNKS
                | STORED_IMAGE_CHUNKS
                | RESPONSE_CONTENTS
                | OPEN_RESPONSES
                | RESPONSE_STEPS
                | CHAT_COMPLETION_CONTENTS
                | BATCH_RESULTS
                | IDEMPOTENCY_KEYS
        )
    }
}

impl Table {
    /// When the disk has little space, the less essential tables are no longer written.
    pub(super) fn data_class(self) -> DataClass {
        match self {
            CONTENT_CHUNKS | STORED_IMAGE_CHUNKS => DataClass::Bulk,
            CONVERSATIONS
            | MESSAGES
            | AGENTS
            | AGENT_VERSIONS
            | RESPONSE_CONTENTS
            | OPEN_RESPONSES
            | RESPONSE_STEPS
            | CHAT_COMPLETION_CONTENTS
            | BATCH_RESULTS
            | IDEMPOTENCY_KEYS
            | JOB_EVENTS => DataClass::Content,
            _ => DataClass::Essential,
        }
    }
}

/// Layout version, check value of the pepper; in a backup the pepper itself.
pub const META: Table = Table("meta");
/// Project id → project.
pub const PROJECTS: Table = Table("projects");
/// Key id → key.
pub const KEYS: Table = Table("keys");
/// Project id, key id → nothing: the index of keys by project.
pub const KEYS_BY_PROJECT: Table = Table("keys_by_project");
/// Key id → when the key was last used.
pub const KEY_USES: Table = Table("key_uses");
/// Project id, audit id → audit row.
pub const AUDIT: Table = Table("audit");
/// Audit id → project id: the rows of all projects in order of time.
pub const AUDIT_BY_TIME: Table = Table("audit_by_time");

/// Project id, kind of resource, resource id → nothing: the index of other resources by project.
pub const RESOURCES_BY_PROJECT: Table = Table("resources_by_project");
/// Project id → limits, ceiling and quotas.
pub const LIMITS: Table = Table("limits");
/// Project id → the levels of its rate limiter after the last answered request.
pub const LEVELS: Table = Table("levels");
/// Project id → its quota usage.
pub const QUOTA_USAGE: Table = Table("quota_usage");
/// Project id, time → the stored bytes from that time on.
pub const STORED_BYTES_HISTORY: Table = Table("stored_bytes_history");
/// Digest of API key and idempotency key → the result of the first request.
pub const IDEMPOTENCY_KEYS: Table = Table("idempotency_keys");
/// Inverted time, digest → nothing. The oldest idempotency key is last.
pub const IDEMPOTENCY_KEYS_BY_AGE: Table = Table("idempotency_keys_by_age");
/// Conversation id → conversation.
pub const CONVERSATIONS: Table = Table("conversations");
/// Conversation id, index → message.
pub const MESSAGES: Table = Table("messages");
/// Agent id → agent.
pub const AGENTS: Table = Table("agents");
/// Agent id, version → the agent in that version.
pub const AGENT_VERSIONS: Table = Table("agent_versions");
/// File id → file.
pub const FILES: Table = Table("files");
/// File id, index → a chunk of the content of a file, a training's saved state or an adapter.
pub const CONTENT_CHUNKS: Table = Table("content_chunks");
/// File id → nothing: marks chunks that belong to nothing, because the upload is not complete or it was removed.
pub const ORPHANED_CHUNKS: Table = Table("orphaned_chunks");
/// Image id → stored image.
pub const STORED_IMAGES: Table = Table("stored_images");
/// Image id, index → a chunk of its content.
pub const STORED_IMAGE_CHUNKS: Table = Table("stored_image_chunks");
/// Inverted expiry time, image id → nothing. The image that expires first is last.
pub const STORED_IMAGES_BY_EXPIRY: Table = Table("stored_images_by_expiry");
/// Job id → fine-tuning job.
pub const JOBS: Table = Table("jobs");
/// Job id, event id → event.
pub const JOB_EVENTS: Table = Table("job_events");
/// Job id → nothing: the jobs that have not ended.
pub const OPEN_JOBS: Table = Table("open_jobs");
/// File id → the saved state of a training.
pub const TRAINING_STATES: Table = Table("training_states");
/// Checkpoint id → an adapter that a job has trained.
pub const CHECKPOINTS: Table = Table("checkpoints");
/// Name of a tuned model → checkpoint id.
pub const TUNED_MODELS: Table = Table("tuned_models");
/// Response id → response of the Responses API.
pub const RESPONSES: Table = Table("responses");
/// Response id → its input and the response itself.
pub const RESPONSE_CONTENTS: Table = Table("response_contents");
/// Response id → the request of a response that is generated in the background and has not ended.
pub const OPEN_RESPONSES: Table = Table("open_responses");
/// Response id → the node that generates it now. Empty unless several nodes can share the store.
pub const RESPONSE_GENERATIONS: Table = Table("response_generations");
/// Response id → the steps of its output as they were generated, for streams that begin later. Response id, part → some of
/// these steps, while a node generates them and others can follow.
pub const RESPONSE_STEPS: Table = Table("response_steps");
/// Completion id → stored chat completion.
pub const CHAT_COMPLETIONS: Table = Table("chat_completions");
/// Completion id → its messages and the completion itself.
pub const CHAT_COMPLETION_CONTENTS: Table = Table("chat_completion_contents");
/// Batch id → batch.
pub const BATCHES: Table = Table("batches");
/// Batch id, line → the result of the request in that line of the input, until the batch has ended.
pub const BATCH_RESULTS: Table = Table("batch_results");
/// Batch id → nothing: the batches that have not ended, or whose results are not removed yet.
pub const OPEN_BATCHES: Table = Table("open_batches");
/// Project id, time, tail → one metered request.
pub const USAGE: Table = Table("usage");
/// Project id, width, start, series, on a shared database the node → the sums of that minute, hour or day.
pub const USAGE_SUMS: Table = Table("usage_sums");
/// Project id, series → the key, endpoint and model that the series counts.
pub const SERIES: Table = Table("series");
/// Project id, digest of key, endpoint and model, and whether its tokens are estimated → series.
pub const SERIES_BY_NAME: Table = Table("series_by_name");
/// Project id, series → nothing: the series of requests whose tokens are estimated.
pub const ESTIMATED_SERIES: Table = Table("estimated_series");
/// Nothing → the times before which raw records and minutes are deleted.
pub const HORIZON: Table = Table("horizon");

/// Kind and id of background work → the process that does it, if nodes share the store.
pub const WORK_LEASES: Table = Table("work_leases");

/// Tables that opening a store creates if absent.
pub const ALL: &[Table] = &[
    META,
    PROJECTS,
    KEYS,
    KEYS_BY_PROJECT,
    KEY_USES,
    AUDIT,
    AUDIT_BY_TIME,
    RESOURCES_BY_PROJECT,
    LIMITS,
    LEVELS,
    QUOTA_USAGE,
    STORED_BYTES_HISTORY,
    IDEMPOTENCY_KEYS,
    IDEMPOTENCY_KEYS_BY_AGE,
    CONVERSATIONS,
    MESSAGES,
    AGENTS,
    AGENT_VERSIONS,
    FILES,
    CONTENT_CHUNKS,
    ORPHANED_CHUNKS,
    STORED_IMAGES,
    STORED_IMAGE_CHUNKS,
    STORED_IMAGES_BY_EXPIRY,
    JOBS,
    JOB_EVENTS,
    OPEN_JOBS,
    TRAINING_STATES,
    CHECKPOINTS,
    TUNED_MODELS,
    RESPONSES,
    RESPONSE_CONTENTS,
    OPEN_RESPONSES,
    RESPONSE_GENERATIONS,
    RESPONSE_STEPS,
    CHAT_COMPLETIONS,
    CHAT_COMPLETION_CONTENTS,
    BATCHES,
    BATCH_RESULTS,
    OPEN_BATCHES,
    USAGE,
    USAGE_SUMS,
    SERIES,
    SERIES_BY_NAME,
    ESTIMATED_SERIES,
    HORIZON,
    WORK_LEASES,
];
