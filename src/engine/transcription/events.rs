//! The two ends of a transcription that its request holds: one takes audio, the other gives text.

use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};

use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};

use super::request::{SpeechWindow, TranscriptionEvent};
use crate::engine::error::Failure;
use crate::engine::runtime::Runtime;

/// Windows of a request that wait. More of them wait in the file.
const MAX_WAITING_WINDOWS: usize = 2;

/// Takes the audio of a transcription, window by window. Dropping it ends the audio.
pub struct WindowSender {
    windows: Option<SyncSender<SpeechWindow>>,
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
    /// The next result; `None` after the last window or a failure.
    pub async fn next(&mut self) -> Option<Result<TranscriptionEvent, Failure>> {
        self.0.recv().await
    }
}

/// Sends the results.
pub type EventSender = UnboundedSender<Result<TranscriptionEvent, Failure>>;

/// The engine's ends of a transcription, and those of its request.
pub fn channels(runtime: &Arc<Runtime>) -> ((Receiver<SpeechWindow>, EventSender), (WindowSender, Transcription)) {
    let (windows, input) = sync_channel(MAX_WAITING_WINDOWS);
    let (events, results) = unbounded_channel();
    let sender = WindowSender { windows: Some(windows), runtime: Arc::clone(runtime) };
    ((input, events), (sender, Transcription(results)))
}
