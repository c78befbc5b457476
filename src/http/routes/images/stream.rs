//! Images as server-sent events in OpenAI's format: partial images, then the finished ones. On `/v1` also progress
//! events.
//!
//! The response body owns the running generation: when the client disconnects, actix drops the body, and the engine
//! stops.
//!
//! There is no `[DONE]`: as in OpenAI's API, the events have names and `completed` is the end.

use actix_web::HttpResponse;
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use futures_util::stream;
use serde::Serialize;

use super::response::ImagesUsage;
use crate::calls::images::{Output, RunningImages, encode, size_text};
use crate::engine::{Image, ImageEvent};
use crate::error::{Error, Result};
use crate::http::error::in_stream;
use crate::http::response::Mount;
use crate::http::sse;
use crate::ids::RequestId;
use crate::service::usage::Outcome;

/// Stream settings besides the images.
pub struct Streaming {
    /// The prefix of the event names, for example `image_generation`.
    pub name: &'static str,
    pub mount: Mount,
    pub output: Output,
    pub request_id: Option<RequestId>,
}

struct Events {
    running: RunningImages,
    options: Streaming,
    /// Partial images sent so far, per image.
    partial_counts: Vec<u32>,
    finished: bool,
}

/// A finished or partial image.
#[derive(Serialize)]
struct ImageEventBody {
    r#type: String,
    b64_json: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    partial_image_index: Option<u32>,
    /// Index of the image, from zero.
    image_index: usize,
    #[serde(skip_serializing_if = "Option::is_none")]
    seed: Option<u64>,
    created_at: i64,
    size: String,
    output_format: &'static str,
    background: &'static str,
    quality: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    usage: Option<ImagesUsage>,
}

/// Progress of one image.
#[derive(Serialize)]
struct Progress {
    r#type: String,
    image_index: usize,
    step: usize,
    steps: usize,
}

pub fn respond(running: RunningImages, options: Streaming) -> HttpResponse {
    let partial_counts = vec![0; running.seeds.len()];
    let state = Events { running, options, partial_counts, finished: false };
    sse::response(stream::unfold(state, |mut state| async move {
        if state.finished {
            return None;
        }
        let event = match state.next().await {
            Ok(event) => event,
            Err(error) => state.fail(error).await,
        };
        Some((event, state))
    }))
}

impl Events {
    async fn next(&mut self) -> Result<sse::Event> {
        match actix_web::rt::time::timeout(sse::KEEP_ALIVE, self.running.next()).await {
            Err(_) => Ok(sse::keep_alive()),
            Ok(Some(Ok(ImageEvent::Step { index, step, steps, preview }))) => {
                self.step(index, (step, steps), preview).await
            }
            Ok(Some(Ok(ImageEvent::Done { index, image }))) => self.done(index, image).await,
            Ok(Some(Err(error))) => Err(error),
            Ok(None) => Err(Error::internal("the image stream ended twice")),
        }
    }

    async fn step(
        &mut self,
        index: usize,
        (step, steps): (usize, usize),
        preview: Option<Image>,
    ) -> Result<sse::Event> {
        let name = format!("{}.progress", self.options.name);
        let progress = match self.options.mount {
            Mount::Spec => sse::named(&name, &Progress { r#type: name.clone(), image_index: index, step, steps }),
            // Strict clients do not know this event, so it is sent as a comment.
            Mount::OpenAi => sse::keep_alive(),
        };
        let Some(image) = preview else { return Ok(progress) };
        let count = self.partial_counts.get_mut(index).map_or(0, |count| std::mem::replace(count, *count + 1));
        let event = self.event("partial_image", index);
        let event = self.encode_event(ImageEventBody { partial_image_index: Some(count), ..event }, image).await?;
        self.running.record_preview().await?;
        Ok(sse::join(progress, event))
    }

    /// An image is sent after the usage is durable.
    async fn done(&mut self, index: usize, image: Image) -> Result<sse::Event> {
        let event = ImageEventBody { usage: Some(ImagesUsage::of(1)), ..self.event("completed", index) };
        let event = self.encode_event(event, image).await?;
        match self.running.is_done() {
            true => {
                self.running.close(Outcome::Succeeded).await?;
                self.finished = true;
            }
            false => self.running.record_finished().await?,
        }
        Ok(event)
    }

    fn event(&self, what: &str, index: usize) -> ImageEventBody {
        ImageEventBody {
            r#type: format!("{}.{what}", self.options.name),
            b64_json: String::new(),
            partial_image_index: None,
            image_index: index,
            seed: self.running.seeds.get(index).copied().flatten(),
            created_at: self.running.created.as_seconds(),
            size: size_text(self.running.size),
            output_format: self.options.output.format.as_str(),
            background: "opaque",
            quality: self.running.quality.as_str(),
            usage: None,
        }
    }

    /// The event with its image, encoded off the async threads.
    async fn encode_event(&self, event: ImageEventBody, image: Image) -> Result<sse::Event> {
        let (output, size) = (self.options.output, self.running.size);
        let encode_event = move || {
            let event = ImageEventBody { b64_json: STANDARD.encode(encode(image, size, output)?), ..event };
            Ok(sse::named(&event.r#type, &event))
        };
        actix_web::web::block(encode_event).await.map_err(Error::internal)?
    }

    /// An error after the stream began: one event in the usual error format, then the end.
    async fn fail(&mut self, error: Error) -> sse::Event {
        self.finished = true;
        let recorded = self.running.close(Outcome::of_status(error.code().status())).await;
        in_stream(&error, self.options.request_id, recorded).unwrap_or_else(sse::keep_alive)
    }
}
