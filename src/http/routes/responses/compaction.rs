//! Compaction: the model summarizes a conversation that has become long, and the summary takes the place of its messages.

use actix_web::http::header::HeaderValue;
use actix_web::{HttpResponse, post, web};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

use super::continuation::{InputMessages, items_of, of_chain};
use super::conversation_field::with_field_names;
use super::input::{self, kind};
use super::input_schema::InputSchema;
use super::request::parse_previous;
use super::response::UsageBody;
use super::validation::chain;
use super::{input_items, summary_item};
use crate::calls::responses::summary::{LongConversation, Summary, TASK, summarize};
use crate::calls::text::generation::RunningText;
use crate::engine::PromptOptions;
use crate::error::{Error, Result};
use crate::http::extractors::ApiJson;
use crate::http::header_list::with_lists;
use crate::http::response::ApiResult;
use crate::http::routes::prompt_fields::thinking;
use crate::http::routes::truncation::{TRUNCATED_MESSAGES, Truncation};
use crate::http::unknown_fields::unknown_names;
use crate::http::{Api, authentication::Caller};
use crate::ids::ResponseId;
use crate::service::responses::Chain;

/// Max bytes of JSON of the user's messages that are kept. The latest are kept.
const MAX_KEPT_BYTES: usize = 16 << 10;

#[derive(Deserialize, utoipa::ToSchema)]
pub struct CompactRequest {
    /// Id of an installed model.
    model: String,
    /// The conversation: a text, or items. It may be left out with `previous_response_id`.
    #[schema(value_type = Option<InputSchema>)]
    input: Option<Value>,
    /// The system prompt of the conversation.
    instructions: Option<String>,
    /// The stored response with which the conversation ends, before `input`.
    previous_response_id: Option<String>,
    #[serde(flatten)]
    #[schema(ignore)]
    rest: Map<String, Value>,
}

/// What takes the place of a conversation.
#[derive(Serialize, utoipa::ToSchema)]
pub struct CompactedResponse {
    id: String,
    /// `response.compaction`.
    object: &'static str,
    created_at: i64,
    /// The input of the next request: messages of the user, then an item of the type `compaction`.
    #[schema(value_type = Vec<Object>)]
    output: Vec<Value>,
    usage: UsageBody,
}

/// Summarize a conversation.
///
/// The output is the input of the next request.
#[utoipa::path(tag = "responses", request_body = CompactRequest, responses((status = 200, body = CompactedResponse)))]
#[post("/responses/compact")]
pub async fn compact(caller: Caller, body: ApiJson<CompactRequest>, api: web::Data<Api>) -> ApiResult {
    let request = body.0;
    let (chain, own) = conversation(&request, &caller, &api).await?;
    let asked = [&own[..], &[message(TASK)]].concat();
    let auto = Some(Truncation::Auto);
    let InputMessages { messages, context, mut ignored } =
        of_chain(&chain, request.instructions.as_deref(), auto, &asked)?;
    ignored.extend(unknown_names(&request.rest, |name, _| name.starts_with("prompt_cache_")));
    let context_window = api.models.get(&caller.access, &request.model).await?.context_window;
    let prompt = PromptOptions { variables: thinking(false).into(), ..PromptOptions::default() };
    let conversation = LongConversation { model: request.model, context_window, messages, context, prompt };
    let summarized = summarize(&api.chat, &caller.access, conversation, caller.recorder.clone()).await;
    let Summary { chat, text, left_out } = summarized.map_err(with_field_names)?;
    let id = ResponseId::from_bytes(chat.id.to_bytes());
    let compacted = CompactedResponse {
        id: id.to_string(),
        object: "response.compaction",
        created_at: chat.created.as_seconds(),
        output: output(id, &chain, &own, &text)?,
        usage: chat.usage().into(),
    };
    let mut response = with_lists(HttpResponse::Ok().json(compacted), &ignored, &[]);
    response.headers_mut().insert(TRUNCATED_MESSAGES, HeaderValue::from(left_out));
    Ok(response)
}

/// The stored responses of the conversation, and the items after them.
async fn conversation(request: &CompactRequest, caller: &Caller, api: &Api) -> Result<(Chain, Vec<Value>)> {
    let responses = &api.services.responses;
    let previous = parse_previous(request.previous_response_id.as_deref())?;
    let chain = chain(previous, &caller.access, api).await?;
    let own = match &request.input {
        None | Some(Value::Null) if previous.is_some() => Vec::new(),
        input => input_items::resolve(responses, &caller.access, input::items(input.as_ref())?).await?,
    };
    Ok((chain, own))
}

fn message(text: &str) -> Value {
    json!({ "type": "message", "role": "user", "content": text })
}

/// The latest messages of the user, then the summary.
fn output(response: ResponseId, chain: &Chain, own: &[Value], summary: &str) -> Result<Vec<Value>> {
    let mut items = chain.responses.iter().map(items_of).collect::<Result<Vec<_>>>()?.concat();
    items.extend_from_slice(own);
    let is_users = |item: &&Value| kind(item) == Some("message") && item.get("role") == Some(&json!("user"));
    let (mut kept, mut bytes) = (Vec::new(), 0);
    for item in items.iter().rev().filter(is_users) {
        bytes += item.to_string().len();
        if bytes > MAX_KEPT_BYTES {
            break;
        }
        kept.push(item.clone());
    }
    kept.reverse();
    let parse = |text: &String| serde_json::from_str(text).map_err(Error::internal);
    let mut output = input_items::stored(response, &kept).iter().map(parse).collect::<Result<Vec<Value>>>()?;
    output.push(summary_item::item(response, summary));
    Ok(output)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_latest_messages_of_the_user_are_kept() {
        let long = "x".repeat(9000);
        let items = [
            message("forgotten"),
            message(&long),
            json!({ "type": "message", "role": "assistant", "content": "no" }),
            json!({ "type": "function_call", "call_id": "c", "name": "f", "arguments": "{}" }),
            json!({ "role": "user", "content": long }),
            message("last"),
        ];
        let output = output(ResponseId::from_bytes([1; 16]), &Chain::default(), &items, "It — rains.").unwrap();
        let kinds: Vec<&Value> = output.iter().map(|item| &item["type"]).collect();
        assert_eq!(kinds, ["message", "message", "compaction"]);
        assert_eq!(output[1]["content"][0]["text"], "last");
    }
}
