//! Tokenization and chat templates, in the formats of vLLM and llama.cpp.

use actix_web::{get, post, web};
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use serde_json::{Map, Value};
use utoipa_actix_web::service_config::ServiceConfig;

use super::chat::FunctionTool;
use crate::calls::prompt::messages;
use crate::calls::text::tokenization::{Conversation, DescribedModel, TokenizeCall, TokenizeInput, TokenizedText};
use crate::engine::{SpecialTokenOptions, TokenizerDescription};
use crate::error::{Error, Result};
use crate::http::extractors::{ApiJson, ApiParams};
use crate::http::header_list::with_lists;
use crate::http::response::ApiResult;
use crate::http::routes::foreign_fields::left_out;
use crate::http::routes::message_schema::{self, Message};
use crate::http::routes::prompt_fields::PromptFields;
use crate::http::unknown_fields::UnknownFields;
use crate::http::{Api, authentication::Caller};

pub fn routes(config: &mut ServiceConfig) {
    config.service(tokenize).service(detokenize).service(tokenizer_info).service(apply_template);
}

/// Fields that do not affect the output of this server.
const IGNORED: [&str; 1] = ["user"];

/// One of `prompt`, `content` and `messages`.
#[derive(Deserialize, utoipa::ToSchema)]
pub struct TokenizeRequest {
    /// Id of an installed model that generates text or embeds texts. May be absent if there is only one chat model.
    model: Option<String>,
    /// A text of at most 1 MiB.
    prompt: Option<String>,
    /// The same, in llama.cpp's format.
    content: Option<String>,
    /// Whether to add the special tokens that the model expects around a text, such as BOS. If absent, true with `prompt` and
    /// false with `content`. Also as `add_special`.
    #[serde(alias = "add_special")]
    add_special_tokens: Option<bool>,
    /// Whether special tokens in the text become these tokens instead of text; true if absent.
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
    /// Whether `tokens` has the text of each token, too. At most 262,144 tokens, as with the next field.
    with_pieces: Option<bool>,
    /// Whether to send `token_strs`.
    return_token_strs: Option<bool>,
    #[serde(flatten)]
    #[schema(ignore)]
    rest: Map<String, Value>,
}

#[derive(Serialize, utoipa::ToSchema)]
pub struct TokenizeBody {
    count: usize,
    /// Max tokens of the model: of prompt and completion together, or of a text to embed.
    max_model_len: usize,
    #[schema(value_type = Vec<Token>)]
    tokens: Vec<Token>,
    /// With `return_token_strs`, the text of each token. Bytes that are no text are U+FFFD.
    #[serde(skip_serializing_if = "Option::is_none")]
    token_strs: Option<Vec<String>>,
}

/// A token id; with `with_pieces`, an object.
#[derive(Serialize, utoipa::ToSchema)]
#[serde(untagged)]
enum Token {
    Id(u32),
    WithPiece { id: u32, piece: Piece },
}

/// The text of a token, or its bytes if they are no text.
#[derive(Serialize, utoipa::ToSchema)]
#[serde(untagged)]
enum Piece {
    Text(String),
    Bytes(Vec<u8>),
}

impl From<Vec<u8>> for Piece {
    fn from(bytes: Vec<u8>) -> Self {
        String::from_utf8(bytes).map_or_else(|error| Self::Bytes(error.into_bytes()), Self::Text)
    }
}

impl TokenizeBody {
    fn new(text: TokenizedText, with_pieces: bool, with_texts: bool) -> Self {
        let TokenizedText { tokens, pieces, max_tokens, .. } = text;
        let texts =
            |pieces: &Vec<Vec<u8>>| pieces.iter().map(|bytes| String::from_utf8_lossy(bytes).into_owned()).collect();
        let token_strs = pieces.as_ref().filter(|_| with_texts).map(texts);
        let count = tokens.len();
        let tokens = match pieces.filter(|_| with_pieces) {
            None => tokens.into_iter().map(Token::Id).collect(),
            Some(pieces) => {
                let with_piece = |(id, piece): (u32, Vec<u8>)| Token::WithPiece { id, piece: piece.into() };
                tokens.into_iter().zip(pieces).map(with_piece).collect()
            }
        };
        Self { count, max_model_len: max_tokens, tokens, token_strs }
    }
}

#[derive(Deserialize, utoipa::ToSchema)]
pub struct DetokenizeRequest {
    /// Id of an installed model that generates text or embeds texts. May be absent if there is only one chat model.
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
    /// The same, in llama.cpp's format.
    content: String,
}

#[derive(Deserialize, utoipa::ToSchema)]
pub struct ApplyTemplateRequest {
    /// Id of an installed model. May be absent if there is only one chat model.
    model: Option<String>,
    /// The conversation.
    #[schema(value_type = Vec<Message>)]
    messages: Vec<Box<RawValue>>,
    /// Function tools, at most 128.
    #[schema(value_type = Option<Vec<FunctionTool>>)]
    tools: Option<Box<RawValue>>,
    /// Whether the beginning of the assistant's turn follows the last message; true if absent.
    add_generation_prompt: Option<bool>,
    /// Whether the last message, one of the assistant, is to be continued.
    continue_final_message: Option<bool>,
    /// A variable of the chat template, as in chat completions.
    reasoning_effort: Option<String>,
    /// Whether the model reasons before it answers, if its chat template knows this variable.
    enable_thinking: Option<bool>,
    /// Further variables of the chat template.
    #[schema(value_type = Option<Object>)]
    chat_template_kwargs: Option<Map<String, Value>>,
    #[serde(flatten)]
    #[schema(ignore)]
    rest: Map<String, Value>,
}

