//! Parts of response bodies that chat and text completions share.

use serde::Serialize;

use crate::calls::text::generation::Usage;
use crate::engine::FinishReason;

#[derive(Serialize, utoipa::ToSchema)]
pub struct UsageBody {
    prompt_tokens: u32,
    completion_tokens: u32,
    total_tokens: u32,
    prompt_tokens_details: PromptDetails,
    completion_tokens_details: CompletionDetails,
}

#[derive(Serialize, utoipa::ToSchema)]
struct PromptDetails {
    cached_tokens: u32,
}

#[derive(Serialize, utoipa::ToSchema)]
struct CompletionDetails {
    /// Tokens before the answer, with the markers around them.
    reasoning_tokens: u32,
}

impl From<Usage> for UsageBody {
    fn from(usage: Usage) -> Self {
        Self {
            prompt_tokens: usage.prompt_tokens,
            completion_tokens: usage.completion_tokens,
            total_tokens: usage.prompt_tokens.saturating_add(usage.completion_tokens),
            prompt_tokens_details: PromptDetails { cached_tokens: usage.cached_tokens },
            completion_tokens_details: CompletionDetails { reasoning_tokens: usage.reasoning_tokens },
        }
    }
}

pub fn finish_reason(ending: FinishReason) -> &'static str {
    match ending {
        FinishReason::Stop | FinishReason::StopString(_) => "stop",
        FinishReason::ToolCalls => "tool_calls",
        FinishReason::Length => "length",
    }
}

/// A token's text. Tokens that are parts of characters stay distinct.
pub fn token_text(bytes: &[u8]) -> String {
    match std::str::from_utf8(bytes) {
        Ok(text) => text.to_owned(),
        Err(_) => bytes.iter().fold("bytes:".to_owned(), |text, byte| format!("{text}\\x{byte:02x}")),
    }
}
