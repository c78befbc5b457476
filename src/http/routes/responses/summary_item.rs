//! Items of the type `compaction`: the summary of a conversation, which takes the place of its messages.
//!
//! The summary is plain text in base64. OpenAI's is encrypted, because its compaction keeps what the model must not
//! show. Here a client may read what it pays for, and the summary works with every model of this server.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};

use crate::error::Result;
use crate::ids::{CompactionId, ResponseId};
use crate::service::validation::json_fields::invalid_field;

/// What stands before the summary in a prompt.
const HEADING: &str = "Summary of the conversation so far:";

/// The item of the compaction `id`.
pub fn item(id: ResponseId, summary: &str) -> Value {
    let id = CompactionId::from_bytes(id.to_bytes()).to_string();
    json!({ "id": id, "type": "compaction", "encrypted_content": STANDARD.encode(summary) })
}

/// The text that an item has in a prompt.
pub fn text_of(field: &str, item: &Value) -> Result<String> {
    let content = item.get("encrypted_content").and_then(Value::as_str);
    let bytes = content.and_then(|content| STANDARD.decode(content).ok());
    match bytes.and_then(|bytes| String::from_utf8(bytes).ok()) {
        Some(summary) => Ok(format!("{HEADING}\n{summary}")),
        None => invalid_field(
            &format!("{field}.encrypted_content"),
            "was not created by this server. Send what POST /responses/compact has returned",
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_summary_comes_back_as_a_text() {
        let sent = item(ResponseId::from_bytes([1; 16]), "It — rains.");
        assert_eq!(text_of("input[2]", &sent).unwrap(), "Summary of the conversation so far:\nIt — rains.");
        for bad in [json!({}), json!({ "encrypted_content": "gAAAAA==" }), json!({ "encrypted_content": "?" })] {
            assert_eq!(text_of("input[2]", &bad).unwrap_err().param_name(), Some("input[2].encrypted_content"));
        }
    }
}
