//! Speech as it is spoken: the bytes of a file, or server-sent events in OpenAI's format.
//!
//! The response body owns the running speech: when the client disconnects, actix drops the body, and the engine stops.

use std::time::Duration;

use actix_web::HttpResponse;
use actix_web::http::header;
use actix_web::web::Bytes;
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use futures_util::stream;
use serde::Serialize;

use super::super::response::DurationUsage;
use crate::calls::speech::{AudioFormat, RunningSpeech};
use crate::engine::SpokenPart;
use crate::error::{Error, Result};
use crate::http::error::{in_stream, log_stream_failure};
use crate::http::response::Mount;
use crate::http::sse;
use crate::ids::RequestId;
use crate::service::usage::Outcome;

/// Speech whose first part is spoken.
pub struct Started {
    pub running: RunningSpeech,
    pub first: Option<SpokenPart>,
    pub request_id: Option<RequestId>,
}

/// A stream and what it has sent.
struct Stream {
    started: Started,
    stage: Stage,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Stage {
    Parts,
    /// The file is complete, and its usage is recorded.
    Complete,
    Finished,
}

/// What a stream sends next.
enum Item {
    Audio(Vec<u8>),
    /// No part was ready in time.
    Waiting,
    /// After the audio.
    End,
}

/// A piece of the file.
#[derive(Serialize)]
struct Delta {
    r#type: &'static str,
    /// Base64.
    audio: String,
}

/// The end of the file.
#[derive(Serialize)]
struct Done {
    r#type: &'static str,
    usage: Usage,
}

#[derive(Serialize)]
#[serde(untagged)]
enum Usage {
    Duration(DurationUsage),
    Tokens(TokenUsage),
}

/// OpenAI's event has only counts of tokens, which speech does not have here.
#[derive(Default, Serialize)]
struct TokenUsage {
    input_tokens: u64,
    output_tokens: u64,
    total_tokens: u64,
}

/// The bytes of the file. An error ends the connection before the end of the body.
pub fn audio(started: Started, format: AudioFormat) -> HttpResponse {
    let bytes = stream::try_unfold(Stream::new(started), |mut stream| async move {
        loop {
            match stream.next(None).await {
                Ok(Item::Audio(bytes)) => return Ok(Some((Bytes::from(bytes), stream))),
                Ok(Item::Waiting) => {}
                Ok(Item::End) => return Ok::<_, Error>(None),
                Err(error) => {
                    let recorded = stream.fail(&error).await;
                    log_stream_failure(&error, stream.started.request_id, recorded);
                    return Err(error);
                }
            }
        }
    });
    HttpResponse::Ok()
        .content_type(format.media_type())
        .insert_header((header::CACHE_CONTROL, "no-store, no-transform"))
        .insert_header(("x-accel-buffering", "no"))
        .streaming(Box::pin(bytes))
}

/// The file in events.
pub fn events(started: Started, mount: Mount) -> HttpResponse {
    sse::response(stream::unfold(Stream::new(started), move |mut stream| async move {
        let event = match stream.next(Some(sse::KEEP_ALIVE)).await {
            Ok(Item::Audio(bytes)) => delta(&bytes),
            Ok(Item::Waiting) => sse::keep_alive(),
            Ok(Item::End) if stream.stage == Stage::Finished => return None,
            Ok(Item::End) => {
                stream.stage = Stage::Finished;
                done(stream.started.running.seconds(), mount)
            }
            Err(error) => {
                let recorded = stream.fail(&error).await;
                in_stream(&error, stream.started.request_id, recorded).unwrap_or_else(sse::keep_alive)
            }
        };
        Some((event, stream))
    }))
}

fn delta(bytes: &[u8]) -> sse::Event {
    let event = Delta { r#type: "speech.audio.delta", audio: STANDARD.encode(bytes) };
    sse::named(event.r#type, &event)
}

fn done(seconds: f64, mount: Mount) -> sse::Event {
    let usage = match mount {
        Mount::Spec => Usage::Duration(DurationUsage::of(seconds)),
        Mount::OpenAi => Usage::Tokens(TokenUsage::default()),
    };
    let event = Done { r#type: "speech.audio.done", usage };
    sse::named(event.r#type, &event)
}

impl Stream {
    fn new(started: Started) -> Self {
        Self { started, stage: Stage::Parts }
    }

    /// Bytes of the file until it is complete. `patience`: how long it waits for a part.
    async fn next(&mut self, patience: Option<Duration>) -> Result<Item> {
        while self.stage == Stage::Parts {
            let Some(part) = self.part(patience).await? else { return Ok(Item::Waiting) };
            let bytes = match part {
                Some(part) => self.started.running.encode(part).await?,
                None => self.finish().await?,
            };
            if !bytes.is_empty() {
                return Ok(Item::Audio(bytes));
            }
        }
        Ok(Item::End)
    }

    /// The next part, or `Some(None)` after the last one; `None` if it takes too long.
    async fn part(&mut self, patience: Option<Duration>) -> Result<Option<Option<SpokenPart>>> {
        if let Some(first) = self.started.first.take() {
            return Ok(Some(Some(first)));
        }
        let next = self.started.running.next();
        match patience {
            None => next.await.map(Some),
            Some(patience) => actix_web::rt::time::timeout(patience, next).await.ok().transpose(),
        }
    }

    /// The last bytes, which are sent after the usage is durable.
    async fn finish(&mut self) -> Result<Vec<u8>> {
        let bytes = self.started.running.finish()?;
        self.started.running.close(Outcome::Succeeded).await?;
        self.stage = Stage::Complete;
        Ok(bytes)
    }

    /// Records the failure.
    async fn fail(&mut self, error: &Error) -> Result<()> {
        self.stage = Stage::Finished;
        self.started.running.close(Outcome::of_status(error.code().status())).await
    }
}
