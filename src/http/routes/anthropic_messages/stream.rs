//! A message as the events of Anthropic's API. A block ends before the next one starts.

use std::time::Duration;

use actix_web::HttpResponse;
use futures_util::{Stream, stream};
use serde::Serialize;

use super::response::{MessageBody, UsageBody, empty_message, stop_reason};
use crate::calls::chat::RunningChat;
use crate::engine::{FinishReason, TextDelta, ToolCallDelta};
use crate::error::Error;
use crate::http::error::anthropic_in_stream;
use crate::http::sse;
use crate::ids::RequestId;
use crate::service::usage::Outcome;

/// Interval of pings.
const PING: Duration = Duration::from_secs(10);

#[derive(Serialize)]
#[serde(tag = "type", rename_all = "snake_case")]
enum Event<'a> {
    MessageStart { message: MessageBody },
    ContentBlockStart { index: usize, content_block: Start<'a> },
    ContentBlockDelta { index: usize, delta: Delta<'a> },
    ContentBlockStop { index: usize },
    MessageDelta { delta: MessageEnd, usage: UsageBody },
    MessageStop,
    Ping,
}

#[derive(Serialize)]
#[serde(tag = "type", rename_all = "snake_case")]
enum Start<'a> {
    Text { text: &'a str },
    ToolUse { id: String, name: &'a str, input: serde_json::Map<String, serde_json::Value> },
}

#[derive(Serialize)]
#[serde(tag = "type", rename_all = "snake_case")]
enum Delta<'a> {
    TextDelta { text: &'a str },
    InputJsonDelta { partial_json: &'a str },
}

#[derive(Serialize)]
struct MessageEnd {
    stop_reason: &'static str,
    stop_sequence: Option<String>,
}

impl Event<'_> {
    fn name(&self) -> &'static str {
        match self {
            Self::MessageStart { .. } => "message_start",
            Self::ContentBlockStart { .. } => "content_block_start",
            Self::ContentBlockDelta { .. } => "content_block_delta",
            Self::ContentBlockStop { .. } => "content_block_stop",
            Self::MessageDelta { .. } => "message_delta",
            Self::MessageStop => "message_stop",
            Self::Ping => "ping",
        }
    }

    fn encode(&self) -> sse::Event {
        sse::named(self.name(), self)
    }
}

/// `stops`: the stop sequences of the request.
pub fn respond(running: RunningChat, stops: Vec<String>, request_id: Option<RequestId>) -> HttpResponse {
    sse::response(events(MessageStream {
        running,
        stops,
        request_id,
        open: None,
        blocks: 0,
        ending: FinishReason::Stop,
        state: State::Starting,
    }))
}

fn events(message: MessageStream) -> impl Stream<Item = sse::Event> {
    stream::unfold(message, |mut message| async move {
        let event = message.next().await?;
        Some((event, message))
    })
}

/// The block that has started and not ended.
#[derive(Clone, Copy, PartialEq, Eq)]
enum OpenBlock {
    Text,
    /// With the index of the call.
    ToolUse(u32),
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum State {
    Starting,
    Running,
    Finished,
}

struct MessageStream {
    running: RunningChat,
    stops: Vec<String>,
    request_id: Option<RequestId>,
    open: Option<OpenBlock>,
    /// Blocks that have started.
    blocks: usize,
    ending: FinishReason,
    state: State,
}

impl MessageStream {
    async fn next(&mut self) -> Option<sse::Event> {
        match self.state {
            State::Starting => {
                self.state = State::Running;
                let start = Event::MessageStart { message: empty_message(&self.running) };
                Some(sse::join(start.encode(), Event::Ping.encode()))
            }
            State::Running => Some(self.next_delta().await),
            State::Finished => None,
        }
    }

    async fn next_delta(&mut self) -> sse::Event {
        let ping = tokio::time::Instant::now() + PING;
        loop {
            match tokio::time::timeout_at(ping, self.running.next()).await {
                Err(_) => return Event::Ping.encode(),
                Ok(Some(Ok(delta))) => {
                    if let Some(event) = self.delta(&delta) {
                        return event;
                    }
                }
                Ok(Some(Err(error))) => return self.fail(error).await,
                Ok(None) => return self.end().await,
            }
        }
    }

    /// The events of a delta; `None` if it adds nothing that the client sees.
    fn delta(&mut self, delta: &TextDelta) -> Option<sse::Event> {
        self.ending = delta.end.unwrap_or(self.ending);
        let mut events = Vec::new();
        if !delta.text.is_empty() {
            if self.open != Some(OpenBlock::Text) {
                self.start(OpenBlock::Text, Start::Text { text: "" }, &mut events);
            }
            self.push_delta(Delta::TextDelta { text: &delta.text }, &mut events);
        }
        for ToolCallDelta { index, name, arguments } in &delta.calls {
            if let Some(name) = name {
                let id = self.running.call_ids.of(0, *index);
                let start = Start::ToolUse { id, name, input: serde_json::Map::new() };
                self.start(OpenBlock::ToolUse(*index), start, &mut events);
            }
            if !arguments.is_empty() {
                self.push_delta(Delta::InputJsonDelta { partial_json: arguments }, &mut events);
            }
        }
        (!events.is_empty()).then(|| events.concat().into())
    }

    /// Ends the open block and starts another.
    fn start(&mut self, block: OpenBlock, content_block: Start<'_>, events: &mut Vec<sse::Event>) {
        self.stop_block(events);
        events.push(Event::ContentBlockStart { index: self.blocks, content_block }.encode());
        (self.open, self.blocks) = (Some(block), self.blocks + 1);
    }

    fn push_delta(&self, delta: Delta<'_>, events: &mut Vec<sse::Event>) {
        events.push(Event::ContentBlockDelta { index: self.blocks.saturating_sub(1), delta }.encode());
    }

    fn stop_block(&mut self, events: &mut Vec<sse::Event>) {
        if self.open.take().is_some() {
            events.push(Event::ContentBlockStop { index: self.blocks.saturating_sub(1) }.encode());
        }
    }

    /// An error after the stream began.
    async fn fail(&mut self, error: Error) -> sse::Event {
        self.state = State::Finished;
        let recorded = self.running.close(Outcome::of_status(error.code().status())).await;
        anthropic_in_stream(&error, self.request_id, recorded)
    }

    /// The last events. Usage is durable before they are sent.
    async fn end(&mut self) -> sse::Event {
        if let Err(error) = self.running.close(Outcome::Succeeded).await {
            return self.fail(error).await;
        }
        self.state = State::Finished;
        let mut events = Vec::new();
        self.stop_block(&mut events);
        let (stop_reason, stop_sequence) = stop_reason(&self.running, self.ending, &self.stops);
        let delta = MessageEnd { stop_reason, stop_sequence };
        events.push(Event::MessageDelta { delta, usage: self.running.usage().into() }.encode());
        events.push(Event::MessageStop.encode());
        events.concat().into()
    }
}
