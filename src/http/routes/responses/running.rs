//! A response while it is generated. It is stored before its end is sent.

use std::sync::Arc;

use super::conversation_field::with_field_names;
use super::output_items::{OutputItems, Step};
use super::reasoning::ReasoningFormat;
use super::response::{Failure, IncompleteDetails, ItemEncoder, ResponseBody, Settings};
use super::{custom_tools, input_items};
use crate::calls::chat::RunningChat;
use crate::calls::generation::{RunningGeneration, RunningText};
use crate::clock_rng::{ClockRng, Timestamp};
use crate::engine::TextDelta;
use crate::error::{Error, Result};
use crate::ids::ResponseId;
use crate::service::access::Access;
use crate::service::responses::{ChainLink, Responses, StoredResponse};
use crate::service::usage::Outcome;

/// Where a response is stored, and with what input.
pub struct Storage {
    pub responses: Responses,
    pub access: Access,
    pub link: ChainLink,
    pub input: Vec<serde_json::Value>,
}

/// A running response. Dropping it cancels the work.
pub struct RunningResponse {
    id: ResponseId,
    created_at: Timestamp,
    pub chat: RunningChat,
    pub output: OutputItems,
    settings: Settings,
    reasoning: ReasoningFormat,
    clock_rng: Arc<dyn ClockRng>,
    /// When the last delta arrived.
    completed_at: Option<Timestamp>,
    /// `None` if the response is not stored.
    storage: Option<Storage>,
}

impl RunningResponse {
    pub fn new(
        chat: RunningChat,
        settings: Settings,
        reasoning: ReasoningFormat,
        storage: Option<Storage>,
        clock_rng: Arc<dyn ClockRng>,
    ) -> Self {
        let (id, created_at) = (ResponseId::from_bytes(chat.id.to_bytes()), chat.created);
        let output = OutputItems::new(custom_tools::names(&settings.tools));
        Self { id, created_at, chat, output, settings, reasoning, clock_rng, completed_at: None, storage }
    }

    /// Sets the id and the creation time of the stored response.
    pub fn with_identity(self, id: ResponseId, created_at: Timestamp) -> Self {
        Self { id, created_at, ..self }
    }

    pub fn encoder(&self) -> ItemEncoder {
        ItemEncoder { response: self.id, calls: self.chat.call_ids, reasoning: self.reasoning }
    }

    /// Adds a delta to the output.
    pub fn add(&mut self, delta: &TextDelta) -> Vec<Step> {
        if delta.end.is_some() {
            self.completed_at = Some(self.clock_rng.now());
        }
        self.output.add(delta)
    }

    /// Waits for the end and stores the response.
    pub async fn finish(&mut self) -> Result<ResponseBody> {
        self.generate(drop).await?;
        self.store().await?;
        Ok(self.complete())
    }

    /// Generates the whole output. Each delta's steps are passed to `observe`.
    pub async fn generate(&mut self, observe: impl Fn(Vec<Step>)) -> Result<()> {
        while let Some(delta) = self.next().await {
            observe(self.add(&delta?));
        }
        self.require_end()
    }

    fn require_end(&self) -> Result<()> {
        match self.output.ending {
            Some(_) => Ok(()),
            None => Err(Error::internal("the engine closed a ticket before its end")),
        }
    }

    /// Stores the complete response, if it is to be stored.
    async fn store(&self) -> Result<()> {
        self.require_end()?;
        let Some(Storage { responses, access, link, input }) = &self.storage else { return Ok(()) };
        let (id, response) = (self.id, serde_json::to_string(&self.complete()).map_err(Error::internal)?);
        let stored = StoredResponse { id, input: input_items::stored(id, input), response };
        responses.create(access, stored, link.clone(), self.created_at).await
    }

    /// The response when it starts.
    pub fn started(&self) -> ResponseBody {
        let (model, settings) = (self.chat.model.clone(), self.settings.clone());
        ResponseBody::new(self.id, self.created_at, model, settings, "in_progress")
    }

    /// The complete response.
    pub fn complete(&self) -> ResponseBody {
        let is_cut_off = self.output.is_cut_off();
        ResponseBody {
            completed_at: self.completed_at.filter(|_| !is_cut_off).map(Timestamp::as_seconds),
            status: if is_cut_off { "incomplete" } else { "completed" },
            incomplete_details: is_cut_off.then_some(IncompleteDetails { reason: "max_output_tokens" }),
            output: self.encoder().bodies(&self.output),
            usage: Some(self.chat.usage().into()),
            ..self.started()
        }
    }

    /// The response after a failure.
    pub fn failed(&self, failure: Failure) -> ResponseBody {
        ResponseBody { status: "failed", error: Some(failure), ..self.started() }
    }
}

impl RunningText for RunningResponse {
    fn generation(&self) -> &RunningGeneration {
        self.chat.generation()
    }

    async fn next(&mut self) -> Option<Result<TextDelta>> {
        Some(self.chat.next().await?.map_err(with_field_names))
    }

    /// Also stores a response that succeeded.
    async fn close(&self, outcome: Outcome) -> Result<()> {
        if outcome == Outcome::Succeeded {
            self.store().await?;
        }
        self.chat.close(outcome).await
    }
}
