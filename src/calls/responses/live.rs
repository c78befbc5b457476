//! Responses in the background while they are generated: the steps of their outputs, which any number of streams follow.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use serde::{Deserialize, Serialize};
use tokio::sync::watch;
use tokio::time::Instant;

use super::item_format::ItemFormat;
use crate::calls::turn::output::Step;
use crate::error::{Error, Result};
use crate::ids::ResponseId;

/// The steps of an output and how they are encoded.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct OutputSteps {
    /// The number of the generation, if nodes share the store.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub generation: Option<u64>,
    #[serde(rename = "encoder")]
    pub format: ItemFormat,
    pub steps: Vec<Step>,
}

impl OutputSteps {
    /// What is stored of the steps of a response; nothing if they were too many, or it ended before its generation.
    pub fn parse(json: &str) -> Result<Option<Self>> {
        match json {
            "" => Ok(None),
            json => serde_json::from_str(json).map_err(Error::internal),
        }
    }
}

/// The generation that stored steps are of. Other fields are ignored.
#[derive(Deserialize)]
struct Origin {
    generation: Option<u64>,
}

/// The number of the generation that stored steps are of, if they name one.
pub fn generation_of(json: &str) -> Option<u64> {
    serde_json::from_str::<Origin>(json).ok()?.generation
}

/// A response whose generation can be followed.
pub struct LiveResponse {
    state: Mutex<State>,
    changes: watch::Sender<()>,
    /// Held while the steps that another node generates are read.
    pub reader: tokio::sync::Mutex<PartReader>,
}

/// How far the steps are read that another node generates.
#[derive(Default)]
pub struct PartReader {
    pub next_part: u32,
    /// When the store is asked again.
    pub due: Option<Instant>,
}

#[derive(Default)]
struct State {
    /// Since its generation began.
    output: Option<OutputSteps>,
    /// Whether this process generates it.
    is_generated_here: bool,
    end: Option<LiveEnd>,
}

/// Why there are no more steps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LiveEnd {
    /// This process has stored the end of what it generated.
    Stored,
    /// The response has ended otherwise, or its generation was interrupted.
    Closed,
    /// The response has ended, but its steps were too many to be stored.
    LacksSteps,
    /// The node that generated it has failed, or the response was generated again.
    Interrupted,
}

/// Steps that a stream has not sent yet.
pub struct NewSteps {
    pub generation: Option<u64>,
    /// How steps are encoded, since generation began.
    pub format: Option<ItemFormat>,
    pub steps: Vec<Step>,
    /// Whether there will be no more.
    pub end: Option<LiveEnd>,
}

impl LiveResponse {
    fn new(state: State) -> Self {
        Self { state: Mutex::new(state), changes: watch::channel(()).0, reader: tokio::sync::Mutex::default() }
    }

