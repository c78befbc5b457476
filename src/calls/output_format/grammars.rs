//! Output grammars, compiled off the async threads with limited concurrency.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::Semaphore;

use crate::calls::blocking::run_blocking;
use crate::calls::output_format::output_spec::ResolvedOutput;
use crate::engine::{CompiledGrammar, TextModel};
use crate::error::{Code, Error, Result};

/// How long a request waits for its grammar. Limits on schema size and compiler work keep compilation far below it,
/// unless the machine is overloaded.
const DEADLINE: Duration = Duration::from_secs(10);
/// Concurrent compilations, including those whose client has disconnected.
const MAX_COMPILING: usize = 4;
/// Requests that may wait for a grammar; more are refused.
const MAX_WAITING: usize = 64;

pub(in crate::calls) struct GrammarCompiler {
    compiling: Arc<Semaphore>,
    waiting: Semaphore,
}

impl GrammarCompiler {
    pub fn new() -> Self {
        Self { compiling: Arc::new(Semaphore::new(MAX_COMPILING)), waiting: Semaphore::new(MAX_WAITING) }
    }

    /// The compiled grammar; `None` for free text. Fails if the format cannot be enforced.
    pub async fn compile(&self, model: &Arc<TextModel>, output: &ResolvedOutput) -> Result<Option<CompiledGrammar>> {
        if output.spec.is_free() {
            return Ok(None);
        }
        if let Some(cached) = model.cached_grammar(&output.spec) {
            return Ok(Some(cached));
        }
        let _place = self.waiting.try_acquire().map_err(|_| busy())?;
        let made = tokio::time::timeout(DEADLINE, self.compile_uncached(model, output));
        made.await.unwrap_or_else(|_| Err(busy())).map(Some)
    }

    async fn compile_uncached(&self, model: &Arc<TextModel>, output: &ResolvedOutput) -> Result<CompiledGrammar> {
        let permit = self.compiling.clone().acquire_owned().await;
        let permit = permit.map_err(|error| Error::internal(error.to_string()))?;
        // Another request may have compiled the same grammar meanwhile.
        if let Some(cached) = model.cached_grammar(&output.spec) {
            return Ok(cached);
        }
        let (model, spec) = (Arc::clone(model), output.spec.clone());
        let compiled = run_blocking(move || {
            let _turn = permit;
            Ok(model.compile_grammar(&spec))
        });
        compiled.await?.map_err(|error| output.grammar_error(error))
    }
}

fn busy() -> Error {
    Error::new(Code::Overloaded, "The server is too busy to compile the requested schema. Try again shortly.")
}
