//! All services over one store.

use std::sync::Arc;
use std::time::Duration;

use tokio::task::JoinSet;

use super::agents::Agents;
use super::audit::Audit;
use super::audit::model_log::ModelLog;
use super::audit::pull_log::PullLog;
use super::background_work;
use super::batches::Batches;
use super::chat_completions::ChatCompletions;
use super::conversations::Conversations;
use super::files::Files;
use super::files::contents::Contents;
use super::fine_tuning::Jobs;
use super::keys::Keys;
use super::keys::sign_in::SignIn;
use super::limits::Limits;
use super::maintenance::Maintenance;
use super::projects::Projects;
use super::responses::Responses;
use super::stored_images::StoredImages;
use super::usage::{Meter, Usage};
use crate::clock_rng::ClockRng;
use crate::error::Result;
use crate::storage::Store;

/// The services of a running server.
pub struct Services {
    pub agents: Agents,
    pub audit: Audit,
    pub batches: Batches,
    pub chat_completions: ChatCompletions,
    pub conversations: Conversations,
    pub files: Files,
    pub jobs: Jobs,
    pub keys: Keys,
    pub limits: Limits,
    pub maintenance: Maintenance,
    pub meter: Meter,
    pub projects: Projects,
    pub model_log: ModelLog,
    pub pull_log: PullLog,
    pub responses: Responses,
    pub sign_in: SignIn,
    pub stored_images: StoredImages,
    pub usage: Usage,
    /// Lets background loops look at what other nodes have changed.
    _look: JoinSet<()>,
}

impl Services {
    /// `image_url_ttl`: how long stored images can be fetched.
    pub async fn start(store: &Store, clock_rng: &Arc<dyn ClockRng>, image_url_ttl: Duration) -> Result<Self> {
        let (store, clock_rng) = (|| store.clone(), || clock_rng.clone());
        let limits = Limits::new(store(), clock_rng());
        let contents = Contents::start(store(), clock_rng()).await?;
        let batches = Batches::new(store(), clock_rng(), contents.clone());
        let jobs = Jobs::new(store(), clock_rng(), contents.clone(), limits.clone());
        let responses = Responses::new(store(), clock_rng());
        let loops = (batches.clone(), jobs.clone(), responses.clone());
        let look = background_work::look_every_second(&store(), move || {
            loops.0.look();
            loops.1.look();
            loops.2.look();
        });
        Ok(Self {
            agents: Agents::new(store(), clock_rng()),
            audit: Audit::new(store()),
            batches,
            chat_completions: ChatCompletions::new(store(), clock_rng()),
            conversations: Conversations::new(store(), clock_rng()),
            files: Files::new(store(), clock_rng(), contents),
            jobs,
            keys: Keys::new(store(), clock_rng()),
            meter: Meter::new(store(), clock_rng(), limits.clone()),
            limits,
            maintenance: Maintenance::new(store(), clock_rng()),
            projects: Projects::new(store(), clock_rng()),
            model_log: ModelLog::new(store(), clock_rng()),
            pull_log: PullLog::new(store(), clock_rng()),
            responses,
            sign_in: SignIn::new(store(), clock_rng()),
            stored_images: StoredImages::new(store(), clock_rng(), image_url_ttl),
            usage: Usage::new(store(), clock_rng()),
            _look: look,
        })
    }
}
