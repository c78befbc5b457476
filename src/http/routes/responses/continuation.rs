//! What a response continues: a stored conversation, or a chain of stored responses.

use serde_json::Value;

use super::input::Transcript;
use crate::calls::conversations::context::ConversationContextRequest;
use crate::calls::prompt::message_joining::last_turn;
use crate::content::Message;
use crate::error::{Error, Result};
use crate::http::routes::conversation_items::from_items::{self, StoredItems};
use crate::http::routes::truncation::Truncation;
use crate::ids::ConversationId;
use crate::service::responses::{Chain, StoredResponse};
use crate::service::writes::precondition::IfMatch;

/// The messages of a request's input.
pub struct InputMessages {
    pub messages: Vec<Message>,
    /// What comes before them.
    pub context: ConversationContextRequest,
    /// The items that are left out.
    pub ignored: Vec<String>,
}

/// The messages after a stored conversation, which are added to it. `if_match`: its expected version.
pub fn of_conversation(
    (id, if_match): (ConversationId, Option<IfMatch>),
    instructions: Option<&str>,
    truncation: Option<Truncation>,
    items: &[Value],
) -> Result<InputMessages> {
    let mut transcript = Transcript::of_conversation();
    transcript.append("input", items)?;
    let StoredItems { messages: sent, ignored } = from_items::messages("input", items)?;
    let context = ConversationContextRequest {
        conversation: Some(id),
        instructions: instructions.map(str::to_owned),
        truncate: truncation.map(Truncation::is_auto),
        if_match,
        sent,
        ..ConversationContextRequest::default()
    };
    Ok(InputMessages { messages: transcript.messages, context, ignored })
}

/// The messages of a chain of responses, and those after it.
pub fn of_chain(
    chain: &Chain,
    instructions: Option<&str>,
    truncation: Option<Truncation>,
    items: &[Value],
) -> Result<InputMessages> {
    let mut transcript = Transcript::new(instructions);
    for response in &chain.responses {
        transcript.append("previous_response_id", &items_of(response)?)?;
    }
    transcript.ignored.clear();
    transcript.append("input", items)?;
    let (context, messages) = context(truncation, transcript.messages);
    Ok(InputMessages { messages, context, ignored: transcript.ignored })
}

/// The error for a header that applies to a conversation, without one.
pub fn unused_if_match() -> Error {
    let text = "The header 'If-Match' applies to a conversation, but the request names none. Send 'conversation', or leave the header out.";
    Error::invalid("If-Match", text)
}

/// The context of the call and its own messages. If the oldest turns may be left out, those before the last one are
/// passed as the history.
fn context(truncation: Option<Truncation>, mut messages: Vec<Message>) -> (ConversationContextRequest, Vec<Message>) {
    if !truncation.is_some_and(Truncation::is_auto) {
        return (ConversationContextRequest::default(), messages);
    }
    let own = messages.split_off(last_turn(&messages));
    (ConversationContextRequest { truncate: Some(true), history: messages, ..Default::default() }, own)
}

/// The items of a stored response: its input, then its output.
pub fn items_of(stored: &StoredResponse) -> Result<Vec<Value>> {
    let parse = |text: &String| serde_json::from_str::<Value>(text).map_err(Error::internal);
    let mut items = stored.input.iter().map(parse).collect::<Result<Vec<_>>>()?;
    items.extend(output_of(stored)?);
    Ok(items)
}

/// The output of a stored response.
pub fn output_of(stored: &StoredResponse) -> Result<Vec<Value>> {
    let mut response: Value = serde_json::from_str(&stored.response).map_err(Error::internal)?;
    match response.get_mut("output").map(Value::take) {
        Some(Value::Array(items)) => Ok(items),
        _ => Err(Error::internal("a stored response has no output")),
    }
}
