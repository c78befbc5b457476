//! The field `truncation`, and the header with its effect.

use actix_web::http::header::HeaderName;
use serde::{Deserialize, Serialize};

/// The number of messages that were left out because the conversation is too long.
pub const TRUNCATED_MESSAGES: HeaderName = HeaderName::from_static("x-outpost-truncated-messages");

/// What happens to a conversation that is too long for the model.
#[derive(Clone, Copy, Debug, Deserialize, Serialize, PartialEq, Eq, utoipa::ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum Truncation {
    /// The oldest turns are dropped.
    Auto,
    /// The request is rejected.
    Disabled,
}

impl Truncation {
    pub fn is_auto(self) -> bool {
        self == Self::Auto
    }
}