    /// A response that has ended. `None`: its steps are not known.
    pub fn ended(output: Option<OutputSteps>) -> Self {
        Self::new(State { output, is_generated_here: false, end: Some(LiveEnd::Closed) })
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn is_running(&self) -> bool {
        let state = self.state();
        state.output.is_some() && state.end.is_none()
    }

    fn is_closed(&self) -> bool {
        self.state().end.is_some()
    }

    /// Whether another node may have steps that are not known here.
    pub fn may_run_elsewhere(&self) -> bool {
        let state = self.state();
        !state.is_generated_here && state.end.is_none()
    }

    /// Whether this process has begun to generate it.
    pub fn is_generated_here(&self) -> bool {
        self.state().is_generated_here
    }

    /// The number of the generation that has begun.
    pub fn generation(&self) -> Option<u64> {
        self.state().output.as_ref()?.generation
    }

    /// Generation begins in this process. `generation`: its number, if nodes share the store.
    pub fn start(&self, generation: Option<u64>, format: ItemFormat) {
        let output = Some(OutputSteps { generation, format, steps: Vec::new() });
        *self.state() = State { output, is_generated_here: true, end: None };
        self.changes.send_replace(());
    }

    /// Adds steps that were generated in this process.
    pub fn extend(&self, steps: Vec<Step>) {
        if let Some(output) = &mut self.state().output {
            output.steps.extend(steps);
        }
        self.changes.send_replace(());
    }

    /// Adds a part of what another node generates.
    pub fn add_part(&self, part: OutputSteps) {
        self.change_elsewhere(|state| match &mut state.output {
            Some(output) if output.generation == part.generation => output.steps.extend(part.steps),
            Some(_) => state.end = Some(LiveEnd::Interrupted),
            None => state.output = Some(part),
        });
    }

    /// A response that another node generated has ended with these steps. `None`: they are not known.
    pub fn end_with(&self, all: Option<OutputSteps>) {
        self.change_elsewhere(|state| {
            let end = match (&mut state.output, all) {
                (None, all) => {
                    state.output = all;
                    LiveEnd::Closed
                }
                (Some(_), None) => LiveEnd::LacksSteps,
                (Some(output), Some(all)) if output.generation == all.generation => {
                    *output = all;
                    LiveEnd::Closed
                }
                (Some(_), Some(_)) => LiveEnd::Interrupted,
            };
            state.end = Some(end);
        });
    }

    /// Another node has stopped generating the response.
    pub fn interrupt(&self) {
        self.change_elsewhere(|state| state.end = Some(LiveEnd::Interrupted));
    }

    /// Changes the state unless this process has begun to generate the response.
    fn change_elsewhere(&self, change: impl FnOnce(&mut State)) {
        let mut state = self.state();
        if !state.is_generated_here && state.end.is_none() {
            change(&mut state);
            drop(state);
            self.changes.send_replace(());
        }
    }

    /// What `encode` makes of the steps so far.
    pub fn with_output<T>(&self, encode: impl FnOnce(&Option<OutputSteps>) -> T) -> T {
        encode(&self.state().output)
    }

    fn close(&self, end: LiveEnd) {
        self.state().end.get_or_insert(end);
        self.changes.send_replace(());
    }

    /// What follows the first `known` steps.
    pub fn steps_after(&self, known: usize) -> NewSteps {
        let state = self.state();
        let output = state.output.as_ref();
        NewSteps {
            generation: output.and_then(|output| output.generation),
            format: output.map(|output| output.format),
            steps: output.and_then(|output| output.steps.get(known..)).unwrap_or_default().to_vec(),
            end: state.end,
        }
    }

    /// Changes when there is news.
    pub fn changes(&self) -> watch::Receiver<()> {
        self.changes.subscribe()
    }
}

/// The responses that are generated in the background, or waited for.
#[derive(Default)]
pub struct LiveResponses {
    all: Mutex<HashMap<ResponseId, Weak<LiveResponse>>>,
    /// Responses whose generation has begun. Their steps are kept until their end is stored, even if no stream follows
    /// them.
    generated: Mutex<HashMap<ResponseId, Arc<LiveResponse>>>,
}

impl LiveResponses {
    fn all(&self) -> MutexGuard<'_, HashMap<ResponseId, Weak<LiveResponse>>> {
        self.all.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn generated(&self) -> MutexGuard<'_, HashMap<ResponseId, Arc<LiveResponse>>> {
        self.generated.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A response whose generation begins; kept until it is closed.
    pub fn keep(&self, id: ResponseId) -> Arc<LiveResponse> {
        let live = self.get_or_create(id);
        self.generated().insert(id, live.clone());
        live
    }

    /// A response that has not ended. The entry is dropped with its last reference.
    pub fn get_or_create(&self, id: ResponseId) -> Arc<LiveResponse> {
        let mut all = self.all();
        if let Some(live) = all.get(&id).and_then(Weak::upgrade).filter(|live| !live.is_closed()) {
            return live;
        }
        all.retain(|_, live| live.strong_count() > 0);
        let live = Arc::new(LiveResponse::new(State::default()));
        all.insert(id, Arc::downgrade(&live));
        live
    }

    /// Whether a response is being generated now.
    pub fn is_running(&self, id: ResponseId) -> bool {
        self.all().get(&id).and_then(Weak::upgrade).is_some_and(|live| live.is_running())
    }

    /// The response has ended: its streams end.
    pub fn close(&self, id: ResponseId, end: LiveEnd) {
        let _kept = self.generated().remove(&id);
        if let Some(live) = self.all().remove(&id).and_then(|live| live.upgrade()) {
            live.close(end);
        }
    }

    /// The server stops: all streams end.
    pub fn close_all(&self) {
        let _kept = std::mem::take(&mut *self.generated());
        let all = std::mem::take(&mut *self.all());
        all.into_values().filter_map(|live| live.upgrade()).for_each(|live| live.close(LiveEnd::Closed));
    }
}

#[cfg(test)]
mod tests;
