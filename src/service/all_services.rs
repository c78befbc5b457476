//! All services over one store.

use std::sync::Arc;
use std::time::Duration;

use super::agents::Agents;
use super::audit::Audit;
use super::batches::Batches;
use super::contents::Contents;
use super::conversations::Conversations;
use super::files::Files;
use super::fine_tuning::Jobs;
use super::keys::Keys;
use super::limits::Limits;
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
    pub conversations: Conversations,
    pub files: Files,
    pub jobs: Jobs,
    pub keys: Keys,
    pub limits: Limits,
    pub meter: Meter,
    pub projects: Projects,
    pub responses: Responses,
    pub stored_images: StoredImages,
    pub usage: Usage,
}

impl Services {
    /// `image_url_ttl`: how long stored images can be fetched.
    pub async fn start(store: &Store, clock_rng: &Arc<dyn ClockRng>, image_url_ttl: Duration) -> Result<Self> {
        let (store, clock_rng) = (|| store.clone(), || clock_rng.clone());
        let limits = Limits::new(store(), clock_rng());
        let contents = Contents::start(store(), clock_rng()).await?;
        Ok(Self {
            agents: Agents::new(store(), clock_rng()),
            audit: Audit::new(store()),
            batches: Batches::new(store(), clock_rng(), contents.clone()),
            conversations: Conversations::new(store(), clock_rng()),
            files: Files::new(store(), clock_rng(), contents.clone()),
            jobs: Jobs::new(store(), clock_rng(), contents),
            keys: Keys::new(store(), clock_rng()),
            meter: Meter::new(store(), clock_rng(), limits.clone()),
            limits,
            projects: Projects::new(store(), clock_rng()),
            responses: Responses::new(store(), clock_rng()),
            stored_images: StoredImages::new(store(), clock_rng(), image_url_ttl),
            usage: Usage::new(store(), clock_rng()),
        })
    }
}
