//! Request and response fields of chats with an agent or a stored conversation.

use serde::Serialize;

use crate::calls::conversations::context::ConversationContextRequest;
use crate::calls::text::chat::RunningChat;
use crate::error::{Error, Result};
use crate::http::resource_ids::parse_field_id;
use crate::http::routes::truncation::Truncation;
use crate::service::conversations::Conversation;
use crate::service::writes::precondition::IfMatch;

/// What a request names.
pub struct ConversationFields {
    pub conversation: Option<String>,
    pub agent: Option<String>,
    pub truncation: Option<Truncation>,
}

/// The conversation that the turn was stored in.
#[derive(Serialize, utoipa::ToSchema)]
pub struct ConversationRef {
    id: String,
    /// Including this turn.
    version: u64,
}

impl ConversationFields {
    /// Validates the combination of fields.
    pub fn check(
        self,
        sent: Vec<String>,
        choices: u32,
        if_match: Option<IfMatch>,
    ) -> Result<ConversationContextRequest> {
        let conversation = self.conversation.map(|text| parse_field_id(&text, "conversation_id")).transpose()?;
        let agent = self.agent.map(|text| parse_field_id(&text, "agent_id")).transpose()?;
        let truncate = self.truncation.map(Truncation::is_auto);
        match conversation {
            Some(_) if choices > 1 => {
                let text = format!("n is {choices}, but a conversation accepts one choice. Leave n out.");
                return Err(Error::invalid("n", text));
            }
            None if truncate == Some(true) => {
                let text = "truncation: \"auto\" needs conversation_id: only a stored conversation is shortened, never the request's own messages.";
                return Err(Error::invalid("truncation", text));
            }
            None if if_match.is_some() => {
                let text = "The header 'If-Match' applies to a conversation, but the request names none. Send conversation_id, or leave the header out.";
                return Err(Error::invalid("If-Match", text));
            }
            _ => {}
        }
        let sent = if conversation.is_some() { sent } else { Vec::new() };
        Ok(ConversationContextRequest { conversation, agent, truncate, if_match, sent, ..Default::default() })
    }
}

/// The conversation that the turn was stored in.
pub fn conversation(running: &RunningChat) -> Option<ConversationRef> {
    let reference = |found: &Conversation| ConversationRef { id: found.id.to_string(), version: found.version };
    running.conversation().map(reference)
}
