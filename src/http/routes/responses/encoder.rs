//! A response while a client waits for it, whole or as events. It is stored before its end is sent.

use actix_web::HttpResponse;

use super::conversation_field::with_field_names;
use super::input_items;
use super::response::{Failure, ResponseBody, ResponseEncoder};
use super::stream::{EventEncoder, first_events};
use crate::calls::text::chat::RunningChat;
use crate::calls::turn::Turn;
use crate::calls::turn::output::TurnEvent;
use crate::error::{Error, Result};
use crate::http::authentication::Caller;
use crate::http::response::ApiResult;
use crate::http::routes::turn_response::TurnEncoder;
use crate::http::sse;
use crate::ids::RequestId;
use crate::service::access::Access;
use crate::service::responses::{ChainLink, Responses, StoredResponse};

/// Where a response is stored, and with what input.
pub struct Storage {
    pub responses: Responses,
    pub access: Access,
    pub link: ChainLink,
    pub input: Vec<serde_json::Value>,
}

pub struct RunningResponse {
    turn: Turn,
    encoder: ResponseEncoder,
    /// `None` if the response is not stored.
    storage: Option<Storage>,
    events: EventEncoder,
}

impl RunningResponse {
    pub fn new(turn: Turn, encoder: ResponseEncoder, storage: Option<Storage>) -> Self {
        Self { turn, encoder, storage, events: EventEncoder::after_first() }
    }

    /// The complete response.
    fn complete(&self) -> ResponseBody {
        self.encoder.complete(&self.turn)
    }
}

impl TurnEncoder for RunningResponse {
    type Call = RunningChat;

    fn turn(&mut self) -> &mut Turn {
        &mut self.turn
    }

    fn with_field_names(error: Error) -> Error {
        with_field_names(error)
    }

    async fn store(&self) -> Result<()> {
        let Some(Storage { responses, access, link, input }) = &self.storage else { return Ok(()) };
        let ResponseEncoder { id, created_at, .. } = self.encoder;
        let response = serde_json::to_string(&self.complete()).map_err(Error::internal)?;
        let stored = StoredResponse { id, input: input_items::stored(id, input), response };
        responses.create(access, stored, link.clone(), created_at).await
    }

    fn whole(self, _caller: &Caller) -> ApiResult {
        Ok(HttpResponse::Ok().json(self.complete()))
    }

    fn first_event(&self) -> Option<sse::Event> {
        Some(first_events(&self.encoder.started(&self.turn)))
    }

    fn event(&mut self, event: &TurnEvent) -> Option<sse::Event> {
        let output = (self.turn.output(), self.encoder.format(&self.turn));
        event.steps.iter().for_each(|step| self.events.add_step(step, output));
        self.events.take()
    }

    fn last_event(&mut self) -> sse::Event {
        let output = self.turn.output();
        self.events.end_item((output, self.encoder.format(&self.turn)), output.is_cut_off());
        let response = self.complete();
        self.events.end(response.status, &response)
    }

    fn error_event(&mut self, error: &Error, request_id: Option<RequestId>, recorded: Result<()>) -> sse::Event {
        let failure = Failure::of(error, request_id, recorded);
        let error_field = Some(failure.clone());
        let response = ResponseBody { status: "failed", error: error_field, ..self.encoder.started(&self.turn) };
        self.events.failed(&failure.code, &failure.message, error.param_name(), &response)
    }
}
