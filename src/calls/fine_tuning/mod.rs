//! Fine-tuning: jobs, the loop that trains them one after another, and the models that they make.

mod examples;
mod hyperparameters;
mod interruption;
mod pace;
mod preparation;
mod registered_models;
mod training_loop;
mod tuned_models;
mod watched;

use crate::calls::models::Models;
use crate::engine::{ModelInfo, ModelKind};
use crate::error::{Error, Result};
use crate::service::access::Access;
use crate::service::fine_tuning::NewJob;
use crate::service::fine_tuning::{Job, Jobs};
pub use pace::{Pace, Speed};
pub use preparation::{Prepared, Task, Unprepared, prepare};
pub use training_loop::TrainingLoop;
pub use tuned_models::TunedModels;

/// The fine-tuning API.
pub struct FineTuning {
    jobs: Jobs,
    models: Models,
}

impl FineTuning {
    pub fn new(jobs: Jobs, models: Models) -> Self {
        Self { jobs, models }
    }

    /// Creates a job for an installed text model that the key may call.
    pub async fn create(&self, access: &Access, mut new: NewJob) -> Result<Job> {
        let model = self.models.get(access, &new.model).await?;
        access.require_model(&model.id)?;
        require_base(&model)?;
        new.model = model.id;
        self.jobs.create(access, new).await
    }
}

/// Checks that an adapter of a model can be trained.
pub fn require_base(model: &ModelInfo) -> Result<()> {
    if model.kind != ModelKind::Text {
        let text = format!("The model '{}' writes no text, so it cannot be fine-tuned. Name a chat model.", model.id);
        return Err(Error::invalid("model", text));
    }
    if let Some(base) = &model.base {
        let text = format!("The model '{}' is an adapter. Name its base model '{base}'.", model.id);
        return Err(Error::invalid("model", text));
    }
    Ok(())
}
