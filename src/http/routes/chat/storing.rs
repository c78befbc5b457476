//! A chat as its client gets it: with or without the reasoning, and stored before its end is sent.

use std::ops::{Deref, DerefMut};

use super::request::Storing;
use super::response;
use crate::calls::chat::RunningChat;
use crate::calls::generation::{Choices, RunningGeneration, RunningText};
use crate::engine::TextDelta;
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

/// A running chat, whose completion may be stored. Dropping it cancels the work.
pub struct StoringChat {
    chat: RunningChat,
    /// `None` if the completion is not stored. With the output so far, if it is streamed.
    storage: Option<(Storage, Choices)>,
    /// Whether the completion has the reasoning.
    includes_reasoning: bool,
}

impl StoringChat {
    pub fn new(chat: RunningChat, storage: Option<Storage>, includes_reasoning: bool) -> Self {
        let storage = storage.map(|storage| (storage, Choices::new(chat.choices())));
        Self { chat, storage, includes_reasoning }
    }

    /// Waits for the end and stores the completion.
    pub async fn finish(&mut self) -> Result<response::Completion> {
        let mut choices = self.chat.whole().await?;
        if !self.includes_reasoning {
            choices.iter_mut().for_each(|choice| choice.reasoning.clear());
        }
        let completion = response::completion(&self.chat, choices);
        self.store(&completion).await?;
        Ok(completion)
    }

    /// Stores the completion, if it is to be stored.
    async fn store(&self, completion: &response::Completion) -> Result<()> {
        let Some((Storage { completions, access, storing }, _)) = &self.storage else { return Ok(()) };
        let stored = StoredChatCompletion {
            id: self.chat.id,
            model: self.chat.model.clone(),
            metadata: storing.metadata.clone(),
            messages: storing.messages.clone(),
            completion: serde_json::to_string(completion).map_err(Error::internal)?,
            created_at: self.chat.created,
        };
        completions.create(access, stored).await
    }
}

impl Deref for StoringChat {
    type Target = RunningChat;

    fn deref(&self) -> &RunningChat {
        &self.chat
    }
}

impl DerefMut for StoringChat {
    fn deref_mut(&mut self) -> &mut RunningChat {
        &mut self.chat
    }
}

impl RunningText for StoringChat {
    fn generation(&self) -> &RunningGeneration {
        self.chat.generation()
    }

    async fn next(&mut self) -> Option<Result<TextDelta>> {
        let mut delta = self.chat.next().await?;
        if let (Ok(delta), false) = (&mut delta, self.includes_reasoning) {
            delta.reasoning.clear();
        }
        if let (Some((_, choices)), Ok(delta)) = (&mut self.storage, &delta) {
            choices.add(delta.clone());
        }
        Some(delta)
    }

    /// Also stores a completion that succeeded.
    async fn close(&self, outcome: Outcome) -> Result<()> {
        if let (Outcome::Succeeded, Some((_, choices))) = (outcome, &self.storage) {
            let choices = choices.clone().complete()?;
            self.store(&response::completion(&self.chat, choices)).await?;
        }
        self.chat.close(outcome).await
    }
}
