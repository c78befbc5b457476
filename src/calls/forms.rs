//! Forms that answers are held to: compiled off the async threads, and not for long.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::Semaphore;

use super::demand::Demanded;
use super::models::blocking;
use crate::engine::{Form, TextModel};
use crate::error::{Code, Error, Result};

/// How long one may take. What takes longer goes on in the background to its end, which the limits
/// on a schema's size and on the compiler's work bring about.
const DEADLINE: Duration = Duration::from_millis(150);
/// Compilations at once, those included that nobody waits for any more.
const COMPILING: usize = 4;

pub(super) struct Forms {
    compiling: Arc<Semaphore>,
}

impl Forms {
    pub fn new() -> Self {
        Self { compiling: Arc::new(Semaphore::new(COMPILING)) }
    }

    /// What the answers must be like; `None` where nothing is demanded. Refuses what cannot be enforced.
    pub async fn form(&self, model: &Arc<TextModel>, demanded: &Demanded) -> Result<Option<Form>> {
        if demanded.shape.is_free() {
            return Ok(None);
        }
        if let Some(kept) = model.kept_form(&demanded.shape) {
            return Ok(Some(kept));
        }
        let reader = Arc::clone(model);
        blocking(move || reader.prepare_forms().map_err(Error::internal)).await?;
        let permit = self.compiling.clone().try_acquire_owned().map_err(|_| busy())?;
        let (model, shape) = (Arc::clone(model), demanded.shape.clone());
        let compiled = blocking(move || {
            let _permit = permit;
            Ok(model.form(&shape))
        });
        match tokio::time::timeout(DEADLINE, compiled).await {
            Err(_) => Err(demanded.too_slow()),
            Ok(form) => form?.map(Some).map_err(|error| demanded.refuse(error)),
        }
    }
}

fn busy() -> Error {
    Error::new(Code::Overloaded, "The server is busy preparing other schemas. Try again in a moment.")
}
