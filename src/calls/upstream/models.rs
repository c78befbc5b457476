//! Which models other servers run.

use std::sync::Arc;

use super::errors;
use crate::calls::blocking::run_blocking;
use crate::calls::errors::ModelErrors;
use crate::engine::{Engine, LoadError, ModelKind, UpstreamLookup};
use crate::error::{Error, Result};
use crate::service::access::Access;
use crate::upstream::{Kind, Response, Task, UpstreamCall, UpstreamClient, UpstreamModel};

/// Finds upstream models and calls them. Clones share the connections.
#[derive(Clone)]
pub struct UpstreamModels {
    engine: Engine,
    client: UpstreamClient,
}

impl UpstreamModels {
    pub fn new(engine: Engine, client: UpstreamClient) -> Self {
        Self { engine, client }
    }

    pub fn client(&self) -> &UpstreamClient {
        &self.client
    }

    /// The upstream model `id`; `None` if this server runs it, if it cannot be used or if there is no such model.
    pub async fn find(&self, id: &str) -> Result<Option<Arc<UpstreamModel>>> {
        match self.engine.models().peek_upstream(id) {
            UpstreamLookup::Upstream(model) => Ok(Some(model)),
            UpstreamLookup::Local => Ok(None),
            UpstreamLookup::Unknown => {
                let (engine, id) = (self.engine.clone(), id.to_owned());
                run_blocking(move || Ok(engine.models().find_upstream(&id))).await
            }
        }
    }

    /// Refuses a model that does something else.
    pub async fn require(&self, access: &Access, model: &UpstreamModel, kinds: &[Kind]) -> Result<()> {
        if kinds.contains(&model.kind) {
            return Ok(());
        }
        if model.kind == Kind::Completion && kinds.contains(&Kind::Chat) {
            let text = format!(
                "The model '{}' continues texts and does not answer. Send the text to POST /completions, or use a chat model.",
                model.id
            );
            return Err(Error::invalid("model", text));
        }
        let expected = match kinds.first() {
            Some(Kind::Embedding) => ModelKind::Embedding,
            Some(Kind::Rerank) => ModelKind::Reranker,
            Some(Kind::Image) => ModelKind::Image,
            Some(Kind::Transcription) => ModelKind::Transcription,
            Some(Kind::Speech) => ModelKind::Speech,
            Some(Kind::Chat | Kind::Completion) | None => ModelKind::Text,
        };
        let (engine, access, id) = (self.engine.clone(), access.clone(), model.id.clone());
        run_blocking(move || {
            let error = LoadError::WrongKind { id: id.clone(), architecture: "unknown".to_owned(), expected };
            Err(ModelErrors { engine: &engine, access: &access }.load_failed(&id, &error))
        })
        .await
    }

    /// Sends a request and returns what `read` makes of the whole response, and the response, which has been read. `None`
    /// of `read`: it makes no sense, and another target is tried. Runs on the client's threads; dropping the future cancels the request.
    pub async fn whole<T: Send + 'static>(
        &self,
        call: UpstreamCall,
        read: impl FnMut(&[u8]) -> Option<T> + Send + 'static,
    ) -> Result<(T, Response)> {
        let (client, id) = (self.client.clone(), call.model.id.clone());
        let work = async move { client.whole(&call, read).await };
        let done = match self.client.spawn(work) {
            Ok(task) => Task::join(task).await.and_then(|result| result),
            Err(failure) => Err(failure),
        };
        done.map_err(|failure| errors::from_failure(&id, failure))
    }
}
