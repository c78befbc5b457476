//! Decides which window is transcribed next, as a pure state machine.
//!
//! The tenant that was served least is next, by seconds of audio, and of its requests the one that was served least. A
//! tenant without requests starts at the lowest amount among those with requests. Windows of a request are transcribed side by side; their results
//! are delivered in order.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, TryRecvError};
use std::time::Duration;

use super::events::EventSender;
use super::model::TranscriptionModel;
use super::prepared_request::{Language, PreparedRequest};
use super::request::{SAMPLE_RATE, Segment, SpeechWindow, TranscriptionEvent};
use super::window_decoder::DecodingOptions;
use crate::error::Failure;
use crate::ids::{RequestId, Tenant};
use crate::jobs::TenantCosts;

/// Weight of the newest request in the moving average of durations.
const NEWEST_WEIGHT: f64 = 0.3;

/// A request and its progress.
struct QueuedRequest<M> {
    model: Arc<M>,
    request: PreparedRequest,
    input: Receiver<SpeechWindow>,
    /// The next window.
    waiting: Option<SpeechWindow>,
    /// There are no more windows after it.
    input_ended: bool,
    /// Windows that were handed out, and whose results were delivered.
    taken: u64,
    delivered: u64,
    /// Results that wait for those of earlier windows.
    finished: BTreeMap<u64, TranscriptionEvent>,
    events: EventSender,
    served: f64,
    since: Duration,
}

/// A window to transcribe.
pub struct WindowJob<M = TranscriptionModel> {
    pub request_id: RequestId,
    /// The number of the window in its request.
    pub number: u64,
    pub window: SpeechWindow,
    pub model: Arc<M>,
    pub options: Arc<DecodingOptions>,
    pub words: bool,
    pub language: Language,
    events: EventSender,
}

impl<M> WindowJob<M> {
    /// True once the request was cancelled.
    pub fn is_cancelled(&self) -> bool {
        self.events.is_closed()
    }

    pub fn seconds(&self) -> f64 {
        seconds(&self.window)
    }
}

fn seconds(window: &SpeechWindow) -> f64 {
    window.samples.len() as f64 / SAMPLE_RATE as f64
}

impl<M> QueuedRequest<M> {
    /// Receives the next window if there is one.
    fn poll_input(&mut self) {
        if self.waiting.is_some() || self.input_ended {
            return;
        }
        match self.input.try_recv() {
            Ok(window) => self.waiting = Some(window),
            Err(TryRecvError::Empty) => {}
            Err(TryRecvError::Disconnected) => self.input_ended = true,
        }
    }

    /// True if its next window can be transcribed. Later windows wait until the first one has detected the language.
    fn is_ready(&self) -> bool {
        self.waiting.is_some() && (self.taken == 0 || self.request.language != Language::Unknown)
    }

    fn is_complete(&self) -> bool {
        self.input_ended && self.waiting.is_none() && self.delivered == self.taken
    }

    fn send(&self, event: Result<TranscriptionEvent, Failure>) {
        // The client may be gone.
        let _ = self.events.send(event);
    }
}

/// The queue of transcriptions.
pub struct TranscriptionScheduler<M = TranscriptionModel> {
    requests: BTreeMap<RequestId, QueuedRequest<M>>,
    next: RequestId,
    /// Seconds of audio.
    served: TenantCosts,
    /// Moving average of the seconds from a request to its end; `None` before the first end.
    request_seconds: Option<f64>,
}

impl<M> TranscriptionScheduler<M> {
    pub fn new() -> Self {
        Self { requests: BTreeMap::new(), next: 0, served: TenantCosts::default(), request_seconds: None }
    }

    /// An empty scheduler. Request IDs continue from this one.
    pub fn new_empty(&self) -> Self {
        Self { next: self.next, ..Self::new() }
    }

    /// Requests in the queue, in total or of a tenant, including running ones.
    pub fn requests(&self, of: Option<Tenant>) -> usize {
        self.requests.values().filter(|one| of.is_none_or(|tenant| one.request.tenant == tenant)).count()
    }

    /// Estimated seconds until the queue is empty; `None` before the first request has ended.
    pub fn seconds(&self) -> Option<f64> {
        Some(self.request_seconds? * self.requests.len() as f64)
    }

