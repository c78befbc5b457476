//! The prompt of a chat with an upstream model. Its tokens are estimated, because only the target has the tokenizer.

use crate::calls::conversations::truncation::{PromptParts, truncated_messages};
use crate::calls::text::dialect::Dialect;
use crate::calls::upstream::token_estimate;
use crate::content::Message;
use crate::error::{Code, Error, Result};
use crate::upstream::UpstreamModel;

/// Tokens reserved for a completion whose length the request does not set: a quarter of the context, at most this many.
const MAX_RESERVE: u32 = 1024;

/// The messages of a prompt.
pub(in crate::calls) struct UpstreamPromptMessages {
    pub messages: Vec<Message>,
    /// The number of messages that were left out; `None` if truncation is off.
    pub truncated: Option<usize>,
    /// Estimated, tools included.
    pub tokens: u32,
}

impl UpstreamPromptMessages {
    /// Leaves out the oldest turns if `may_drop` says so and `upstream.toml` tells the context. `requested`: max tokens of
    /// the completion.
    pub fn new(
        model: &UpstreamModel,
        parts: &PromptParts,
        may_drop: bool,
        tools_bytes: usize,
        requested: Option<u32>,
    ) -> Self {
        let (messages, truncated) = match model.context {
            Some(window) if may_drop => {
                let reserve = requested.unwrap_or_else(|| (window / 4).clamp(1, MAX_RESERVE));
                let room = window.saturating_sub(reserve);
                let fits = |messages: &[&Message]| careful_estimate(messages, tools_bytes) <= room;
                let (messages, dropped) = truncated_messages(parts, fits);
                (messages, Some(dropped))
            }
            _ => (parts.all_messages(), may_drop.then_some(0)),
        };
        let bytes: usize = messages.iter().map(message_bytes).sum();
        let tokens = token_estimate::prompt_tokens(bytes + tools_bytes, messages.len());
        Self { messages, truncated, tokens }
    }
}

fn message_bytes(message: &Message) -> usize {
    let calls = message.tool_calls.iter().map(|call| call.name.len() + call.arguments.len());
    message.bytes() + calls.sum::<usize>()
}

/// More tokens than most prompts of this size have, so that what seems to fit does.
fn careful_estimate(messages: &[&Message], tools_bytes: usize) -> u32 {
    let bytes: usize = messages.iter().map(|message| message_bytes(message)).sum();
    token_estimate::prompt_tokens((bytes + tools_bytes).saturating_mul(4) / 3, messages.len())
}

/// The limit of the completion that the target gets. `requested`: with the name of its field.
pub(in crate::calls) fn completion_limit(
    model: &UpstreamModel,
    requested: Option<(u32, &'static str)>,
    prompt_tokens: u32,
    dialect: &Dialect,
) -> Result<Option<u32>> {
    let (Some(window), Some((count, field))) = (model.context, requested) else {
        return Ok(requested.map(|(count, _)| count));
    };
    if dialect.limits_max_tokens {
        return Ok(Some(count.min(window.saturating_sub(prompt_tokens).max(1))));
    }
    if count < window {
        return Ok(Some(count));
    }
    let text = format!(
        "This model's maximum context length is {window} tokens. However, '{field}' is {count}. Lower {field} (model: '{}').",
        model.id
    );
    Err(Error::new(Code::ContextLengthExceeded, text).param(field))
}

/// The default limit of a completion, as far as the context has room for it. `prompt_tokens` are estimated.
pub(in crate::calls) fn default_limit(model: &UpstreamModel, default: Option<u32>, prompt_tokens: u32) -> Option<u32> {
    let left = model.context.map_or(u32::MAX, |window| window.saturating_sub(prompt_tokens).max(1));
    default.map(|default| default.min(left))
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::calls::upstream::test_model;
    use crate::engine::PromptOptions;

    fn parts(turns: usize) -> PromptParts {
        let turn = |_| ["user", "assistant"].map(|role| Message::new(role, "x".repeat(30)));
        let history = (0..turns).flat_map(turn).collect();
        let own = vec![Message::new("user", "the question")];
        let (system, tools, options) = (Some(Message::new("system", "s")), Arc::default(), PromptOptions::default());
        PromptParts { system, history, own, tools, options }
    }

    #[test]
    fn the_oldest_turns_are_left_out_if_the_context_is_known() {
        let fitted = |model: &UpstreamModel, may_drop| {
            let prompt = UpstreamPromptMessages::new(model, &parts(10), may_drop, 0, Some(40));
            (prompt.messages.len(), prompt.truncated)
        };
        assert_eq!(fitted(&test_model(""), true), (22, Some(0)));
        assert_eq!(fitted(&test_model("context = 1000"), true), (22, Some(0)));
        assert_eq!(fitted(&test_model("context = 100"), false), (22, None));
        // 60 tokens are left: 5 for the system message, 8 for the question, and 28 for each turn.
        assert_eq!(fitted(&test_model("context = 100"), true), (4, Some(18)));
        assert_eq!(fitted(&test_model("context = 41"), true), (2, Some(20)));
    }

    #[test]
    fn completions_end_where_the_context_does_in_apis_that_say_so() {
        const LIMITS: Dialect = Dialect { limits_max_tokens: true, ..Dialect::CHAT };
        let limit = |dialect, count, more: &str| {
            completion_limit(&test_model(more), Some((count, "max_tokens")), 40, dialect).map_err(|error| error.code())
        };
        assert_eq!(limit(&LIMITS, 500, "context = 100"), Ok(Some(60)));
        assert_eq!(limit(&LIMITS, 500, ""), Ok(Some(500)));
        assert_eq!(limit(&Dialect::CHAT, 90, "context = 100"), Ok(Some(90)));
        assert_eq!(limit(&Dialect::CHAT, 100, "context = 100"), Err(Code::ContextLengthExceeded));
        assert_eq!(completion_limit(&test_model(""), None, 40, &Dialect::CHAT).unwrap(), None);
        let default = |count, more: &str| default_limit(&test_model(more), count, 40);
        assert_eq!(default(Some(500), "context = 100"), Some(60), "a default is no reason for an error");
        assert_eq!((default(Some(50), "context = 100"), default(Some(500), "")), (Some(50), Some(500)));
        assert_eq!(default(None, "context = 100"), None);
    }
}
