//! Tokenization, in the format of vLLM. llama.cpp's names of the fields are accepted, too.

use actix_web::{post, web};
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use serde_json::{Map, Value};
use utoipa_actix_web::service_config::ServiceConfig;

use super::chat::FunctionTool;
use crate::calls::messages;
use crate::calls::tokenization::{TokenizeCall, TokenizeInput};
use crate::engine::SpecialTokenOptions;
use crate::error::{Error, Result};
use crate::http::extractors::ApiJson;
use crate::http::header_list::with_lists;
use crate::http::response::ApiResult;
use crate::http::routes::message_schema::{self, Message};
use crate::http::routes::prompt_fields::PromptFields;
use crate::http::{Api, authentication::Caller};

pub fn routes(config: &mut ServiceConfig) {
    config.service(tokenize).service(detokenize);
}

/// Fields that do not affect the output of this server.
const IGNORED: [&str; 1] = ["user"];

/// Either `prompt` or `messages`.
#[derive(Deserialize, utoipa::ToSchema)]
pub struct TokenizeRequest {
    /// Id of an installed model that generates text or embeds texts.
    model: String,
    /// A text of at most 1 MiB; also as `content`.
    #[serde(alias = "content")]
    prompt: Option<String>,
    /// Whether to add the special tokens that the model expects around a text, such as BOS; true if absent. Also as
    /// `add_special`. Only with `prompt`.
    #[serde(alias = "add_special")]
    add_special_tokens: Option<bool>,
    /// Whether special tokens in `prompt` become these tokens instead of text; true if absent.
    parse_special: Option<bool>,
    /// A conversation, which the model's chat template renders.
    #[schema(value_type = Option<Vec<Message>>)]
    messages: Option<Vec<Box<RawValue>>>,
    /// Whether the beginning of the assistant's turn follows the last message; true if absent. Only with `messages`.
    add_generation_prompt: Option<bool>,
    /// Whether the last message, one of the assistant, is to be continued. Only with `messages`.
    continue_final_message: Option<bool>,
    /// Variables of the chat template. Only with `messages`.
    #[schema(value_type = Option<Object>)]
    chat_template_kwargs: Option<Map<String, Value>>,
    /// Function tools, at most 128. Only with `messages`.
    #[schema(value_type = Option<Vec<FunctionTool>>)]
    tools: Option<Box<RawValue>>,
    #[serde(flatten)]
    #[schema(ignore)]
    rest: Map<String, Value>,
}

#[derive(Serialize, utoipa::ToSchema)]
pub struct TokenizeBody {
    count: usize,
    /// Max tokens of the model: of prompt and completion together, or of a text to embed.
    max_model_len: usize,
    tokens: Vec<u32>,
}

#[derive(Deserialize, utoipa::ToSchema)]
pub struct DetokenizeRequest {
    /// Id of an installed model that generates text or embeds texts.
    model: String,
    /// Token ids of the model, at most 262,144.
    tokens: Vec<u32>,
    #[serde(flatten)]
    #[schema(ignore)]
    rest: Map<String, Value>,
}

#[derive(Serialize, utoipa::ToSchema)]
pub struct DetokenizeBody {
    /// The text, special tokens included.
    prompt: String,
}

impl TokenizeRequest {
    /// Validates each field.
    fn check(self) -> Result<TokenizeCall> {
        let (for_text, for_messages) = (
            [
                ("add_special_tokens", self.add_special_tokens.is_some()),
                ("parse_special", self.parse_special.is_some()),
            ],
            [
                ("add_generation_prompt", self.add_generation_prompt.is_some()),
                ("continue_final_message", self.continue_final_message.is_some()),
                ("chat_template_kwargs", self.chat_template_kwargs.is_some()),
                ("tools", self.tools.is_some()),
            ],
        );
        let input = match (self.prompt, self.messages) {
            (Some(text), None) => {
                refuse(&for_messages, "messages")?;
                let (add, parse) = (self.add_special_tokens.unwrap_or(true), self.parse_special.unwrap_or(true));
                TokenizeInput::Text { text, special: SpecialTokenOptions { add, parse } }
            }
            (None, Some(messages)) => {
                refuse(&for_text, "prompt")?;
                let messages = messages::parse(&message_schema::to_json(&messages), false)?;
                let fields = PromptFields {
                    add_generation_prompt: self.add_generation_prompt,
                    continue_final_message: self.continue_final_message,
                    chat_template_kwargs: self.chat_template_kwargs,
                    ..PromptFields::default()
                };
                let options = fields.check(messages.last())?;
                TokenizeInput::Messages { messages, tools: self.tools.map(|json| json.get().to_owned()), options }
            }
            (Some(_), Some(_)) => {
                return Err(Error::invalid("messages", "'prompt' and 'messages' are both set. Send one of them."));
            }
            (None, None) => return Err(Error::invalid("prompt", "'prompt' is missing. Send it, or 'messages'.")),
        };
        Ok(TokenizeCall { model: self.model, input })
    }
}

/// Refuses fields that need another one. `fields`: with whether they are set.
fn refuse(fields: &[(&str, bool)], needed: &str) -> Result<()> {
    match fields.iter().find(|(_, is_set)| *is_set) {
        None => Ok(()),
        Some((field, _)) => {
            Err(Error::invalid(*field, format!("'{field}' needs '{needed}'. Send '{needed}', or leave '{field}' out.")))
        }
    }
}

/// Convert a text or a conversation to the model's tokens.
#[utoipa::path(tag = "tokenization", request_body = TokenizeRequest, responses((status = 200, body = TokenizeBody)))]
#[post("/tokenize")]
async fn tokenize(caller: Caller, body: ApiJson<TokenizeRequest>, api: web::Data<Api>) -> ApiResult {
    let ignored = api.unknown_fields.left_out::<TokenizeRequest>(&body.0.rest, &IGNORED)?;
    let call = body.0.check()?;
    let text = api.tokenization.tokenize(&caller.access, call, &caller.recorder).await?;
    let body = TokenizeBody { count: text.tokens.len(), max_model_len: text.max_tokens, tokens: text.tokens };
    Ok(with_lists(caller.mount.bare(text.id, body), &ignored, &[]))
}

/// Convert tokens of the model to text.
#[utoipa::path(tag = "tokenization", request_body = DetokenizeRequest, responses((status = 200, body = DetokenizeBody)))]
#[post("/detokenize")]
async fn detokenize(caller: Caller, body: ApiJson<DetokenizeRequest>, api: web::Data<Api>) -> ApiResult {
    let request = body.0;
    let ignored = api.unknown_fields.left_out::<DetokenizeRequest>(&request.rest, &IGNORED)?;
    let decoded = api.tokenization.detokenize(&caller.access, request.model, request.tokens, &caller.recorder);
    let (id, prompt) = decoded.await?;
    Ok(with_lists(caller.mount.bare(id, DetokenizeBody { prompt }), &ignored, &[]))
}
