//! `POST /api/chat`.

use actix_web::{HttpRequest, post, web};
use serde::Deserialize;
use serde_json::{Map, Value};
use utoipa_actix_web::service_config::ServiceConfig;

use super::body::OllamaJson;
use super::delivery::{ResponseFields, load, logprobs, think, unknown};
use super::model_name::model_id;
use super::options::{self, Options};
use super::response::{Body, ChatContent, Head};
use super::{content, output};
use crate::calls::conversations::context::ConversationContextRequest;
use crate::calls::prompt::message_joining::last_turn;
use crate::calls::text::chat::ChatCall;
use crate::content::Message;
use crate::engine::PromptOptions;
use crate::error::Result;
use crate::http::response::ApiResult;
use crate::http::routes::prompt_fields::end_of_messages;
use crate::http::{Api, authentication::Caller, request_logging};

pub fn routes(config: &mut ServiceConfig) {
    config.service(chat);
}

#[derive(Deserialize, utoipa::ToSchema)]
pub struct OllamaChatRequest {
    /// Id of an installed model. `NAME:latest` is `NAME`.
    model: String,
    /// Without messages, the model is loaded; with `keep_alive: 0`, it is unloaded.
    #[schema(value_type = Option<Vec<Object>>)]
    messages: Option<Vec<Value>>,
    /// Function tools, at most 128. Arguments of calls always match their schemas.
    #[schema(value_type = Option<Vec<Object>>)]
    tools: Option<Vec<Value>>,
    /// `json`, or a JSON schema.
    #[schema(value_type = Option<Value>)]
    format: Option<Value>,
    /// Parameters of generation. Others are named in a header.
    #[schema(value_type = Option<options::OptionsSchema>)]
    #[serde(default, deserialize_with = "crate::json_input::with_nearest_numbers")]
    options: Option<Value>,
    /// True if absent.
    stream: Option<bool>,
    /// Whether the model reasons before it answers, or how much (`low`, `medium`, `high`, `max`), if its chat template knows
    /// this.
    #[schema(value_type = Option<Value>)]
    think: Option<Value>,
    /// Whether the oldest turns are left out if the messages are too long; if absent, only with `num_ctx`.
    truncate: Option<bool>,
    logprobs: Option<bool>,
    /// 0–20; only with `logprobs`.
    top_logprobs: Option<u32>,
    #[serde(flatten)]
    #[schema(ignore)]
    rest: Map<String, Value>,
}

impl OllamaChatRequest {
    /// Validates each field; the module `calls` checks what depends on the model.
    fn check(self, messages: &[Value]) -> Result<(ChatCall, ResponseFields)> {
        let variables = think(self.think.as_ref())?;
        let mut ignored = unknown(&self.rest);
        let output = output::request(self.format.as_ref(), self.tools.as_deref().unwrap_or_default(), &mut ignored)?;
        let Options { sampling, seed, stop, max_tokens, context } =
            options::check(self.options.as_ref(), &mut ignored)?;
        let logprobs = logprobs(self.logprobs, self.top_logprobs)?;
        let messages = content::messages(messages)?;
        let end = end_of_messages(&messages)?;
        let (conversation, messages) = fitted(self.truncate, context, messages);
        let call = ChatCall {
            model: Some(model_id(&self.model).to_owned()),
            messages,
            context: conversation,
            prompt: PromptOptions { end, variables },
            max_reasoning_tokens: None,
            output,
            choices: 1,
            max_tokens,
            sampling,
            seed,
            stop,
            logprobs,
            prompt_logprobs: None,
        };
        let is_streamed = self.stream.unwrap_or(true);
        Ok((call, ResponseFields { is_streamed, includes_logprobs: logprobs.is_some(), ignored, context }))
    }
}

/// The messages of the last turn, and as the context of the call those before it, the oldest of which may be left out. With
/// `num_ctx` the client says how much of a long chat it wants to have read, so only `truncate: false` refuses one then.
fn fitted(
    truncate: Option<bool>,
    num_ctx: Option<u32>,
    mut messages: Vec<Message>,
) -> (ConversationContextRequest, Vec<Message>) {
    let may_drop = truncate.unwrap_or(num_ctx.is_some());
    let own = if may_drop { messages.split_off(last_turn(&messages)) } else { std::mem::take(&mut messages) };
    let context = ConversationContextRequest {
        truncate: Some(may_drop),
        max_prompt_tokens: num_ctx,
        history: messages,
        ..Default::default()
    };
    (context, own)
}

/// Continue a conversation, in the format of Ollama's API; unless `stream` is false, as lines of JSON.
///
/// Errors have Ollama's format. Fields and options without effect are named in the header `x-outpost-ignored`.
#[utoipa::path(tag = "ollama", request_body = OllamaChatRequest, responses((
    status = 200,
    description = "Unless `stream` is false, one such body a line, the last with `done: true`.",
    content((Body<ChatContent> = "application/json"), (String = "application/x-ndjson")),
)))]
#[post("/chat")]
async fn chat(
    caller: Caller,
    body: OllamaJson<OllamaChatRequest>,
    request: HttpRequest,
    api: web::Data<Api>,
) -> ApiResult {
    let mut body = body.0;
    let head = Head { model: body.model.clone(), clock_rng: api.clock_rng.clone(), received: api.clock_rng.uptime() };
    let messages = body.messages.take().unwrap_or_default();
    if messages.is_empty() {
        return load::<ChatContent>(&caller, &api, model_id(&body.model), &body.rest, &head).await;
    }
    let (call, fields) = body.check(&messages)?;
    let mut running = api.chat.start(&caller.access, call, caller.recorder.clone()).await?;
    running.truncated = running.truncated.filter(|count| *count > 0);
    let from = (&caller, request_logging::request_id(&request));
    fields.respond::<ChatContent>(running, head, from).await
}
