//! Fills a store with records of every kind, through the functions that the services use.

use outpost::clock_rng::{ClockRng, Timestamp};
use outpost::error::Result;
use outpost::ids::{
    AgentId, AuditId, BatchId, CheckpointId, CompletionId, ConversationId, FileId, JobEventId, JobId, KeyId, ProjectId,
    ResponseId, StoredImageId,
};
use outpost::storage::agents::{self, AgentFields, AgentRecord, AgentVersionRecord};
use outpost::storage::audit::{self, AuditRecord};
use outpost::storage::batches::{self, BatchEndpoint, BatchRecord, BatchResultRecord, BatchState, BatchTimesRecord};
use outpost::storage::chat_completions::{self, ChatCompletionContentRecord, ChatCompletionRecord};
use outpost::storage::content_chunks::{self, CHUNK_BYTES, Chunk};
use outpost::storage::conversations::{self, ConversationRecord};
use outpost::storage::files::{self, FileRecord, Purpose};
use outpost::storage::fine_tuning_checkpoints::{self, CheckpointRecord};
use outpost::storage::fine_tuning_jobs::{self, HyperparametersRecord, JobEventRecord, JobRecord, SavedStateRecord};
use outpost::storage::idempotency_keys::{self, IdempotencyRecord};
use outpost::storage::keys::{self, KeyFields, KeyRecord};
use outpost::storage::limits::{self, LevelsRecord, LimitsRecord};
use outpost::storage::projects::{self, ProjectRecord};
use outpost::storage::quota_usage::{self, QuotaUsageRecord};
use outpost::storage::response_steps::{self, ResponseStepsRecord};
use outpost::storage::responses::{self, OpenResponseRecord, ResponseContentRecord, ResponseRecord};
use outpost::storage::usage::{self, Amounts, Horizon, Outcome, SeriesRecord, UsageRecord};
use outpost::storage::{
    Digest, NodeProcess, Scope, Scopes, Store, WriteTx, latest_time, project_resources, stored_images,
};

use crate::fixture::{Clock, START};

/// The number of records that each [`fill`]ed project has, at least.
pub const RECORDS_PER_PROJECT: usize = 78;

/// Fills a store with `projects` projects that have records of every kind.
pub async fn fill(store: &Store, clock: &Clock, projects: usize) {
    for index in 0..projects {
        let seed = Seed::new(clock, index);
        store.write(move |tx| seed.put(tx)).await.unwrap();
    }
}

/// A project, and the ids of what it has.
#[derive(Clone)]
struct Seed {
    index: u64,
    now: Timestamp,
    project: ProjectId,
    keys: [KeyId; 2],
    audit: [AuditId; 3],
    conversation: ConversationId,
    agent: AgentId,
    /// A file, an upload that was not complete, a training's saved state, and an adapter.
    contents: [FileId; 4],
    image: StoredImageId,
    job: JobId,
    events: [JobEventId; 2],
    checkpoint: CheckpointId,
    /// One that has ended and one that is generated.
    responses: [ResponseId; 2],
    completion: CompletionId,
    batch: BatchId,
}

impl Seed {
    fn new(clock: &Clock, index: usize) -> Self {
        let now = Timestamp::from_millis(START + index as i64 * 1000);
        let id: &dyn ClockRng = clock;
        Self {
            index: index as u64,
            now,
            project: ProjectId::generate(id),
            keys: [(); 2].map(|()| KeyId::generate(id)),
            audit: [(); 3].map(|()| AuditId::generate(id)),
            conversation: ConversationId::generate(id),
            agent: AgentId::generate(id),
            contents: [(); 4].map(|()| FileId::generate(id)),
            image: StoredImageId::generate(id),
            job: JobId::generate(id),
            events: [(); 2].map(|()| JobEventId::generate(id)),
            checkpoint: CheckpointId::generate(id),
            responses: [(); 2].map(|()| ResponseId::generate(id)),
            completion: CompletionId::generate(id),
            batch: BatchId::generate(id),
        }
    }

    fn put(&self, tx: &WriteTx) -> Result<()> {
        self.put_project(tx)?;
        self.put_keys(tx)?;
        self.put_conversation(tx)?;
        self.put_agent(tx)?;
        self.put_files(tx)?;
        self.put_job(tx)?;
        self.put_responses(tx)?;
        self.put_completion(tx)?;
        self.put_batch(tx)?;
        self.put_usage(tx)
    }

    /// Bytes that differ between projects; some have every value, and a few are as long as a chunk can be.
    fn bytes(&self) -> Vec<u8> {
        let length = if self.index % 100 == 7 { CHUNK_BYTES } else { 300 + self.index as usize % 500 };
        (0..length).map(|at| (at as u64 * 31 + self.index) as u8).collect()
    }

