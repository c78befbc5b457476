//! A turn of a model: one chat, whose deltas become the items of its output. The APIs whose output consists of items encode
//! what each delta adds to them.

pub mod output;

use std::sync::Arc;

use self::output::{OutputItems, Step};
use super::chat::RunningChat;
use super::generation::{RunningGeneration, RunningText};
use crate::clock_rng::{ClockRng, Timestamp};
use crate::engine::TextDelta;
use crate::error::{Error, Result};
use crate::service::usage::Outcome;

/// A running turn. Dropping it cancels the work.
pub struct Turn {
    pub chat: RunningChat,
    pub output: OutputItems,
    /// When the last delta arrived.
    completed_at: Option<Timestamp>,
    clock_rng: Arc<dyn ClockRng>,
}

impl Turn {
    /// The turn of a chat that has started.
    pub fn new(chat: RunningChat, output: OutputItems, clock_rng: Arc<dyn ClockRng>) -> Self {
        Self { chat, output, completed_at: None, clock_rng }
    }

    /// Adds a delta to the output. Returns what it changes, in order.
    pub fn add(&mut self, delta: &TextDelta) -> Vec<Step> {
        if delta.end.is_some() {
            self.completed_at = Some(self.clock_rng.now());
        }
        self.output.add(delta)
    }

    /// Generates the whole output. Each delta's steps are passed to `observe`.
    pub async fn generate(&mut self, observe: impl Fn(Vec<Step>)) -> Result<()> {
        while let Some(delta) = self.next().await {
            observe(self.add(&delta?));
        }
        self.require_end()
    }

    /// Fails if the output has not ended.
    pub fn require_end(&self) -> Result<()> {
        match self.output.ending {
            Some(_) => Ok(()),
            None => Err(Error::internal("the engine closed a ticket before its end")),
        }
    }

    /// When the output was complete; `None` if it is not, or if it is cut off.
    pub fn completed_at(&self) -> Option<Timestamp> {
        self.completed_at.filter(|_| !self.output.is_cut_off())
    }
}

impl RunningText for Turn {
    fn generation(&self) -> &RunningGeneration {
        self.chat.generation()
    }

    async fn next(&mut self) -> Option<Result<TextDelta>> {
        self.chat.next().await
    }

    async fn close(&self, outcome: Outcome) -> Result<()> {
        self.chat.close(outcome).await
    }
}
