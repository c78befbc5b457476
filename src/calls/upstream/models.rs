//! Where models run: on this server, or on others.

use std::sync::Arc;

use super::errors;
use crate::calls::blocking::run_blocking;
use crate::calls::errors::ModelErrors;
use crate::engine::{Engine, LoadError, Model, ModelKind, UpstreamLookup};
use crate::error::{Error, Result};
use crate::service::access::Access;
use crate::service::usage::UsageRecorder;
use crate::upstream::{Kind, Response, Task, UpstreamCall, UpstreamClient, UpstreamModel};

/// Where a model runs.
pub enum Location {
    Local,
    Upstream(Arc<UpstreamModel>),
}

/// A model that a request names, ready for it.
pub enum ServedModel<M, S> {
    /// It is loaded on this server. With the slot of the request's preparation.
    Local(Arc<M>, S),
    /// Another server runs it.
    Upstream(Arc<UpstreamModel>),
}

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

    /// Where the model `id` runs. An upstream model must be of one of `kinds`; its name is recorded.
    pub async fn locate(
        &self,
        access: &Access,
        id: &str,
        kinds: &[Kind],
        recorder: &UsageRecorder,
    ) -> Result<Location> {
        let Some(model) = self.find(id).await? else { return Ok(Location::Local) };
        self.require(access, &model, kinds).await?;
        recorder.set_model(&model.id);
        Ok(Location::Upstream(model))
    }

    /// Like [`Self::locate`], for a model of kind `M`, which is loaded and recorded if this server runs it. `acquire` takes the
    /// slot in which a request to such a model is prepared; a load that has begun keeps it even if the request is gone.
    pub async fn serve<M: Model, S: Send + 'static>(
        &self,
        access: &Access,
        id: &str,
        kinds: &[Kind],
        recorder: &UsageRecorder,
        acquire: impl FnOnce() -> Result<S>,
    ) -> Result<ServedModel<M, S>> {
        if let Location::Upstream(model) = self.locate(access, id, kinds, recorder).await? {
            return Ok(ServedModel::Upstream(model));
        }
        let slot = acquire()?;
        let (engine, access, id) = (self.engine.clone(), access.clone(), id.to_owned());
        let load = move || {
            let errors = ModelErrors { engine: &engine, access: &access };
            let model = engine.models().load_model::<M>(&id).map_err(|error| errors.load_failed(&id, &error))?;
            Ok((model, slot))
        };
        let (model, slot) = run_blocking(load).await?;
        recorder.set_model(model.id());
        Ok(ServedModel::Local(model, slot))
    }

    /// Refuses a model that does something else.
    async fn require(&self, access: &Access, model: &UpstreamModel, kinds: &[Kind]) -> Result<()> {
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
        let expected = kinds.first().copied().map_or(ModelKind::Text, ModelKind::from);
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
