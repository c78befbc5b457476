//! A turn of a model: one call that generates text, whose deltas become the items of its outputs. Every API encodes what
//! each delta adds to them, or the whole items.

pub mod output;

use std::sync::Arc;

use self::output::{OutputItems, TurnEvent};
use crate::calls::text::chat::RunningChat;
use crate::calls::text::generation::RunningText;
use crate::clock_rng::{ClockRng, Timestamp};
use crate::error::{Error, Result};

/// A running turn. Dropping it cancels the work.
pub struct Turn<C = RunningChat> {
    pub call: C,
    /// By choice; at least one.
    outputs: Vec<OutputItems>,
    /// When the last delta arrived.
    completed_at: Option<Timestamp>,
    /// The last event, while the output is being stored.
    held: Option<TurnEvent>,
    clock_rng: Arc<dyn ClockRng>,
}

impl<C: RunningText> Turn<C> {
    /// The turn of a call that has started. `output`: of a choice, before anything is generated.
    pub fn new(call: C, output: OutputItems, clock_rng: Arc<dyn ClockRng>) -> Self {
        let outputs = vec![output; call.choices().max(1) as usize];
        Self { call, outputs, completed_at: None, held: None, clock_rng }
    }

    /// What the next delta of any choice adds; `None` when all have ended. The last event is returned once the output is
    /// stored in its conversation. A call with a conversation has one choice, so the end of a choice is the end of the turn.
    /// Cancel-safe.
    pub async fn next(&mut self) -> Option<Result<TurnEvent>> {
        while self.held.is_none() {
            let delta = match self.call.next().await? {
                Ok(delta) => delta,
                Err(error) => return Some(Err(error)),
            };
            let Some(output) = self.outputs.get_mut(delta.choice as usize) else { continue };
            let event = output.add(delta);
            if event.ending.is_some() {
                self.completed_at = Some(self.clock_rng.now());
                if self.call.begin_storing(output) {
                    self.held = Some(event);
                    break;
                }
            }
            return Some(Ok(event));
        }
        let stored = self.call.wait_until_stored().await;
        let event = self.held.take()?;
        Some(stored.map(|()| event))
    }

    /// Generates the whole outputs. Each event is passed to `observe`.
    pub async fn generate(&mut self, observe: impl Fn(TurnEvent)) -> Result<()> {
        while let Some(event) = self.next().await {
            observe(event?);
        }
        self.require_end()
    }

    /// Fails if an output has not ended.
    pub fn require_end(&self) -> Result<()> {
        match self.outputs.iter().all(|output| output.ending.is_some()) {
            true => Ok(()),
            false => Err(Error::internal("the engine closed a ticket before its end")),
        }
    }

    /// The outputs so far, by choice.
    pub fn outputs(&self) -> &[OutputItems] {
        &self.outputs
    }

    /// The output of the first choice.
    pub fn output(&self) -> &OutputItems {
        &self.outputs[0]
    }

    /// When the output was complete; `None` if it is not, or if it is cut off.
    pub fn completed_at(&self) -> Option<Timestamp> {
        self.completed_at.filter(|_| !self.output().is_cut_off())
    }
}
