//! Responses in the background while they are generated: the steps of their outputs, which any number of streams follow.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use serde::{Deserialize, Serialize};
use tokio::sync::watch;

use super::output_items::Step;
use super::response::ItemEncoder;
use crate::ids::ResponseId;

/// The steps of an output and how they are encoded.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct OutputSteps {
    pub encoder: ItemEncoder,
    pub steps: Vec<Step>,
}

/// A response whose generation can be followed.
pub struct LiveResponse {
    state: Mutex<State>,
    changes: watch::Sender<()>,
}

#[derive(Default)]
struct State {
    /// Since its generation began.
    output: Option<OutputSteps>,
    is_closed: bool,
}

/// Steps that a stream has not sent yet.
pub struct NewSteps {
    /// How steps are encoded, since generation began.
    pub encoder: Option<ItemEncoder>,
    pub steps: Vec<Step>,
    /// Whether there will be no more.
    pub is_closed: bool,
}

impl LiveResponse {
    fn new(state: State) -> Self {
        Self { state: Mutex::new(state), changes: watch::channel(()).0 }
    }

    /// A response that has ended. `None`: its steps are not known.
    pub fn ended(output: Option<OutputSteps>) -> Self {
        Self::new(State { output, is_closed: true })
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn is_running(&self) -> bool {
        let state = self.state();
        state.output.is_some() && !state.is_closed
    }

    /// Generation begins.
    pub fn start(&self, encoder: ItemEncoder) {
        self.state().output = Some(OutputSteps { encoder, steps: Vec::new() });
        self.changes.send_replace(());
    }

    pub fn extend(&self, steps: Vec<Step>) {
        if let Some(output) = &mut self.state().output {
            output.steps.extend(steps);
        }
        self.changes.send_replace(());
    }

    /// What `encode` makes of the steps so far.
    pub fn with_output<T>(&self, encode: impl FnOnce(&Option<OutputSteps>) -> T) -> T {
        encode(&self.state().output)
    }

    fn close(&self) {
        self.state().is_closed = true;
        self.changes.send_replace(());
    }

    /// What follows the first `known` steps.
    pub fn steps_after(&self, known: usize) -> NewSteps {
        let state = self.state();
        let output = state.output.as_ref();
        NewSteps {
            encoder: output.map(|output| output.encoder),
            steps: output.and_then(|output| output.steps.get(known..)).unwrap_or_default().to_vec(),
            is_closed: state.is_closed,
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
    /// Those whose generation has begun. Their steps are kept until their end is stored, even if nobody follows them.
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
        if let Some(live) = all.get(&id).and_then(Weak::upgrade) {
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
    pub fn close(&self, id: ResponseId) {
        let _kept = self.generated().remove(&id);
        if let Some(live) = self.all().remove(&id).and_then(|live| live.upgrade()) {
            live.close();
        }
    }

    /// The server stops: all streams end.
    pub fn close_all(&self) {
        let _kept = std::mem::take(&mut *self.generated());
        let all = std::mem::take(&mut *self.all());
        all.into_values().filter_map(|live| live.upgrade()).for_each(|live| live.close());
    }
}
