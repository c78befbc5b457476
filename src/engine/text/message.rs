//! A message of a conversation.

use serde::{Deserialize, Serialize};

use super::tools::ToolCall;

/// One message of a conversation, as the template sees it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Message {
    pub role: String,
    /// Empty where an assistant only called.
    pub content: String,
    pub name: Option<String>,
    /// What an assistant called.
    pub tool_calls: Vec<ToolCall>,
    /// The call whose result this is.
    pub tool_call_id: Option<String>,
}

impl Message {
    /// A message of nothing but text.
    pub fn new(role: impl Into<String>, content: impl Into<String>) -> Self {
        Self { role: role.into(), content: content.into(), ..Self::default() }
    }
}
