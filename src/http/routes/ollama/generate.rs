//! `POST /api/generate`: a prompt through the chat template, or with `raw` or `suffix` a text completion.

use actix_web::{HttpRequest, post, web};
use serde::Deserialize;
use serde_json::{Map, Value};
use utoipa_actix_web::service_config::ServiceConfig;

use super::body::OllamaJson;
use super::delivery::{ResponseFields, load, logprobs, think, unknown};
use super::model_name::model_id;
use super::options::{self, Options};
use super::response::{Body, GenerateContent, Head};
use super::{content, output};
use crate::calls::conversations::context::ConversationContextRequest;
use crate::calls::prompt::text_input::TextInput;
use crate::calls::text::chat::ChatCall;
use crate::calls::text::completions::{CompletionCall, Gap};
use crate::content::Message;
use crate::engine::{PromptOptions, TextFormat};
use crate::error::{Error, Result};
use crate::http::response::ApiResult;
use crate::http::{Api, authentication::Caller, request_logging};

pub fn routes(config: &mut ServiceConfig) {
    config.service(generate);
}

#[derive(Deserialize, utoipa::ToSchema)]
#[schema(as = OllamaGenerateRequest)]
pub struct GenerateRequest {
    /// Id of an installed model. `NAME:latest` is `NAME`.
    model: String,
    /// Without a prompt, the model is loaded; with `keep_alive: 0`, it is unloaded.
    prompt: Option<String>,
    /// The text after the completion, for models that were trained to fill in the middle.
    suffix: Option<String>,
    /// The system prompt.
    system: Option<String>,
    /// Must be empty: templates of Ollama are not supported.
    template: Option<String>,
    /// The `context` of an earlier response, which the prompt continues. Not with `suffix`; without effect with `raw`.
    context: Option<Vec<u32>>,
    /// With false, a prompt that is longer than `num_ctx` is refused.
    truncate: Option<bool>,
    /// Whether the prompt is used as it is, without the model's chat template.
    raw: Option<bool>,
    /// `json`, or a JSON schema. Not with `raw` or `suffix`.
    #[schema(value_type = Option<Value>)]
    format: Option<Value>,
    /// Must be empty.
    #[schema(value_type = Option<Vec<String>>)]
    images: Option<Value>,
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
    logprobs: Option<bool>,
    /// 0–20; only with `logprobs`.
    top_logprobs: Option<u32>,
    #[serde(flatten)]
    #[schema(ignore)]
    rest: Map<String, Value>,
}

/// The call that answers a request.
enum Call {
    Chat(Box<ChatCall>),
    Completion(Box<CompletionCall>),
}

impl GenerateRequest {
    /// Validates each field; the module `calls` checks what depends on the model.
    fn check(mut self) -> Result<(Call, ResponseFields)> {
        self.refuse_unsupported()?;
        let mut ignored = unknown(&self.rest);
        self.leave_out_unused(&mut ignored);
        let options = options::check(self.options.as_ref(), &mut ignored)?;
        let logprobs = logprobs(self.logprobs, self.top_logprobs)?;
        let (is_streamed, includes_logprobs) = (self.stream.unwrap_or(true), logprobs.is_some());
        let context = options.context;
        let suffix = self.suffix.take().filter(|suffix| !suffix.is_empty());
        let call = match self.raw.unwrap_or(false) || suffix.is_some() {
            true => Call::Completion(Box::new(self.completion(suffix, options, logprobs)?)),
            false => Call::Chat(Box::new(self.chat(options, logprobs)?)),
        };
        Ok((call, ResponseFields { is_streamed, includes_logprobs, ignored, context }))
    }

    /// Refuses what would change the output and is not supported.
    fn refuse_unsupported(&self) -> Result<()> {
        content::refuse_images("images", self.images.as_ref())?;
        if self.template.as_ref().is_some_and(|template| !template.is_empty()) {
            let text = "'template' is not supported: this server uses the chat template of the model. Leave it out, or format the prompt yourself and send raw: true.";
            return Err(Error::invalid("template", text));
        }
        if self.continues() && self.suffix.as_ref().is_some_and(|suffix| !suffix.is_empty()) {
            let text = "'context' with 'suffix' is not supported. Leave one of them out.";
            return Err(Error::invalid("context", text));
        }
        Ok(())
    }

    fn continues(&self) -> bool {
        self.context.as_ref().is_some_and(|context| !context.is_empty())
    }

