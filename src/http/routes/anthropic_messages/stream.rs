//! A message as the events of Anthropic's API. A block ends before the next one starts.

use actix_web::HttpResponse;
use serde::Serialize;

use super::response::{MessageBody, UsageBody, empty_message, signature, stop_reason};
use crate::calls::chat::RunningChat;
use crate::calls::generation::RunningText;
use crate::engine::{FinishReason, TextDelta, ToolCallDelta};
use crate::error::{Error, Result};
use crate::http::error::anthropic_in_stream;
use crate::http::routes::generation_stream::{self, EventSource};
use crate::http::sse;
use crate::ids::RequestId;

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
    Thinking { thinking: &'a str, signature: &'a str },
    Text { text: &'a str },
    ToolUse { id: String, name: &'a str, input: serde_json::Map<String, serde_json::Value> },
}

#[derive(Serialize)]
#[serde(tag = "type")]
enum Delta<'a> {
    #[serde(rename = "thinking_delta")]
    Thinking { thinking: &'a str },
    #[serde(rename = "signature_delta")]
    Signature { signature: &'a str },
    #[serde(rename = "text_delta")]
    Text { text: &'a str },
    #[serde(rename = "input_json_delta")]
    InputJson { partial_json: &'a str },
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

pub fn respond(running: RunningChat, request_id: Option<RequestId>) -> HttpResponse {
    let source = MessageEvents { running, open: None, blocks: 0, ending: FinishReason::Stop };
    generation_stream::respond(source, request_id)
}

/// The block that has started and not ended.
#[derive(Clone, Copy, PartialEq, Eq)]
enum OpenBlock {
    Thinking,
    Text,
    /// With the index of the call.
    ToolUse(u32),
}

struct MessageEvents {
    running: RunningChat,
    open: Option<OpenBlock>,
    /// Blocks that have started.
    blocks: usize,
    ending: FinishReason,
}

impl EventSource for MessageEvents {
    type Call = RunningChat;

    fn call(&mut self) -> &mut RunningChat {
        &mut self.running
    }

    fn first_event(&self) -> Option<sse::Event> {
        let start = Event::MessageStart { message: empty_message(&self.running) };
        Some(sse::join(start.encode(), Event::Ping.encode()))
    }

    fn keep_alive(&self) -> sse::Event {
        Event::Ping.encode()
    }

    fn event(&mut self, delta: &TextDelta) -> Option<sse::Event> {
        self.ending = delta.end.unwrap_or(self.ending);
        let mut events = Vec::new();
        if !delta.reasoning.is_empty() {
            if self.open != Some(OpenBlock::Thinking) {
                self.start(OpenBlock::Thinking, Start::Thinking { thinking: "", signature: "" }, &mut events);
            }
            self.push_delta(Delta::Thinking { thinking: &delta.reasoning }, &mut events);
        }
        if !delta.text.is_empty() {
            if self.open != Some(OpenBlock::Text) {
                self.start(OpenBlock::Text, Start::Text { text: "" }, &mut events);
            }
            self.push_delta(Delta::Text { text: &delta.text }, &mut events);
        }
        for ToolCallDelta { index, name, arguments } in &delta.calls {
            if let Some(name) = name {
                let id = self.running.call_ids.of(0, *index);
                let start = Start::ToolUse { id, name, input: serde_json::Map::new() };
                self.start(OpenBlock::ToolUse(*index), start, &mut events);
            }
            if !arguments.is_empty() {
                self.push_delta(Delta::InputJson { partial_json: arguments }, &mut events);
            }
        }
        (!events.is_empty()).then(|| events.concat().into())
    }

    fn last_event(&mut self) -> sse::Event {
        let mut events = Vec::new();
        self.stop_block(&mut events);
        let (stop_reason, stop_sequence) = stop_reason(&self.running, self.ending);
        let delta = MessageEnd { stop_reason, stop_sequence };
        events.push(Event::MessageDelta { delta, usage: self.running.usage().into() }.encode());
        events.push(Event::MessageStop.encode());
        events.concat().into()
    }

    fn error_event(&self, error: &Error, request_id: Option<RequestId>, recorded: Result<()>) -> sse::Event {
        anthropic_in_stream(error, request_id, recorded)
    }
}

impl MessageEvents {
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
        if self.open == Some(OpenBlock::Thinking) {
            self.push_delta(Delta::Signature { signature: &signature(&self.running) }, events);
        }
        if self.open.take().is_some() {
            events.push(Event::ContentBlockStop { index: self.blocks.saturating_sub(1) }.encode());
        }
    }
}
