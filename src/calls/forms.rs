//! Forms that answers are held to: compiled off the async threads, few at once.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::Semaphore;

use super::demand::Demanded;
use super::models::blocking;
use crate::engine::{Form, TextModel};
use crate::error::{Code, Error, Result};

/// How long a request waits for its form. Bounds on a schema's size and on the compiler's work keep
/// every compilation far below it: whoever waits longer is on a machine that is busy with other things.
const DEADLINE: Duration = Duration::from_secs(10);
/// Compilations at once, those included that nobody waits for any more.
const COMPILING: usize = 4;
/// Requests that wait for one at once; more are refused, not piled up.
const WAITING: usize = 64;

pub(super) struct Forms {
    compiling: Arc<Semaphore>,
    waiting: Semaphore,
}

impl Forms {
    pub fn new() -> Self {
        Self { compiling: Arc::new(Semaphore::new(COMPILING)), waiting: Semaphore::new(WAITING) }
    }

    /// What the answers must be like; `None` where nothing is demanded. Refuses what cannot be enforced.
    pub async fn form(&self, model: &Arc<TextModel>, demanded: &Demanded) -> Result<Option<Form>> {
        if demanded.shape.is_free() {
            return Ok(None);
        }
        if let Some(kept) = model.kept_form(&demanded.shape) {
            return Ok(Some(kept));
        }
        let _place = self.waiting.try_acquire().map_err(|_| busy())?;
        let made = tokio::time::timeout(DEADLINE, self.compile(model, demanded));
        made.await.unwrap_or_else(|_| Err(busy())).map(Some)
    }

    async fn compile(&self, model: &Arc<TextModel>, demanded: &Demanded) -> Result<Form> {
        let turn = self.compiling.clone().acquire_owned().await;
        let turn = turn.map_err(|error| Error::internal(error.to_string()))?;
        // Another request may have waited for the same.
        if let Some(kept) = model.kept_form(&demanded.shape) {
            return Ok(kept);
        }
        let (model, shape) = (Arc::clone(model), demanded.shape.clone());
        let compiled = blocking(move || {
            let _turn = turn;
            Ok(model.form(&shape))
        });
        compiled.await?.map_err(|error| demanded.refuse(error))
    }
}

fn busy() -> Error {
    Error::new(Code::Overloaded, "The server is too busy to prepare the form that is demanded. Try again in a moment.")
}
