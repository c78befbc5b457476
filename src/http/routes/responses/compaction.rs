//! Compaction: the model summarizes a conversation that has become long, and the summary takes the place of its messages.

use std::ops::RangeInclusive;

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
use crate::calls::chat::{ChatCall, RunningChat};
use crate::calls::dialect::Dialect;
use crate::calls::generation::RunningText;
use crate::calls::message_joining::{join, last_turn};
use crate::calls::output_spec::OutputRequest;
use crate::calls::sampling_request::SamplingRequest;
use crate::content::Message;
use crate::engine::PromptOptions;
use crate::error::{Code, Error, Result};
use crate::http::extractors::ApiJson;
use crate::http::header_list::with_lists;
use crate::http::response::ApiResult;
use crate::http::routes::prompt_fields::thinking;
use crate::http::routes::truncation::{TRUNCATED_MESSAGES, Truncation};
use crate::http::unknown_fields::unknown_names;
use crate::http::{Api, authentication::Caller};
use crate::ids::ResponseId;
use crate::service::responses::Chain;

/// What the model is asked for.
const TASK: &str = "Summarize this conversation, so that another assistant can go on with it from your summary alone. \
Write down what the user wants and has decided, what was done and found out, names, paths, numbers and other exact values \
that will be needed, and what remains to be done. Write only the summary.";
/// Max tokens of a summary, and the part of the context that it may fill.
const MAX_SUMMARY_TOKENS: u32 = 1024;
const SUMMARY_PART: u32 = 4;
/// Bytes of a part whose repetition is a loop. Shorter ones occur in tables and rules.
const LOOP_BYTES: RangeInclusive<usize> = 24..=600;
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
    let earlier = earlier_messages([&context.history[..], &messages].concat());
    let window = api.models.get(&caller.access, &request.model).await?.context_window;
    let max_tokens = window.map_or(MAX_SUMMARY_TOKENS, |window| (window / SUMMARY_PART).clamp(1, MAX_SUMMARY_TOKENS));
    let call = ChatCall {
        model: Some(request.model),
        messages,
        context,
        prompt: PromptOptions { variables: thinking(false).into(), ..PromptOptions::default() },
        max_reasoning_tokens: None,
        output: OutputRequest { dialect: Dialect::Responses, ..OutputRequest::default() },
        choices: 1,
        max_tokens: Some((max_tokens, "input")),
        sampling: SamplingRequest { temperature: Some(0.0), ..SamplingRequest::default() },
        seed: Some(0),
        stop: Some(Vec::new()),
        logprobs: None,
        prompt_logprobs: None,
    };
    let started = api.chat.start(&caller.access, call, caller.recorder.clone()).await;
    let mut chat = started.map_err(with_field_names)?;
    let left_out = chat.truncated.unwrap_or(0);
    if left_out > 0 && left_out == earlier {
        let text = "The last turn of the conversation and the summary do not fit into the context of the model. Leave out the oldest items, or use a model with a longer context.";
        return Err(Error::new(Code::ContextLengthExceeded, text).param("input"));
    }
    let summary = summary(&mut chat).await?;
    let id = ResponseId::from_bytes(chat.id.to_bytes());
    let compacted = CompactedResponse {
        id: id.to_string(),
        object: "response.compaction",
        created_at: chat.created.as_seconds(),
        output: output(id, &chain, &own, &summary)?,
        usage: chat.usage().into(),
    };
    let mut response = with_lists(HttpResponse::Ok().json(compacted), &ignored, &[]);
    response.headers_mut().insert(TRUNCATED_MESSAGES, HeaderValue::from(left_out));
    Ok(response)
}

/// What the model writes, until it begins to repeat itself.
async fn summary(chat: &mut RunningChat) -> Result<String> {
    let mut text = String::new();
    while let Some(delta) = chat.next().await {
        text.push_str(&delta?.text);
        if let Some(end) = end_before_loop(&text) {
            text.truncate(end);
            chat.cancel();
            break;
        }
    }
    Ok(text.trim().to_owned())
}

/// The length of a text without its loop, if it ends with three copies of the same part. One copy stays.
fn end_before_loop(text: &str) -> Option<usize> {
    let (bytes, length) = (text.as_bytes(), text.len());
    let is_loop = |part: &usize| {
        let copies = bytes.len().checked_sub(3 * part).and_then(|start| bytes.get(start..));
        copies.is_some_and(|copies| copies[..2 * part] == copies[*part..])
    };
    let part = LOOP_BYTES.into_iter().find(is_loop)?;
    // The copies need not begin between two characters.
    (0..=length - 2 * part).rev().find(|end| text.is_char_boundary(*end))
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

/// The number of messages before the last one of the user, without system messages.
fn earlier_messages(messages: Vec<Message>) -> usize {
    let joined = join(messages, false);
    joined[..last_turn(&joined)].iter().filter(|message| message.role != "system").count()
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
    fn a_loop_is_cut_after_its_first_copy() {
        let sentence = "They left Brest — on 14 May. ";
        let text = format!("The boat is Rosa.\n{}", sentence.repeat(3));
        assert_eq!(&text[..end_before_loop(&text).unwrap()], format!("The boat is Rosa.\n{sentence}"));
        assert_eq!(end_before_loop(&text[..text.len() - 1]), None, "it is cut as soon as it is complete");
        assert_eq!(end_before_loop(&sentence.repeat(2)), None);
        assert_eq!(end_before_loop("| --- | --- | --- |"), None);
        assert_eq!(end_before_loop(""), None);
        for end in 0..text.len() {
            text.get(..end).and_then(end_before_loop);
        }
    }

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
