//! Stores a chat's messages and its completion in a conversation after the generation has succeeded.
//!
//! The last delta is held back until the turn is durable, so a client that has seen the end can rely on it. If the turn
//! cannot be stored, the error replaces that delta. A call that is dropped earlier stores nothing.
//!
//! Some clients close the connection at the `finish_reason`, hence the wait before it. It costs the latency of one
//! commit on the last delta.

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use serde_json::Value;

use super::output_spec::{GeneratedCall, ToolCallIds, append_call_deltas};
use crate::content::{Message, ToolCall};
use crate::engine::TextDelta;
use crate::error::Result;
use crate::service::access::Access;
use crate::service::conversations::{Conversation, Conversations};

/// Observes one completion. [`TurnRecorder::disabled`] passes every delta through.
pub(super) struct TurnRecorder {
    turn: Option<PendingTurn>,
    pending_write: Option<PendingWrite>,
    stored: Option<Conversation>,
}

struct PendingTurn {
    conversations: Conversations,
    access: Access,
    /// The conversation as it was when the prompt was built.
    conversation: Conversation,
    messages: Vec<String>,
    reasoning: String,
    answer: String,
    calls: Vec<GeneratedCall>,
    ids: ToolCallIds,
}

/// The last delta and the write that it waits for. Stored here because the caller may drop its future to send a
/// keep-alive and call again.
struct PendingWrite {
    delta: TextDelta,
    write: BoxFuture<'static, Result<Conversation>>,
}

impl TurnRecorder {
    pub fn disabled() -> Self {
        Self { turn: None, pending_write: None, stored: None }
    }

    pub fn new(
        conversations: Conversations,
        access: Access,
        conversation: Conversation,
        messages: Vec<String>,
        ids: ToolCallIds,
    ) -> Self {
        let turn = PendingTurn {
            conversations,
            access,
            conversation,
            messages,
            reasoning: String::new(),
            answer: String::new(),
            calls: Vec::new(),
            ids,
        };
        Self { turn: Some(turn), pending_write: None, stored: None }
    }

    /// The conversation including the turn.
    pub fn stored(&self) -> Option<&Conversation> {
        self.stored.as_ref()
    }

    /// True if there is no conversation to store the turn in.
    pub fn is_disabled(&self) -> bool {
        self.turn.is_none()
    }

    /// True while the last delta is held back.
    pub fn is_writing(&self) -> bool {
        self.pending_write.is_some()
    }

    /// Observes a delta. Returns `None` for the last one; [`TurnRecorder::close`] returns that one.
    pub fn observe(&mut self, delta: TextDelta) -> Option<TextDelta> {
        let Some(turn) = &mut self.turn else { return Some(delta) };
        turn.reasoning.push_str(&delta.reasoning);
        turn.answer.push_str(&delta.text);
        append_call_deltas(&mut turn.calls, &delta.calls);
        if delta.end.is_none() {
            return Some(delta);
        }
        self.pending_write = self.turn.take().map(|turn| PendingWrite { delta, write: turn.write().boxed() });
        None
    }

    /// Waits for the write. Cancel-safe.
    pub async fn finish(&mut self) -> Option<Result<TextDelta>> {
        let written = self.pending_write.as_mut()?.write.as_mut().await;
        let delta = self.pending_write.take()?.delta;
        Some(written.map(|conversation| {
            self.stored = Some(conversation);
            delta
        }))
    }
}

impl PendingTurn {
    async fn write(mut self) -> Result<Conversation> {
        let answer = Value::Object(self.answer().to_json());
        self.messages.push(answer.to_string());
        self.conversations.add_turn(&self.access, self.conversation, self.messages).await
    }

    /// The assistant's message. A conversation takes one completion, so its tool calls are those of choice 0.
    fn answer(&mut self) -> Message {
        let calls = (0..).zip(std::mem::take(&mut self.calls));
        let call = |(index, GeneratedCall { name, arguments })| ToolCall { id: self.ids.of(0, index), name, arguments };
        let tool_calls = calls.map(call).collect();
        let (reasoning, text) = (std::mem::take(&mut self.reasoning), std::mem::take(&mut self.answer));
        Message { reasoning, tool_calls, ..Message::new("assistant", text) }
    }
}
