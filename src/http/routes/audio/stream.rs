//! Transcriptions as server-sent events in OpenAI's format: the text segment by segment, then the whole text.
//!
//! The response body owns the running transcription: when the client disconnects, actix drops the body, and the engine
//! stops.

use std::collections::VecDeque;

use actix_web::HttpResponse;
use futures_util::stream;
use serde::Serialize;

use super::request::{Output, TranscriptFormat};
use super::response::{DurationUsage, TokenLogprob, WordBody, language_of_text, rounded};
use crate::calls::transcriptions::RunningTranscription;
use crate::engine::{Segment, TranscriptionEvent};
use crate::error::{Error, Result};
use crate::http::error::in_stream;
use crate::http::response::Mount;
use crate::http::sse;
use crate::ids::RequestId;
use crate::service::usage::Outcome;

/// Stream settings besides the transcription.
pub struct Streaming {
    pub output: Output,
    pub mount: Mount,
    pub request_id: Option<RequestId>,
}

/// A stream and what it has sent.
struct Events {
    running: RunningTranscription,
    options: Streaming,
    /// Events that are to be sent.
    ready: VecDeque<sse::Event>,
    /// The code of the language of the audio.
    language: Option<String>,
    text: String,
    logprobs: Vec<TokenLogprob>,
    segments: usize,
    finished: bool,
}

/// Text that is appended.
#[derive(Serialize)]
struct Delta<'a> {
    r#type: &'static str,
    delta: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    logprobs: Option<&'a [TokenLogprob]>,
}

/// A segment with its times, with `verbose_json`.
#[derive(Serialize)]
struct SegmentEvent<'a> {
    r#type: &'static str,
    id: String,
    start: f64,
    end: f64,
    text: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    words: Option<Vec<WordBody>>,
}

/// The whole text.
#[derive(Serialize)]
struct Done<'a> {
    r#type: &'static str,
    text: &'a str,
    /// With `verbose_json`, as in its body.
    #[serde(skip_serializing_if = "Option::is_none")]
    language: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    logprobs: Option<&'a [TokenLogprob]>,
    /// OpenAI's event has only counts of tokens, so this is on `/v1` only.
    #[serde(skip_serializing_if = "Option::is_none")]
    usage: Option<DurationUsage>,
}

pub fn respond(running: RunningTranscription, options: Streaming) -> HttpResponse {
    let state = Events {
        running,
        options,
        ready: VecDeque::new(),
        language: None,
        text: String::new(),
        logprobs: Vec::new(),
        segments: 0,
        finished: false,
    };
    sse::response(stream::unfold(state, |mut state| async move {
        let event = match state.next().await {
            Ok(event) => event?,
            Err(error) => state.fail(error).await,
        };
        Some((event, state))
    }))
}

impl Events {
    /// The next event; `None` at the end.
    async fn next(&mut self) -> Result<Option<sse::Event>> {
        loop {
            if let Some(event) = self.ready.pop_front() {
                return Ok(Some(event));
            }
            if self.finished {
                return Ok(None);
            }
            match actix_web::rt::time::timeout(sse::KEEP_ALIVE, self.running.next()).await {
                Err(_) => return Ok(Some(sse::keep_alive())),
                Ok(Some(event)) => self.take(event?),
                Ok(None) => return self.done().await.map(Some),
            }
        }
    }

    fn take(&mut self, event: TranscriptionEvent) {
        match event {
            TranscriptionEvent::Language(code) => self.language = Some(code),
            TranscriptionEvent::Window { segments, .. } => segments.iter().for_each(|segment| self.add(segment)),
        }
    }

    /// Adds the events of a segment.
    fn add(&mut self, segment: &Segment) {
        // All deltas together are the whole text, which does not begin with a space.
        let delta = if self.text.is_empty() { segment.text.trim_start() } else { &segment.text };
        let tokens = self.options.output.logprobs.then(|| TokenLogprob::all(&segment.logprobs));
        let event = Delta { r#type: "transcript.text.delta", delta, logprobs: tokens.as_deref() };
        self.ready.push_back(sse::named(event.r#type, &event));
        self.text.push_str(delta);
        self.logprobs.extend(tokens.unwrap_or_default());
        if self.is_verbose() {
            self.ready.push_back(self.segment_event(segment));
        }
        self.segments += 1;
    }

    fn is_verbose(&self) -> bool {
        self.options.output.format == TranscriptFormat::VerboseJson
    }

    fn segment_event(&self, segment: &Segment) -> sse::Event {
        let event = SegmentEvent {
            r#type: "transcript.text.segment",
            id: format!("seg_{}", self.segments),
            start: rounded(segment.start),
            end: rounded(segment.end),
            text: &segment.text,
            words: self.options.output.words.then(|| segment.words.iter().map(WordBody::of).collect()),
        };
        sse::named(event.r#type, &event)
    }

    /// The last event, which is sent after the usage is durable.
    async fn done(&mut self) -> Result<sse::Event> {
        self.running.close(Outcome::Succeeded).await?;
        self.finished = true;
        let output = self.options.output;
        let event = Done {
            r#type: "transcript.text.done",
            text: self.text.trim_end(),
            language: self.is_verbose().then(|| language_of_text(self.language.as_deref(), output)),
            logprobs: output.logprobs.then_some(&*self.logprobs),
            usage: (self.options.mount == Mount::Spec).then(|| DurationUsage::of(self.running.seconds())),
        };
        Ok(sse::named(event.r#type, &event))
    }

    /// An error after the stream began: one event in the usual error format, then the end.
    async fn fail(&mut self, error: Error) -> sse::Event {
        self.finished = true;
        self.ready.clear();
        let recorded = self.running.close(Outcome::of_status(error.code().status())).await;
        in_stream(&error, self.options.request_id, recorded).unwrap_or_else(sse::keep_alive)
    }
}
