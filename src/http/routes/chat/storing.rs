//! A chat as its client gets it: with or without the reasoning, and stored before its end is sent.

use std::sync::Arc;

use super::request::Storing;
use super::response::{Completion, completion};
use crate::calls::chat::RunningChat;
use crate::calls::generation::RunningText;
use crate::calls::turn::Turn;
use crate::calls::turn::output::{KeptTokens, OutputItems, Step, TurnEvent};
use crate::clock_rng::ClockRng;
use crate::error::{Error, Result};
use crate::service::access::Access;
use crate::service::chat_completions::{ChatCompletions, StoredChatCompletion};
use crate::service::usage::Outcome;

/// Where a completion is stored, and with what.
pub struct Storage {
    pub completions: ChatCompletions,
    pub access: Access,
    pub storing: Storing,
}

/// How a client wants its completion.
pub struct Delivery {
    /// `None` if the completion is not stored.
    pub storage: Option<Storage>,
    pub is_streamed: bool,
    /// Whether the completion has the reasoning.
    pub includes_reasoning: bool,
}

/// A running chat. Leaves out the reasoning if its client does not want it, and stores the completion if the request asks
/// for it. Dropping it cancels the work.
pub struct StoringChat {
    pub turn: Turn,
    delivery: Delivery,
}

impl StoringChat {
    pub fn new(chat: RunningChat, delivery: Delivery, clock_rng: Arc<dyn ClockRng>) -> Self {
        let has_body = !delivery.is_streamed || delivery.storage.is_some();
        let kept = if has_body { KeptTokens::All } else { KeptTokens::None };
        Self { turn: Turn::new(chat, OutputItems::or_empty(kept), clock_rng), delivery }
    }

    /// Waits for the end and stores the completion.
    pub async fn finish(&mut self) -> Result<Completion> {
        self.turn.generate(drop).await?;
        let completion = self.completion();
        self.store(&completion).await?;
        Ok(completion)
    }

    fn completion(&self) -> Completion {
        completion(&self.turn, self.delivery.includes_reasoning)
    }

    /// Stores the completion, if it is to be stored.
    async fn store(&self, completion: &Completion) -> Result<()> {
        let Some(Storage { completions, access, storing }) = &self.delivery.storage else { return Ok(()) };
        let chat = &self.turn.call;
        let stored = StoredChatCompletion {
            id: chat.id,
            model: chat.model.clone(),
            metadata: storing.metadata.clone(),
            messages: storing.messages.clone(),
            completion: serde_json::to_string(completion).map_err(Error::internal)?,
            created_at: chat.created,
        };
        completions.create(access, stored).await
    }

    pub async fn next(&mut self) -> Option<Result<TurnEvent>> {
        let mut event = self.turn.next().await?;
        if let (Ok(event), false) = (&mut event, self.delivery.includes_reasoning) {
            event.steps.retain(|step| !matches!(step, Step::Reasoning(_)));
        }
        Some(event)
    }

    /// Stores a completion that succeeded, and records the usage durably.
    pub async fn close(&self, outcome: Outcome) -> Result<()> {
        if outcome == Outcome::Succeeded && self.delivery.storage.is_some() {
            self.turn.require_end()?;
            self.store(&self.completion()).await?;
        }
        self.turn.call.close(outcome).await
    }
}
