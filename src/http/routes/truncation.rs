//! The field `truncation`.

use serde::{Deserialize, Serialize};

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
