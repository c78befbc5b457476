//! The field `conversation`: the stored conversation that a response continues and is added to.

use serde::{Deserialize, Serialize};

use crate::error::{Error, Result};
use crate::http::resource_ids::parse_field_id;
use crate::ids::ConversationId;

/// The field of a request: an ID, or an object with it.
#[derive(Clone, Deserialize, utoipa::ToSchema)]
#[serde(untagged, expecting = "must be the ID of a conversation, or an object with its id")]
pub enum RequestedConversation {
    Id(String),
    Object { id: String },
}

impl RequestedConversation {
    pub fn id(&self) -> Result<ConversationId> {
        let (Self::Id(text) | Self::Object { id: text }) = self;
        parse_field_id(text, "conversation")
    }
}

/// The field of a response.
#[derive(Clone, Serialize, utoipa::ToSchema)]
#[schema(as = ResponseConversation)]
pub struct ConversationField {
    pub id: String,
}

/// The error of a chat with the names of a response's fields: `messages` are its input.
pub fn with_field_names(error: Error) -> Error {
    match error.param_name() {
        Some("messages") => error.param("input"),
        Some("conversation_id") => error.param("conversation"),
        _ => error,
    }
}
