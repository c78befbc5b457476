//! A running image generation: its events, its files and its usage.

use std::sync::Arc;

use super::codec::{Output, encode};
use super::quality::Quality;
use super::unfinished::UnfinishedImage;
use crate::calls::blocking::run_blocking;
use crate::calls::errors;
use crate::clock_rng::Timestamp;
use crate::engine::{Failure, ImageEvent, ImageEvents};
use crate::error::{Code, Error, Result};
use crate::ids::ImagesId;
use crate::service::usage::{Outcome, UsageRecorder};

/// A running image generation. Dropping it cancels unfinished images.
pub struct RunningImages {
    pub id: ImagesId,
    pub created: Timestamp,
    pub model: String,
    /// Width and height of each.
    pub size: [usize; 2],
    pub quality: Quality,
    /// One per image; `None` if it is not known.
    pub seeds: Vec<Option<u64>>,
    /// The steps of a whole image.
    pub(super) steps: usize,
    pub(super) events: ImageEvents,
    pub(super) finished: u64,
    pub(super) unfinished: UnfinishedImage,
    pub(super) recorder: Arc<UsageRecorder>,
}

impl RunningImages {
    /// The next event; `None` when every image is finished. Cancel-safe.
    pub async fn next(&mut self) -> Option<Result<ImageEvent>> {
        if self.is_done() {
            return None;
        }
        let Some(event) = self.events.next().await else {
            return Some(Err(Error::internal("the engine closed the event channel before the last image")));
        };
        match &event {
            Ok(event) => self.count(event),
            Err(_) => self.count_unreceived(),
        }
        Some(event.map_err(image_failure))
    }

    /// True once every image is finished.
    pub fn is_done(&self) -> bool {
        self.finished >= self.seeds.len() as u64
    }

    fn count(&mut self, event: &ImageEvent) {
        self.finished += u64::from(matches!(event, ImageEvent::Done { .. }));
        self.unfinished.observe(event, self.steps);
        self.set_images();
    }

    /// Counts what was generated and not received.
    fn count_unreceived(&mut self) {
        let progress = self.events.take_progress();
        let finished = self.events.close();
        if finished > 0 {
            self.finished += finished;
            self.unfinished = UnfinishedImage::default();
        }
        if let Some(progress) = progress {
            self.unfinished.observe(&progress, self.steps);
        }
        self.set_images();
    }

    fn set_images(&self) {
        self.recorder.set_images(self.finished + self.unfinished.images());
    }

    /// Waits for all images and returns their files in order.
    pub async fn all_files(&mut self, output: Output) -> Result<Vec<Vec<u8>>> {
        let mut files: Vec<Option<Vec<u8>>> = vec![None; self.seeds.len()];
        while let Some(event) = self.next().await {
            let ImageEvent::Done { index, image } = event? else { continue };
            let size = self.size;
            let file = run_blocking(move || encode(image, size, output)).await?;
            if let Some(slot) = files.get_mut(index) {
                *slot = Some(file);
            }
        }
        let files: Option<Vec<_>> = files.into_iter().collect();
        files.ok_or_else(|| Error::internal("the engine generated one image twice and another not at all"))
    }

    /// Records the usage so far durably; called before a finished image is sent that is not the last one.
    pub async fn record_finished(&self) -> Result<()> {
        self.recorder.record_so_far().await
    }

    /// Called before a preview is sent. If it counts as the image, that is recorded durably first.
    pub async fn record_preview(&mut self) -> Result<()> {
        if self.unfinished.show() { self.recorder.record_so_far().await } else { Ok(()) }
    }

    /// Records the usage durably; called before the last byte of a stream. For other responses the middleware does
    /// this.
    pub async fn close(&mut self, outcome: Outcome) -> Result<()> {
        if outcome == Outcome::Failed {
            self.unfinished.fail();
            self.set_images();
        }
        self.recorder.close(outcome).await
    }
}

impl Drop for RunningImages {
    /// A client that disconnects is charged for what was generated, received or not.
    fn drop(&mut self) {
        self.count_unreceived();
    }
}

fn image_failure(failure: Failure) -> Error {
    match failure {
        Failure::OutOfMemory => Error::new(
            Code::Overloaded,
            "The memory for image generation is in use by other models. Try again when their requests have ended; the operator can unload a model or give the server more with --memory.",
        )
        .retry_after(errors::MEMORY_FREED),
        other => errors::from_failure(other),
    }
}
