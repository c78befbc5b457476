//! Stores a chat's messages and its completion in a conversation after the generation has succeeded.
//!
//! The last event is held back until the turn is durable, so a client that has seen the end can rely on it. If the turn
//! cannot be stored, the error replaces that event. A call that is dropped earlier stores nothing.
//!
//! Some clients close the connection at the `finish_reason`, hence the wait before it. It costs the latency of one
//! commit on the last event.

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use serde_json::Value;

use crate::calls::output_format::output_spec::ToolCallIds;
use crate::calls::turn::output::{GeneratedCall, OutputItems};
use crate::content::{Message, ToolCall};
use crate::error::Result;
use crate::service::access::Access;
use crate::service::conversations::{Conversation, Conversations};

/// Stores one completion. [`TurnRecorder::disabled`] stores none.
pub(in crate::calls) struct TurnRecorder {
    turn: Option<PendingTurn>,
    /// Kept here because the caller may drop its future to send a keep-alive and call again.
    write: Option<BoxFuture<'static, Result<Conversation>>>,
    stored: Option<Conversation>,
}

struct PendingTurn {
    conversations: Conversations,
    access: Access,
    /// The conversation as it was when the prompt was built.
    conversation: Conversation,
    messages: Vec<String>,
    ids: ToolCallIds,
}

impl TurnRecorder {
    pub fn disabled() -> Self {
        Self { turn: None, write: None, stored: None }
    }

    pub fn new(
        conversations: Conversations,
        access: Access,
        conversation: Conversation,
        messages: Vec<String>,
        ids: ToolCallIds,
    ) -> Self {
        Self { turn: Some(PendingTurn { conversations, access, conversation, messages, ids }), ..Self::disabled() }
    }

    /// The conversation including the turn.
    pub fn stored(&self) -> Option<&Conversation> {
        self.stored.as_ref()
    }

    /// Begins to store the turn with its whole output. False if there is no conversation to store it in.
    pub fn begin(&mut self, output: &OutputItems) -> bool {
        self.write = self.turn.take().map(|turn| turn.write(output));
        self.write.is_some()
    }

    /// Waits for the write. Cancel-safe.
    pub async fn finish(&mut self) -> Result<()> {
        let Some(write) = &mut self.write else { return Ok(()) };
        let written = write.as_mut().await;
        self.write = None;
        self.stored = Some(written?);
        Ok(())
    }
}

impl PendingTurn {
    fn write(mut self, output: &OutputItems) -> BoxFuture<'static, Result<Conversation>> {
        let answer = Value::Object(self.answer(output).to_json());
        self.messages.push(answer.to_string());
        async move { self.conversations.add_turn(&self.access, self.conversation, self.messages).await }.boxed()
    }

    /// The assistant's message. A conversation takes one completion, so its tool calls are those of choice 0.
    fn answer(&self, output: &OutputItems) -> Message {
        let call = |GeneratedCall { index, name, arguments }: GeneratedCall<'_>| ToolCall {
            id: self.ids.of(0, index),
            name: name.to_owned(),
            arguments: arguments.to_owned(),
        };
        let tool_calls = output.calls().map(call).collect();
        Message { reasoning: output.reasoning(), tool_calls, ..Message::new("assistant", output.text()) }
    }
}