    pub fn push(
        &mut self,
        model: Arc<M>,
        request: PreparedRequest,
        (input, events): (Receiver<SpeechWindow>, EventSender),
        now: Duration,
    ) {
        self.served.arrive(request.tenant, self.requests.values().map(|one| one.request.tenant));
        let own = self.requests.values().filter(|one| one.request.tenant == request.tenant);
        let served = own.map(|one| one.served).min_by(f64::total_cmp).unwrap_or(0.);
        let (waiting, finished) = (None, BTreeMap::new());
        let queued = QueuedRequest {
            model,
            request,
            input,
            waiting,
            input_ended: false,
            taken: 0,
            delivered: 0,
            finished,
            events,
            served,
            since: now,
        };
        self.requests.insert(self.next, queued);
        self.next += 1;
    }

    /// The next window. While windows of the model `running` are transcribed, only another one of this model: if that of
    /// another model is next, the batch ends first.
    pub fn next_window(&mut self, running: Option<&Arc<M>>) -> Option<WindowJob<M>> {
        self.requests.values_mut().for_each(QueuedRequest::poll_input);
        let served = |one: &QueuedRequest<M>| self.served.of(one.request.tenant);
        let ready = self.requests.iter().filter(|(_, one)| one.is_ready());
        let (id, _) = ready.min_by(|(_, one), (_, other)| {
            served(one).total_cmp(&served(other)).then(one.served.total_cmp(&other.served))
        })?;
        let id = *id;
        let next =
            self.requests.get_mut(&id).filter(|next| running.is_none_or(|model| Arc::ptr_eq(model, &next.model)))?;
        let window = next.waiting.take()?;
        let number = next.taken;
        next.taken += 1;
        next.served += seconds(&window);
        self.served.add(next.request.tenant, seconds(&window));
        let PreparedRequest { options, words, language, .. } = &next.request;
        Some(WindowJob {
            request_id: id,
            number,
            window,
            model: Arc::clone(&next.model),
            options: Arc::clone(options),
            words: *words,
            language: *language,
            events: next.events.clone(),
        })
    }

    /// Sets the language of a request, which its first window has detected.
    pub fn language_detected(&mut self, id: RequestId, token: u32, code: &str) {
        if let Some(request) = self.requests.get_mut(&id) {
            request.request.language = Language::Known(Some(token));
            request.send(Ok(TranscriptionEvent::Language(code.to_owned())));
        }
    }

    /// Delivers the result of a window once those of earlier ones are delivered.
    pub fn window_done(&mut self, id: RequestId, number: u64, segments: Vec<Segment>, seconds: f64) {
        let Some(request) = self.requests.get_mut(&id) else { return };
        request.finished.insert(number, TranscriptionEvent::Window { segments, seconds });
        while let Some(event) = request.finished.remove(&request.delivered) {
            request.send(Ok(event));
            request.delivered += 1;
        }
    }

    /// Fails a request.
    pub fn fail(&mut self, id: RequestId, failure: Failure) {
        if let Some(request) = self.requests.remove(&id) {
            request.send(Err(failure));
        }
        self.reset_if_empty();
    }

    /// Removes requests that are complete or cancelled.
    pub fn drop_ended(&mut self, now: Duration) {
        self.requests.values_mut().for_each(QueuedRequest::poll_input);
        let ended = self.requests.extract_if(.., |_, one| one.is_complete() || one.events.is_closed());
        for (_, request) in ended {
            if request.is_complete() {
                let took = now.saturating_sub(request.since).as_secs_f64();
                let average = self.request_seconds.unwrap_or(took);
                self.request_seconds = Some(average + (took - average) * NEWEST_WEIGHT);
            }
        }
        self.reset_if_empty();
    }

    /// Fails waiting requests; `started`: also those with some windows handed out.
    pub fn fail_all(&mut self, failure: &Failure, started: bool) {
        let failed = self.requests.extract_if(.., |_, one| started || one.taken == 0);
        failed.for_each(|(_, one)| one.send(Err(failure.clone())));
        self.reset_if_empty();
    }

    /// With an empty queue, served amounts have no meaning.
    fn reset_if_empty(&mut self) {
        if self.requests.is_empty() {
            self.served.clear();
        }
    }
}
