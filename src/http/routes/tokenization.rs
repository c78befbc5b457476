//! Tokenization, in the format of vLLM. llama.cpp's names of the fields are accepted, too.

use actix_web::{get, post, web};
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use serde_json::{Map, Value};
use utoipa_actix_web::service_config::ServiceConfig;

use super::chat::FunctionTool;
use crate::calls::messages;
use crate::calls::tokenization::{TokenizeCall, TokenizeInput};
use crate::engine::{SpecialTokenOptions, TokenizerDescription};
use crate::error::{Error, Result};
use crate::http::extractors::{ApiJson, ApiParams};
use crate::http::header_list::with_lists;
use crate::http::response::ApiResult;
use crate::http::routes::message_schema::{self, Message};
use crate::http::routes::prompt_fields::PromptFields;
use crate::http::{Api, authentication::Caller};

pub fn routes(config: &mut ServiceConfig) {
    config.service(tokenize).service(detokenize).service(tokenizer_info);
}

/// Fields that do not affect the output of this server.
const IGNORED: [&str; 1] = ["user"];

/// Either `prompt` or `messages`.
#[derive(Deserialize, utoipa::ToSchema)]
pub struct TokenizeRequest {
    /// Id of an installed model that generates text or embeds texts; absent: the only one that generates text and that
    /// the key may use.
    model: Option<String>,
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
    /// Id of an installed model that generates text or embeds texts; absent: the only one that generates text and that
    /// the key may use.
    model: Option<String>,
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

#[derive(Deserialize, utoipa::IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
pub struct GetTokenizer {
    /// Id of an installed model that generates text; absent: the only one that the key may use.
    model: Option<String>,
}

/// Like `tokenizer_config.json` of a Hugging Face folder.
#[derive(Serialize, utoipa::ToSchema)]
pub struct TokenizerBody {
    /// The class of transformers for any tokenizer.
    tokenizer_class: &'static str,
    bos_token: Option<String>,
    eos_token: Option<String>,
    pad_token: Option<String>,
    unk_token: Option<String>,
    /// Whether the tokens of a text begin with `bos_token`.
    add_bos_token: bool,
    /// Max tokens of the model.
    model_max_length: usize,
    /// A Jinja template; null if the model has none.
    chat_template: Option<String>,
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

/// The special tokens and the chat template of a model.
#[utoipa::path(tag = "tokenization", params(GetTokenizer), responses((status = 200, body = TokenizerBody)))]
#[get("/tokenizer_info")]
async fn tokenizer_info(caller: Caller, params: ApiParams<GetTokenizer>, api: web::Data<Api>) -> ApiResult {
    let described = api.tokenization.describe(&caller.access, params.0.model, &caller.recorder);
    let (id, tokenizer, max_tokens) = described.await?;
    let TokenizerDescription { bos, eos, padding, unknown, adds_bos, chat_template } = tokenizer;
    let body = TokenizerBody {
        tokenizer_class: "PreTrainedTokenizerFast",
        bos_token: bos,
        eos_token: eos,
        pad_token: padding,
        unk_token: unknown,
        add_bos_token: adds_bos,
        model_max_length: max_tokens,
        chat_template,
    };
    Ok(caller.mount.bare(id, body))
}
