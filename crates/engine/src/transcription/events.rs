//! The two ends of a transcription that its request holds: one takes audio, the other gives text.

use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};

use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, WeakUnboundedSender, unbounded_channel};

use super::request::{SpeechWindow, TranscriptionEvent};
use crate::error::Failure;
use crate::runtime::Runtime;

/// Windows of a request that wait. More of them wait in the file.
const MAX_WAITING_WINDOWS: usize = 2;

/// Takes the audio of a transcription, window by window. Dropping it ends the audio.
pub struct WindowSender {
    windows: Option<SyncSender<SpeechWindow>>,
    events: WeakUnboundedSender<Result<TranscriptionEvent, Failure>>,
    runtime: Arc<Runtime>,
}

impl WindowSender {
    /// Waits until there is room for the window. Do not call it on an async thread. `false`: the transcription has ended or
    /// was cancelled.
    #[must_use]
    pub fn send(&self, window: SpeechWindow) -> bool {
        let sent = self.windows.as_ref().is_some_and(|windows| windows.send(window).is_ok());
        self.runtime.wake();
        sent
    }

    /// True once the transcription has ended or was cancelled, and takes no more windows.
    pub fn is_cancelled(&self) -> bool {
        self.events.upgrade().is_none_or(|events| events.is_closed())
    }
}

impl Drop for WindowSender {
    fn drop(&mut self) {
        self.windows = None;
        self.runtime.wake();
    }
}

impl std::fmt::Debug for WindowSender {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("WindowSender").finish_non_exhaustive()
    }
}

/// The results of a transcription. Dropping it cancels the transcription; there is no other signal.
///
/// They are texts of audio that is limited in length, so that they may all wait for a slow client.
#[derive(Debug)]
pub struct Transcription(UnboundedReceiver<Result<TranscriptionEvent, Failure>>);

impl Transcription {
    /// The results of a transcription that another server has done.
    pub fn finished(results: Vec<TranscriptionEvent>) -> Self {
        let (sender, events) = unbounded_channel();
        // The receiver is there, so that nothing is lost.
        results.into_iter().for_each(|result| drop(sender.send(Ok(result))));
        Self(events)
    }

    /// The next result; `None` after the last window or a failure.
    pub async fn next(&mut self) -> Option<Result<TranscriptionEvent, Failure>> {
        self.0.recv().await
    }

    /// Cancels what is not transcribed yet. Returns the results that were not received.
    pub fn close(&mut self) -> impl Iterator<Item = TranscriptionEvent> {
        self.0.close();
        std::iter::from_fn(|| self.0.try_recv().ok()).flatten()
    }
}

/// Sends the results.
pub type EventSender = UnboundedSender<Result<TranscriptionEvent, Failure>>;

/// The engine's ends of a transcription, and those of its request.
pub fn channels(runtime: &Arc<Runtime>) -> ((Receiver<SpeechWindow>, EventSender), (WindowSender, Transcription)) {
    let (windows, input) = sync_channel(MAX_WAITING_WINDOWS);
    let (events, results) = unbounded_channel();
    let sender = WindowSender { windows: Some(windows), events: events.downgrade(), runtime: Arc::clone(runtime) };
    ((input, events), (sender, Transcription(results)))
}
