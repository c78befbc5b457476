//! A message in the format of Anthropic's API, whole or as events. A block ends before the next one starts.

use actix_web::HttpResponse;
use serde::Serialize;

use super::api_format::error_body;
use super::response::{MessageBody, UsageBody, empty_message, message, signature, stop_reason};
use crate::calls::text::chat::RunningChat;
use crate::calls::text::generation::RunningText;
use crate::calls::turn::Turn;
use crate::calls::turn::output::{OutputItem, Step, TurnEvent};
use crate::error::{Error, Result};
use crate::http::authentication::Caller;
use crate::http::error::log_stream_failure;
use crate::http::response::ApiResult;
use crate::http::routes::turn_response::TurnEncoder;
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

/// Each item of the output is a block.
pub struct MessageEncoder {
    turn: Turn,
    /// Blocks that have started.
    blocks: usize,
}

impl TurnEncoder for MessageEncoder {
    type Call = RunningChat;

    fn turn(&mut self) -> &mut Turn<RunningChat> {
        &mut self.turn
    }

    fn whole(self, _caller: &Caller) -> ApiResult {
        Ok(HttpResponse::Ok().json(message(&self.turn)))
    }

    fn first_event(&self) -> Option<sse::Event> {
        let start = Event::MessageStart { message: empty_message(&self.turn.call) };
        Some(sse::join(start.encode(), Event::Ping.encode()))
    }

    fn keep_alive(&self) -> sse::Event {
        Event::Ping.encode()
    }

    fn event(&mut self, event: &TurnEvent) -> Option<sse::Event> {
        let mut events = Vec::new();
        for step in &event.steps {
            match step {
                Step::Start(item) => self.start_block(item, &mut events),
                Step::End => self.stop_block(&mut events),
                Step::Reasoning(thinking) => self.push_delta(Delta::Thinking { thinking }, &mut events),
                Step::Text { text, .. } => self.push_delta(Delta::Text { text }, &mut events),
                Step::Arguments { text, .. } if text.is_empty() => {}
                Step::Arguments { text: partial_json, .. } | Step::Input(partial_json) => {
                    self.push_delta(Delta::InputJson { partial_json }, &mut events);
                }
            }
        }
        (!events.is_empty()).then(|| events.concat().into())
    }

    fn last_event(&mut self) -> sse::Event {
        let mut events = Vec::new();
        if self.blocks > 0 {
            self.stop_block(&mut events);
        }
        let (stop_reason, stop_sequence) = stop_reason(&self.turn.call, self.turn.output());
        let delta = MessageEnd { stop_reason, stop_sequence };
        events.push(Event::MessageDelta { delta, usage: self.turn.call.usage().into() }.encode());
        events.push(Event::MessageStop.encode());
        events.concat().into()
    }

    fn error_event(&mut self, error: &Error, request_id: Option<RequestId>, recorded: Result<()>) -> sse::Event {
        log_stream_failure(error, request_id, recorded);
        sse::named("error", &error_body(error, request_id))
    }
}

impl MessageEncoder {
    pub fn new(turn: Turn) -> Self {
        Self { turn, blocks: 0 }
    }

    fn start_block(&mut self, item: &OutputItem, events: &mut Vec<sse::Event>) {
        let content_block = match item {
            OutputItem::Reasoning(_) => Start::Thinking { thinking: "", signature: "" },
            OutputItem::Message { .. } => Start::Text { text: "" },
            OutputItem::Call { call, name, .. } | OutputItem::CustomCall { call, name, .. } => {
                Start::ToolUse { id: self.turn.call.call_ids.of(0, *call), name, input: serde_json::Map::new() }
            }
        };
        events.push(Event::ContentBlockStart { index: self.blocks, content_block }.encode());
        self.blocks += 1;
    }

    fn push_delta(&self, delta: Delta<'_>, events: &mut Vec<sse::Event>) {
        events.push(Event::ContentBlockDelta { index: self.blocks.saturating_sub(1), delta }.encode());
    }

    fn stop_block(&self, events: &mut Vec<sse::Event>) {
        let index = self.blocks.saturating_sub(1);
        if let Some(OutputItem::Reasoning(_)) = self.turn.output().items().get(index) {
            self.push_delta(Delta::Signature { signature: &signature(&self.turn.call) }, events);
        }
        events.push(Event::ContentBlockStop { index }.encode());
    }
}