    /// Leaves out what does not go with `raw` or `context`, and adds its name to `ignored`: a prompt that is used as it is
    /// continues nothing, and a context has its system prompt.
    fn leave_out_unused(&mut self, ignored: &mut Vec<String>) {
        let (is_raw, continues) = (self.raw.unwrap_or(false), self.continues());
        if is_raw && continues {
            self.context = None;
            ignored.push("context".to_owned());
        }
        if !is_raw && continues && self.system.take().is_some_and(|system| !system.is_empty()) {
            ignored.push("system".to_owned());
        }
    }

    /// A prompt through the chat template.
    fn chat(self, options: Options, logprobs: Option<u8>) -> Result<ChatCall> {
        let Options { mut sampling, seed, stop, max_tokens, context: num_ctx } = options;
        sampling.text.has_token_ids = true;
        let variables = think(self.think.as_ref())?;
        let system = self.system.filter(|system| !system.is_empty()).map(|system| Message::new("system", system));
        let prompt = Message::new("user", self.prompt.unwrap_or_default());
        Ok(ChatCall {
            model: Some(model_id(&self.model).to_owned()),
            messages: system.into_iter().chain([prompt]).collect(),
            context: ConversationContextRequest {
                continued: self.context.unwrap_or_default(),
                max_prompt_tokens: num_ctx.filter(|_| self.truncate == Some(false)),
                ..Default::default()
            },
            prompt: PromptOptions { variables, ..PromptOptions::default() },
            max_reasoning_tokens: None,
            output: output::request(self.format.as_ref(), &[], &mut Vec::new())?,
            choices: 1,
            max_tokens,
            sampling,
            seed,
            stop,
            logprobs,
            prompt_logprobs: None,
        })
    }

    /// A prompt that is used as it is, or the texts around a gap.
    fn completion(self, suffix: Option<String>, options: Options, logprobs: Option<u8>) -> Result<CompletionCall> {
        let Options { sampling, seed, stop, max_tokens, .. } = options;
        think(self.think.as_ref())?;
        let field = if suffix.is_some() { "suffix" } else { "raw" };
        if self.system.is_some_and(|system| !system.is_empty()) {
            let text = format!("'system' has no place in a prompt with '{field}'. Leave one of them out.");
            return Err(Error::invalid("system", text));
        }
        if !matches!(output::text(self.format.as_ref())?, TextFormat::Free) {
            let text = format!("'format' with '{field}' is not supported. Leave one of them out.");
            return Err(Error::invalid("format", text));
        }
        Ok(CompletionCall {
            model: Some(model_id(&self.model).to_owned()),
            prompts: vec![TextInput::Text(self.prompt.unwrap_or_default())],
            single: true,
            gap: suffix.map(|suffix| Gap { suffix, ..Gap::default() }),
            choices: 1,
            max_tokens,
            default_max_tokens: None,
            sampling,
            seed,
            stop,
            logprobs,
            prompt_logprobs: None,
            echo: false,
            dialect: &output::DIALECT,
        })
    }
}

/// Continue a prompt, in the format of Ollama's API; unless `stream` is false, as lines of JSON.
///
/// Errors have Ollama's format. Fields and options without effect are named in the header `x-outpost-ignored`.
#[utoipa::path(tag = "ollama", request_body = GenerateRequest, responses((
    status = 200,
    description = "Unless `stream` is false, one such body a line, the last with `done: true`.",
    content((Body<GenerateContent> = "application/json"), (String = "application/x-ndjson")),
)))]
#[post("/generate")]
async fn generate(
    caller: Caller,
    body: OllamaJson<GenerateRequest>,
    request: HttpRequest,
    api: web::Data<Api>,
) -> ApiResult {
    let body = body.0;
    let head = Head { model: body.model.clone(), clock_rng: api.clock_rng.clone(), received: api.clock_rng.uptime() };
    let has = |text: &Option<String>| text.as_ref().is_some_and(|text| !text.is_empty());
    if !has(&body.prompt) && !has(&body.suffix) {
        return load::<GenerateContent>(&caller, &api, model_id(&body.model), &body.rest, &head).await;
    }
    let (call, fields) = body.check()?;
    let from = (&caller, request_logging::request_id(&request));
    match call {
        Call::Chat(call) => {
            let running = api.chat.start(&caller.access, *call, caller.recorder.clone()).await?;
            fields.respond::<GenerateContent>(running, head, from).await
        }
        Call::Completion(call) => {
            let running = api.completions.start(&caller.access, *call, caller.recorder.clone()).await?;
            fields.respond::<GenerateContent>(running, head, from).await
        }
    }
}
