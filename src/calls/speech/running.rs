//! A text that is being spoken: its parts, their encoding and their usage.

use std::sync::Arc;

use super::part_source::PartSource;
use crate::audio::{AudioEncoder, AudioFormat, ENCODER_RATE};
use crate::engine::SpokenPart;
use crate::error::{Error, Result};
use crate::service::usage::{Outcome, UsageRecorder, seconds};

/// Samples that are encoded before other tasks of the thread may run. The MP3 encoder cannot move to another thread, and this
/// takes less than a millisecond.
const SLICE: usize = 2400;

/// A text that is being spoken. Dropping it cancels what is not spoken yet.
pub struct RunningSpeech {
    parts: PartSource,
    /// `None` once the file has ended.
    encoder: Option<AudioEncoder>,
    /// Samples of the parts that are spoken.
    samples: u64,
    recorder: Arc<UsageRecorder>,
}

impl RunningSpeech {
    pub(super) fn new(parts: PartSource, format: AudioFormat, recorder: Arc<UsageRecorder>) -> Result<Self> {
        // The length is not known, so the headers do not have it.
        let encoder = AudioEncoder::new(format, None).map_err(Error::internal)?;
        Ok(Self { parts, encoder: Some(encoder), samples: 0, recorder })
    }

    /// The next part, which is metered; `None` when the whole text is spoken. Cancel-safe.
    pub async fn next(&mut self) -> Result<Option<SpokenPart>> {
        match self.parts.next().await {
            Some(Ok(part)) => {
                self.count(part.samples.len() as u64);
                Ok(Some(part))
            }
            Some(Err(error)) => {
                self.count_unreceived();
                Err(error)
            }
            None => Ok(None),
        }
    }

    /// The bytes of the file that a part adds.
    pub async fn encode(&mut self, part: SpokenPart) -> Result<Vec<u8>> {
        let encoder = self.encoder.as_mut().ok_or_else(ended)?;
        let mut bytes = Vec::new();
        for samples in part.samples.chunks(SLICE) {
            bytes.extend(encoder.push(samples).map_err(Error::internal)?);
            tokio::task::yield_now().await;
        }
        Ok(bytes)
    }

    /// The end of the file.
    pub fn finish(&mut self) -> Result<Vec<u8>> {
        self.encoder.take().ok_or_else(ended)?.finish().map_err(Error::internal)
    }

    /// Seconds that are spoken, as they are metered.
    pub fn seconds(&self) -> f64 {
        seconds(self.millis())
    }

    /// Records the usage durably; called before the last byte.
    pub async fn close(&self, outcome: Outcome) -> Result<()> {
        self.recorder.close(outcome).await
    }

    fn count(&mut self, samples: u64) {
        self.samples += samples;
        self.recorder.set_generated_audio(self.millis());
    }

    /// Counts the parts that are spoken and were not received.
    fn count_unreceived(&mut self) {
        let samples = self.parts.close();
        self.count(samples);
    }

    /// Rounded up.
    fn millis(&self) -> u64 {
        self.samples.saturating_mul(1000).div_ceil(u64::from(ENCODER_RATE))
    }
}

impl Drop for RunningSpeech {
    /// A client that disconnects is charged for spoken parts, received or not.
    fn drop(&mut self) {
        self.count_unreceived();
    }
}

fn ended() -> Error {
    Error::internal("the audio file has ended")
}