    fn put_project(&self, tx: &WriteTx) -> Result<()> {
        let (project, now) = (self.project, self.now);
        let record = ProjectRecord {
            name: format!("project {} \u{1f30a}", self.index),
            environment: Some("test".to_owned()),
            metadata: Some("{\"a\":\"b\"}".to_owned()),
            created_at: now,
            updated_at: now,
            archived_at: (self.index % 10 == 9).then_some(now),
        };
        projects::put(tx, project, &record)?;
        limits::put(tx, project, &LimitsRecord { updated_at: Some(now), ..LimitsRecord::default() })?;
        let levels = LevelsRecord { at: now, requests: Some(-3), tokens: None, audio: Some(i128::MAX) };
        limits::put_levels(tx, project, &levels)?;
        let used = QuotaUsageRecord { api_keys: 2, bytes: self.index + 1, ..QuotaUsageRecord::default() };
        quota_usage::put(tx, project, &QuotaUsageRecord::default(), used, now)?;
        for id in self.audit {
            let (action, target) = ("project.created".to_owned(), project.to_string());
            let record = AuditRecord { at: now, actor: Some(self.keys[0]), action, target, detail: None };
            audit::append(tx, project, id, &record)?;
        }
        usage::put_horizon(tx, &Horizon { raw: Timestamp::ORIGIN, minutes: Timestamp::ORIGIN })?;
        latest_time::advance(tx, now)
    }

    fn put_keys(&self, tx: &WriteTx) -> Result<()> {
        for (at, id) in self.keys.into_iter().enumerate() {
            let mut digest = [at as u8; 32];
            digest[..16].copy_from_slice(&id.to_bytes());
            let record = KeyRecord {
                project: self.project,
                name: format!("key {at}"),
                digest: Digest::from_bytes(digest),
                previous: None,
                fields: KeyFields {
                    scopes: Scopes::from_iter([Scope::Admin]),
                    models: Some(vec!["tiny".to_owned()]),
                    created_at: self.now,
                    updated_at: self.now,
                    expires_at: None,
                    revoked_at: (at == 1).then_some(self.now),
                    rotated_at: None,
                    redacted: "sk-…abcd".to_owned(),
                },
            };
            keys::insert(tx, id, &record)?;
            keys::used(tx, id, self.now)?;
            let idempotency = IdempotencyRecord { at: self.now, request: digest, result: "{}".repeat(20) };
            idempotency_keys::put(tx, &digest, &idempotency)?;
        }
        Ok(())
    }

    fn put_conversation(&self, tx: &WriteTx) -> Result<()> {
        let messages: Vec<String> = (0..3).map(|at| format!("{{\"content\":\"message {at}\"}}")).collect();
        let record = ConversationRecord {
            project: self.project,
            metadata: Some("{}".to_owned()),
            version: 2,
            messages: 3,
            first_row: 4,
            next_row: 7,
            bytes: 2 + messages.iter().map(|message| message.len() as u64).sum::<u64>(),
            created_at: self.now,
            updated_at: self.now,
        };
        conversations::put_messages(tx, self.conversation, record.first_row, &messages)?;
        project_resources::insert(tx, self.conversation.to_bytes(), &record)
    }

    fn put_agent(&self, tx: &WriteTx) -> Result<()> {
        let fields = AgentFields { name: Some("agent".to_owned()), ..AgentFields::default() };
        let version = AgentVersionRecord { fields, created_at: self.now };
        for number in 1..=2 {
            agents::put_version(tx, self.agent, number, &version)?;
        }
        let record = AgentRecord {
            project: self.project,
            version: 2,
            oldest: 1,
            bytes: 2 * version.fields.bytes(),
            created_at: self.now,
        };
        project_resources::insert(tx, self.agent.to_bytes(), &record)
    }

    fn put_files(&self, tx: &WriteTx) -> Result<()> {
        let bytes = self.bytes();
        let [file, incomplete, ..] = self.contents;
        for index in 0..2 {
            content_chunks::put(tx, file, index, &Chunk(bytes.clone()))?;
        }
        content_chunks::put(tx, incomplete, 0, &Chunk(vec![1; 40]))?;
        let record = FileRecord {
            project: self.project,
            name: "examples.jsonl".to_owned(),
            purpose: Purpose::FineTune,
            bytes: 2 * bytes.len() as u64,
            chunks: 2,
            examples: 3,
            example_format: 1,
            sha256: [7; 32],
            created_at: self.now,
        };
        files::insert(tx, file, &record)?;
        stored_images::insert(tx, self.image, (self.project, 0), &bytes, self.now)?;
        Ok(())
    }

