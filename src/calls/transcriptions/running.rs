//! A running transcription: its events, its transcript and its usage.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use tokio::sync::oneshot;

use super::upload::Held;
use crate::calls::errors;
use crate::engine::{Failure, Segment, Transcription, TranscriptionEvent};
use crate::error::{Code, Error, Result};
use crate::ids::TranscriptionId;
use crate::service::usage::{Outcome, UsageRecorder, seconds};

/// A running transcription. Dropping it cancels what is not transcribed yet.
pub struct RunningTranscription {
    pub id: TranscriptionId,
    pub(super) events: Transcription,
    /// How decoding the file ended; taken at the end of the events.
    pub(super) decoded: Option<oneshot::Receiver<Result<()>>>,
    pub(super) audio: Progress,
    pub(super) recorder: Arc<UsageRecorder>,
    /// Held as long as the request takes.
    pub(super) _held: Arc<Held>,
}

/// A file may be this much longer than it was measured, because encoders and resamplers delay the signal; milliseconds.
const MEASURING_TOLERANCE: u64 = 1000;

/// The audio of a request.
pub(super) struct Progress {
    /// The measured length of the file in milliseconds, rounded up.
    pub measured_millis: u64,
    /// Audio that has been decoded, in milliseconds.
    pub decoded_millis: Arc<AtomicU64>,
    /// Seconds that are transcribed: those of windows, and the silence between them up to the last text.
    pub transcribed: f64,
}

/// The text of a whole file.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Transcript {
    /// The code of the language; `None` if there was no speech to detect it in.
    pub language: Option<String>,
    pub segments: Vec<Segment>,
}

impl Progress {
    /// The length of the file in milliseconds: as it was measured, unless the times in the file have lied.
    fn total_millis(&self) -> u64 {
        let decoded = self.decoded_millis.load(Ordering::Relaxed);
        if decoded > self.measured_millis + MEASURING_TOLERANCE { decoded } else { self.measured_millis }
    }

    /// Adds a window of this many seconds. The windows of a file leave out silence, which counts as soon as there is
    /// text after it.
    fn add(&mut self, seconds: f64, segments: &[Segment]) {
        let end = segments.iter().map(|segment| segment.end).fold(0.0, f64::max);
        self.transcribed = (self.transcribed + seconds).max(end);
    }

    /// Audio that has been transcribed, in milliseconds.
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "a number of milliseconds is not negative, and one beyond the range of u64 saturates"
    )]
    fn millis(&self) -> u64 {
        ((self.transcribed * 1000.0).ceil() as u64).min(self.total_millis())
    }
}

impl RunningTranscription {
    /// The next event; `None` when the whole file is transcribed. Cancel-safe until the last event.
    pub async fn next(&mut self) -> Option<Result<TranscriptionEvent>> {
        match self.events.next().await {
            Some(Ok(event)) => {
                self.count(&event);
                Some(Ok(event))
            }
            Some(Err(failure)) => Some(Err(transcription_failure(failure))),
            None => self.end().await.err().map(Err),
        }
    }

    fn count(&mut self, event: &TranscriptionEvent) {
        if let TranscriptionEvent::Window { seconds, segments } = event {
            self.audio.add(*seconds, segments);
            self.recorder.set_audio(self.audio.millis());
        }
    }

    /// The end of the events: of the whole file, or of the part before an error of the decoder. Cancel-safe.
    async fn end(&mut self) -> Result<()> {
        if let Some(decoded) = &mut self.decoded {
            let outcome = decoded.await;
            self.decoded = None;
            outcome.map_err(|_| Error::internal("the decoding thread ended early"))??;
            self.recorder.set_audio(self.audio.total_millis());
        }
        Ok(())
    }

    /// Seconds of the whole file, as they are metered.
    pub fn seconds(&self) -> f64 {
        seconds(self.audio.total_millis())
    }

    /// Waits for the whole transcript.
    pub async fn transcript(&mut self) -> Result<Transcript> {
        let mut transcript = Transcript::default();
        while let Some(event) = self.next().await {
            match event? {
                TranscriptionEvent::Language(code) => transcript.language = Some(code),
                TranscriptionEvent::Window { segments, .. } => transcript.segments.extend(segments),
            }
        }
        Ok(transcript)
    }

    /// Records the usage durably; called before the last byte of a stream. For other responses the middleware does
    /// this.
    pub async fn close(&self, outcome: Outcome) -> Result<()> {
        self.recorder.close(outcome).await
    }
}

impl Drop for RunningTranscription {
    /// A client that disconnects is charged for transcribed windows, received or not.
    fn drop(&mut self) {
        if self.decoded.is_some() {
            let unreceived: Vec<_> = self.events.close().collect();
            unreceived.iter().for_each(|event| self.count(event));
        }
    }
}

impl Transcript {
    /// The text of all segments.
    pub fn text(&self) -> String {
        let text: String = self.segments.iter().map(|segment| segment.text.as_str()).collect();
        text.trim().to_owned()
    }
}

fn transcription_failure(failure: Failure) -> Error {
    match failure {
        Failure::OutOfMemory => Error::new(
            Code::Overloaded,
            "The memory for transcriptions is in use by other models. Try again when their requests have ended; the operator can unload a model or give the server more with --memory.",
        )
        .retry_after(errors::MEMORY_FREED),
        other => errors::from_failure(other),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::{Progress, Segment, Transcript};

    fn progress(decoded_millis: u64, transcribed: f64) -> Progress {
        Progress { measured_millis: 30_500, decoded_millis: Arc::new(decoded_millis.into()), transcribed }
    }

    #[test]
    fn transcribed_audio_is_rounded_up_and_never_more_than_the_file() {
        let millis = |transcribed| progress(30_501, transcribed).millis();
        assert_eq!([0.0, 0.0001, 29.9995, 31.0].map(millis), [0, 1, 30_000, 30_500]);
    }

    #[test]
    fn silence_counts_once_there_is_text_after_it() {
        let segment = |end| Segment { end, ..Segment::default() };
        let mut audio = progress(30_500, 0.0);
        audio.add(2.0, &[segment(1.5)]);
        assert_eq!(audio.millis(), 2_000);
        audio.add(3.0, &[segment(20.5), segment(22.5)]);
        assert_eq!(audio.millis(), 22_500);
        audio.add(1.0, &[]);
        assert_eq!(audio.millis(), 23_500);
    }

    #[test]
    fn a_file_that_is_longer_than_its_times_say_counts_as_decoded() {
        let lying = progress(3_600_000, 900.0);
        assert_eq!((lying.millis(), lying.total_millis()), (900_000, 3_600_000));
        assert_eq!(progress(31_500, 0.0).total_millis(), 30_500);
    }

    #[test]
    fn the_text_is_that_of_the_segments() {
        let segment = |text: &str| Segment { text: text.to_owned(), ..Segment::default() };
        let segments = vec![segment(" One."), segment(" Two.")];
        assert_eq!(Transcript { language: None, segments }.text(), "One. Two.");
        assert_eq!(Transcript::default().text(), "");
    }
}