#[derive(Serialize, utoipa::ToSchema)]
pub struct ApplyTemplateBody {
    /// The text that the model gets, for `/completions`. Special tokens in messages look like those of the template.
    prompt: String,
}

impl ApplyTemplateRequest {
    /// Validates each field.
    fn check(self) -> Result<(Option<String>, Conversation)> {
        let messages = messages::parse(&message_schema::to_json(&self.messages), false)?;
        let fields = PromptFields {
            add_generation_prompt: self.add_generation_prompt,
            continue_final_message: self.continue_final_message,
            chat_template_kwargs: self.chat_template_kwargs,
            enable_thinking: self.enable_thinking,
            reasoning_effort: self.reasoning_effort,
        };
        let options = fields.check(messages.last())?;
        Ok((self.model, Conversation { messages, tools: self.tools.map(|json| json.get().to_owned()), options }))
    }
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
        let text = match (self.prompt, self.content) {
            (Some(_), Some(_)) => {
                return Err(Error::invalid("content", "'prompt' and 'content' are both set. Send one of them."));
            }
            (Some(text), None) => Some(("prompt", text, true)),
            (None, Some(text)) => Some(("content", text, false)),
            (None, None) => None,
        };
        let input = match (text, self.messages) {
            (Some((field, text, adds)), None) => {
                refuse(&for_messages, "messages")?;
                let (add, parse) = (self.add_special_tokens.unwrap_or(adds), self.parse_special.unwrap_or(true));
                TokenizeInput::Text { text, field, special: SpecialTokenOptions { add, parse } }
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
                let tools = self.tools.map(|json| json.get().to_owned());
                TokenizeInput::Messages(Conversation { messages, tools, options })
            }
            (Some((field, ..)), Some(_)) => {
                let text = format!("'{field}' and 'messages' are both set. Send one of them.");
                return Err(Error::invalid("messages", text));
            }
            (None, None) => return Err(Error::invalid("prompt", "'prompt' is missing. Send it, or 'messages'.")),
        };
        let with_pieces = self.with_pieces == Some(true) || self.return_token_strs == Some(true);
        Ok(TokenizeCall { model: self.model, input, with_pieces })
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
    let (with_pieces, with_texts) = (body.0.with_pieces == Some(true), body.0.return_token_strs == Some(true));
    let call = body.0.check()?;
    let text = api.tokenization.tokenize(&caller.access, call, &caller.recorder).await?;
    let id = text.id;
    Ok(with_lists(caller.mount.bare(id, TokenizeBody::new(text, with_pieces, with_texts)), &ignored, &[]))
}

/// Convert tokens of the model to text.
#[utoipa::path(tag = "tokenization", request_body = DetokenizeRequest, responses((status = 200, body = DetokenizeBody)))]
#[post("/detokenize")]
async fn detokenize(caller: Caller, body: ApiJson<DetokenizeRequest>, api: web::Data<Api>) -> ApiResult {
    let request = body.0;
    let ignored = api.unknown_fields.left_out::<DetokenizeRequest>(&request.rest, &IGNORED)?;
    let decoded = api.tokenization.detokenize(&caller.access, request.model, request.tokens, &caller.recorder);
    let (id, prompt) = decoded.await?;
    let body = DetokenizeBody { content: prompt.clone(), prompt };
    Ok(with_lists(caller.mount.bare(id, body), &ignored, &[]))
}

/// Render a conversation with the model's chat template.
#[utoipa::path(
    tag = "tokenization",
    request_body = ApplyTemplateRequest,
    responses((status = 200, body = ApplyTemplateBody)),
)]
#[post("/apply-template")]
async fn apply_template(caller: Caller, body: ApiJson<ApplyTemplateRequest>, api: web::Data<Api>) -> ApiResult {
    // Clients send what they send to chats.
    let ignored = left_out::<ApplyTemplateRequest>(UnknownFields::Ignored, &body.0.rest, None, |_, _| false)?;
    let (model, conversation) = body.0.check()?;
    let rendered = api.tokenization.apply_template(&caller.access, model, conversation, &caller.recorder);
    let (id, prompt) = rendered.await?;
    Ok(with_lists(caller.mount.bare(id, ApplyTemplateBody { prompt }), &ignored, &[]))
}

/// The special tokens and the chat template of a model.
#[utoipa::path(tag = "tokenization", params(GetTokenizer), responses((status = 200, body = TokenizerBody)))]
#[get("/tokenizer_info")]
async fn tokenizer_info(caller: Caller, params: ApiParams<GetTokenizer>, api: web::Data<Api>) -> ApiResult {
    let described = api.tokenization.describe(&caller.access, params.0.model, &caller.recorder);
    let DescribedModel { id, tokenizer, max_tokens, .. } = described.await?;
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