    fn put_job(&self, tx: &WriteTx) -> Result<()> {
        let [file, _, state, weights] = self.contents;
        let mut record = JobRecord {
            project: self.project,
            key: Some(self.keys[0]),
            name: None,
            metadata: None,
            model: "tiny".to_owned(),
            training_file: file,
            validation_file: None,
            method: 0,
            hyperparameters: HyperparametersRecord { n_epochs: Some(3), ..HyperparametersRecord::default() },
            resolved: None,
            suffix: None,
            seed: 1,
            state: 1,
            error: None,
            progress: None,
            saved: None,
            checkpoints: vec![self.checkpoint.to_bytes()],
            fine_tuned_model: None,
            trained_tokens: None,
            metered_tokens: 5,
            created_at: self.now,
            updated_at: self.now,
            finished_at: None,
        };
        content_chunks::put(tx, state, 0, &Chunk(vec![2; 100]))?;
        let saved = SavedStateRecord { content: state, bytes: 100, chunks: 1, step: 4 };
        fine_tuning_jobs::replace_state(tx, self.job, &mut record, Some(saved))?;
        fine_tuning_jobs::insert(tx, self.job, &record)?;
        for id in self.events {
            let event = JobEventRecord { at: self.now, level: 0, message: "a step".to_owned(), metrics: None };
            fine_tuning_jobs::append_event(tx, self.job, id, &event)?;
        }
        content_chunks::put(tx, weights, 0, &Chunk(vec![3; 200]))?;
        let checkpoint = CheckpointRecord {
            project: self.project,
            job: self.job,
            step: 4,
            names: ["", ":ckpt-step-4"].map(|end| format!("ft:tiny:{}{end}", self.job)).to_vec(),
            base: "tiny".to_owned(),
            train_loss: 0.5,
            train_accuracy: 0.25,
            valid_loss: None,
            valid_accuracy: None,
            config: "{}".to_owned(),
            weights,
            bytes: 200,
            chunks: 1,
            created_at: self.now,
        };
        fine_tuning_checkpoints::insert(tx, self.checkpoint, &checkpoint)
    }

    fn put_responses(&self, tx: &WriteTx) -> Result<()> {
        let content = ResponseContentRecord { input: vec!["{}".to_owned()], response: "{\"output\":[]}".to_owned() };
        let record = |more: &str| ResponseRecord {
            project: self.project,
            previous: None,
            chain_length: 1,
            chain_bytes: content.bytes(),
            bytes: content.bytes() + more.len() as u64,
            created_at: self.now,
        };
        let [ended, running] = self.responses;
        let steps = ResponseStepsRecord { json: "{\"steps\":[]}".to_owned() };
        responses::insert(tx, ended, &record(&steps.json), &content)?;
        response_steps::put(tx, ended, &steps)?;
        let open = OpenResponseRecord { key: self.keys[0], request: "{\"n\":1}".to_owned(), keeps_steps: true };
        responses::insert(tx, running, &record(&open.request), &content)?;
        responses::put_open(tx, running, &open)?;
        response_steps::begin_generation(tx, running, self.index, NodeProcess { number: 1, epoch: 2 })?;
        for _ in 0..2 {
            let generation = response_steps::generation(tx, running)?.unwrap();
            response_steps::append(tx, running, generation, &steps)?;
        }
        Ok(())
    }

    fn put_completion(&self, tx: &WriteTx) -> Result<()> {
        let content = ChatCompletionContentRecord { messages: vec!["{}".to_owned()], completion: "{}".to_owned() };
        let record = ChatCompletionRecord {
            project: self.project,
            model: "tiny".to_owned(),
            metadata: Some("{}".to_owned()),
            bytes: content.bytes() + 2,
            created_at: self.now,
        };
        chat_completions::insert(tx, self.completion, &record, &content)
    }

    fn put_batch(&self, tx: &WriteTx) -> Result<()> {
        let results = [true, false].map(|succeeded| BatchResultRecord { succeeded, json: "{\"id\":1}".to_owned() });
        let (created, expires) = (self.now, self.now);
        let times =
            BatchTimesRecord { created, expires, in_progress: None, cancelling: None, finalizing: None, ended: None };
        let record = BatchRecord {
            project: self.project,
            key: self.keys[0],
            endpoint: BatchEndpoint::Embeddings,
            input_file: self.contents[0],
            metadata: None,
            state: BatchState::Validating,
            ends_as: None,
            errors: Vec::new(),
            output_file: None,
            error_file: None,
            total: 3,
            completed: 1,
            failed: 1,
            result_bytes: results.iter().map(|result| result.json.len() as u64).sum(),
            times,
        };
        batches::insert(tx, self.batch, &record)?;
        (0..).zip(&results).try_for_each(|(line, result)| batches::put_result(tx, self.batch, line, result))
    }

    fn put_usage(&self, tx: &WriteTx) -> Result<()> {
        for (tail, is_estimated) in [(1, false), (2, false), (3, true)] {
            let (key, endpoint, model) = (self.keys[0], "POST /chat/completions".to_owned(), Some("tiny".to_owned()));
            let series = usage::number(tx, self.project, &SeriesRecord { key, endpoint, model }, is_estimated)?;
            let amounts = Amounts { input: self.index, output: 3, ..Amounts::default() };
            let record = UsageRecord { series, outcome: Outcome::Succeeded, amounts };
            usage::append(tx, self.project, self.now, [tail; 6], &record)?;
        }
        Ok(())
    }
}
