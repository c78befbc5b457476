//! A response while a client waits for it. It is stored before its end is sent.

use super::conversation_field::with_field_names;
use super::input_items;
use super::response::{Failure, ResponseBody, ResponseEncoder};
use crate::calls::generation::RunningText;
use crate::calls::responses::item_format::ItemFormat;
use crate::calls::turn::Turn;
use crate::calls::turn::output::TurnEvent;
use crate::error::{Error, Result};
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
    pub turn: Turn,
    encoder: ResponseEncoder,
    /// `None` if the response is not stored.
    storage: Option<Storage>,
}

impl RunningResponse {
    pub fn new(turn: Turn, encoder: ResponseEncoder, storage: Option<Storage>) -> Self {
        Self { turn, encoder, storage }
    }

    pub fn format(&self) -> ItemFormat {
        self.encoder.format(&self.turn)
    }

    /// Waits for the end and stores the response.
    pub async fn finish(&mut self) -> Result<ResponseBody> {
        self.turn.generate(drop).await.map_err(with_field_names)?;
        self.store().await?;
        Ok(self.complete())
    }

    /// Stores the complete response, if it is to be stored.
    async fn store(&self) -> Result<()> {
        self.turn.require_end()?;
        let Some(Storage { responses, access, link, input }) = &self.storage else { return Ok(()) };
        let ResponseEncoder { id, created_at, .. } = self.encoder;
        let response = serde_json::to_string(&self.complete()).map_err(Error::internal)?;
        let stored = StoredResponse { id, input: input_items::stored(id, input), response };
        responses.create(access, stored, link.clone(), created_at).await
    }

    /// The response when it starts.
    pub fn started(&self) -> ResponseBody {
        self.encoder.started(&self.turn)
    }

    /// The complete response.
    pub fn complete(&self) -> ResponseBody {
        self.encoder.complete(&self.turn)
    }

    /// The response after a failure.
    pub fn failed(&self, failure: Failure) -> ResponseBody {
        ResponseBody { status: "failed", error: Some(failure), ..self.started() }
    }

    pub async fn next(&mut self) -> Option<Result<TurnEvent>> {
        Some(self.turn.next().await?.map_err(with_field_names))
    }

    /// Stores a response that succeeded, and records the usage durably.
    pub async fn close(&self, outcome: Outcome) -> Result<()> {
        if outcome == Outcome::Succeeded {
            self.store().await?;
        }
        self.turn.call.close(outcome).await
    }
}
