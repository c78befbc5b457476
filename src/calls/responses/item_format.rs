//! How the items of a response are encoded. It is stored with the steps of a response, so that they can be streamed again.

use serde::{Deserialize, Serialize};

use crate::calls::output_format::output_spec::ToolCallIds;
use crate::ids::ResponseId;

/// What the encoding of a response's items depends on. Their ids follow the response's own id, so the response of an item can
/// be found.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct ItemFormat {
    pub response: ResponseId,
    pub calls: ToolCallIds,
    pub reasoning: ReasoningFormat,
}

/// How reasoning is returned.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReasoningFormat {
    /// Whether the text is the item's summary, and not its content.
    pub is_summary: bool,
    /// Whether the item also has the text as `encrypted_content`.
    pub has_encrypted: bool,
}

/// The ids of input items begin at this distance from the response's id.
const INPUT_IDS: u128 = 1 << 32;

impl ItemFormat {
    /// The bytes of an output item's id.
    pub fn output_id(self, index: usize) -> [u8; 16] {
        self.response.to_u128().wrapping_add(index as u128).to_be_bytes()
    }

    /// The bytes of an input item's id.
    pub fn input_id(response: ResponseId, index: usize) -> [u8; 16] {
        response.to_u128().wrapping_add(INPUT_IDS + index as u128).to_be_bytes()
    }
}
