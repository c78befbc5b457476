//! The request of the Responses API. Every field is supported, ignored because it cannot change the result, refused by
//! name, or named in a header.

use serde::Deserialize;
use serde_json::{Map, Value, json};

use super::input::{self, Transcript};
use super::input_schema::InputSchema;
use super::output;
use super::reasoning::{self, ReasoningFormat, RequestedReasoning};
use super::response::Settings;
use crate::calls::chat::ChatCall;
use crate::calls::conversation_context::ConversationContextRequest;
use crate::display::shorten;
use crate::engine::{MAX_TOP_LOGPROBS, Message, PromptOptions};
use crate::error::{Error, Result};
use crate::http::routes::sampling_fields::{CheckedSampling, with_sampling_fields, within};
use crate::http::routes::truncation::Truncation;
use crate::http::unknown_fields::unknown_names;
use crate::ids::ResponseId;
use crate::service::json_fields::invalid_field;
use crate::service::responses::{Chain, StoredResponse, check_metadata, previous_not_found};

/// Fields that do not affect the output of this server.
const IGNORED: [&str; 3] = ["prompt_cache_retention", "prompt_cache_options", "client_metadata"];
/// The entry of `include` that asks for log-probabilities.
const LOGPROBS: &str = "message.output_text.logprobs";
/// Max characters of the fields that only name something.
const MAX_LABEL_CHARS: usize = 512;

with_sampling_fields! {
    #[derive(Deserialize, utoipa::ToSchema)]
    pub struct ResponsesRequest {
        /// Id of an installed model.
        model: String,
        /// A text, or items: `message`, `function_call`, `function_call_output`, `custom_tool_call`,
        /// `custom_tool_call_output`, `reasoning` and `item_reference`.
        #[schema(value_type = InputSchema)]
        input: Option<Value>,
        /// The system prompt. It is not passed on to responses that continue this one.
        instructions: Option<String>,
        /// The stored response that this one continues.
        previous_response_id: Option<String>,
        /// Maximum number of tokens to generate. If the model's context has room for fewer, generation ends there.
        max_output_tokens: Option<u32>,
        /// Accepted, without effect: it limits tools that run on OpenAI's servers.
        max_tool_calls: Option<u32>,
        /// Functions and custom tools, at most 128. Arguments of calls always match their schemas, and the input of custom
        /// tools their grammars. Other tools are left out.
        #[schema(value_type = Option<Vec<Object>>)]
        tools: Option<Vec<Value>>,
        /// `none`, `auto`, `required`, one tool, or `allowed_tools`; `auto` if absent.
        #[schema(value_type = Option<serde_json::Value>)]
        tool_choice: Option<Value>,
        /// Whether one response may contain several calls; true if absent.
        parallel_tool_calls: Option<bool>,
        /// `format`: `text`, `json_object` or `json_schema`, enforced during generation.
        #[schema(value_type = Option<Object>)]
        text: Option<Value>,
        /// 0–20; needs the entry of `include`.
        top_logprobs: Option<u32>,
        /// `message.output_text.logprobs` for log-probabilities, `reasoning.encrypted_content` for reasoning that clients
        /// without a store send back; others are ignored.
        include: Option<Vec<String>>,
        /// Whether the response is stored; true if absent.
        store: Option<bool>,
        /// Application-defined metadata, at most 16 KiB.
        #[schema(value_type = Option<Object>)]
        metadata: Option<Map<String, Value>>,
        /// What happens if the input is too long: `auto` leaves out the oldest turns, `disabled` refuses it.
        truncation: Option<Truncation>,
        /// `effort`: how much the model reasons, if its chat template knows this. `summary`: whether the reasoning is
        /// returned as a summary. It is always the whole text.
        #[schema(value_type = Option<Object>)]
        reasoning: Option<Value>,
        /// Max tokens of the reasoning; then the answer begins.
        max_reasoning_tokens: Option<u32>,
        user: Option<String>,
        safety_identifier: Option<String>,
        prompt_cache_key: Option<String>,
        service_tier: Option<String>,
        /// Whether the response is generated after this request has been answered; false if absent. It must be stored.
        background: Option<bool>,
        /// Not supported: use `previous_response_id`.
        #[schema(value_type = Option<Object>)]
        conversation: Option<Value>,
        /// Not supported: send the text of the prompt.
        #[schema(value_type = Option<Object>)]
        prompt: Option<Value>,
    }
}

/// A validated request.
pub struct Checked {
    pub call: ChatCall,
    pub settings: Settings,
    pub reasoning: ReasoningFormat,
    pub is_streamed: bool,
    /// The items of the request; none if the response is not stored.
    pub input: Vec<Value>,
    /// The fields, tools and items that are left out.
    pub ignored: Vec<String>,
}

impl ResponsesRequest {
    /// The response that this one continues.
    pub fn previous(&self) -> Result<Option<ResponseId>> {
        parse_previous(self.previous_response_id.as_deref())
    }

    /// The same request in a batch, which is in the background itself. Its response is not stored.
    pub fn for_batch(self) -> Self {
        Self { store: Some(false), background: None, ..self }
    }

    /// The items of the request.
    pub fn items(&self) -> Result<Vec<Value>> {
        input::items(self.input.as_ref())
    }

    /// Validates each field; the module `calls` checks what depends on the model. `items`: those of the request, in which
    /// references are replaced by what they refer to. `chain`: what the response continues.
    pub fn check(mut self, items: Vec<Value>, chain: &Chain) -> Result<Checked> {
        self.refuse_unsupported()?;
        let max_tokens = self.max_output_tokens.map(|count| (count, "max_output_tokens"));
        let CheckedSampling { sampling, seed, stop, stream } = self.sampling_fields().check(max_tokens)?;
        let logprobs = self.logprobs()?;
        let RequestedReasoning { variables, format } =
            reasoning::requested(self.reasoning.as_ref(), self.include.as_deref())?;
        let mut transcript = Transcript::new(self.instructions.as_deref());
        for response in &chain.responses {
            transcript.append("previous_response_id", &items_of(response)?)?;
        }
        transcript.ignored.clear();
        transcript.append("input", &items)?;
        let Transcript { messages, mut ignored, .. } = transcript;
        ignored.extend(unknown_names(&self.rest, |name, _| IGNORED.contains(&name)));
        let output = output::request(
            self.text.as_ref(),
            self.tools.as_deref().unwrap_or_default(),
            self.tool_choice.as_ref(),
            self.parallel_tool_calls,
            &mut ignored,
        )?;
        let (context, messages) = context(self.truncation, messages);
        let call = ChatCall {
            model: Some(std::mem::take(&mut self.model)),
            messages,
            context,
            prompt: PromptOptions { variables, ..PromptOptions::default() },
            max_reasoning_tokens: self.max_reasoning_tokens,
            output,
            choices: 1,
            max_tokens,
            sampling,
            seed,
            stop,
            logprobs,
        };
        let settings = self.settings(&call)?;
        let input = if settings.store { items } else { Vec::new() };
        Ok(Checked { call, settings, reasoning: format, is_streamed: stream.is_some(), input, ignored })
    }

    fn refuse_unsupported(&self) -> Result<()> {
        let given = |value: &Option<Value>| value.as_ref().is_some_and(|value| !value.is_null());
        if self.background == Some(true) && self.store == Some(false) {
            let text = "is true, but 'store' is false. A response that is generated in the background must be stored";
            return invalid_field("background", text);
        }
        if given(&self.conversation) {
            return invalid_field(
                "conversation",
                "is not supported by this server. Send previous_response_id, or the whole conversation in 'input'",
            );
        }
        if given(&self.prompt) {
            return invalid_field(
                "prompt",
                "is not supported by this server. Send the text of the prompt in 'instructions' or 'input'",
            );
        }
        Ok(())
    }

    fn logprobs(&self) -> Result<Option<u8>> {
        let top = within("top_logprobs", self.top_logprobs.unwrap_or(0), 0, MAX_TOP_LOGPROBS.into())?;
        let is_included = self.include.iter().flatten().any(|name| name == LOGPROBS);
        match (is_included, top) {
            (true, top) => Ok(Some(u8::try_from(top).unwrap_or(MAX_TOP_LOGPROBS))),
            (false, 0) => Ok(None),
            (false, _) => {
                let text = format!("'top_logprobs' requires include: [\"{LOGPROBS}\"].");
                Err(Error::invalid("top_logprobs", text))
            }
        }
    }

    /// What the response repeats of the request.
    fn settings(self, call: &ChatCall) -> Result<Settings> {
        let Self { user, safety_identifier, prompt_cache_key, service_tier, metadata, reasoning, .. } = self;
        for (field, text) in [
            ("user", &user),
            ("safety_identifier", &safety_identifier),
            ("prompt_cache_key", &prompt_cache_key),
            ("service_tier", &service_tier),
        ] {
            if text.as_ref().is_some_and(|text| text.chars().count() > MAX_LABEL_CHARS) {
                return invalid_field(field, &format!("may have at most {MAX_LABEL_CHARS} characters"));
            }
        }
        let reasoning = reasoning.unwrap_or_default();
        let of_reasoning = |name: &str| reasoning.get(name).cloned().unwrap_or_default();
        let metadata = Value::Object(metadata.unwrap_or_default());
        check_metadata(&metadata.to_string())?;
        Ok(Settings {
            background: self.background == Some(true),
            instructions: self.instructions,
            max_output_tokens: self.max_output_tokens,
            max_tool_calls: self.max_tool_calls,
            metadata,
            parallel_tool_calls: self.parallel_tool_calls.unwrap_or(true),
            previous_response_id: self.previous_response_id,
            prompt_cache_key,
            reasoning: json!({ "effort": of_reasoning("effort"), "summary": of_reasoning("summary") }),
            safety_identifier,
            service_tier: "default",
            store: self.store.unwrap_or(true),
            temperature: call.sampling.temperature,
            text: output::echoed_text(self.text),
            tool_choice: self.tool_choice.filter(|choice| !choice.is_null()).unwrap_or_else(|| json!("auto")),
            tools: output::echoed_tools(self.tools.unwrap_or_default()),
            top_logprobs: self.top_logprobs.unwrap_or(0),
            top_p: call.sampling.top_p,
            presence_penalty: call.sampling.presence_penalty,
            frequency_penalty: call.sampling.frequency_penalty,
            truncation: self.truncation.unwrap_or(Truncation::Disabled),
            user,
        })
    }
}

/// Parses the field `previous_response_id`.
pub fn parse_previous(id: Option<&str>) -> Result<Option<ResponseId>> {
    id.map(|text| text.parse().map_err(|_| previous_not_found(shorten(text)))).transpose()
}

/// The context of the call and its own messages. If the oldest turns may be left out, those before the last one are
/// passed as the history.
pub fn context(
    truncation: Option<Truncation>,
    mut messages: Vec<Message>,
) -> (ConversationContextRequest, Vec<Message>) {
    if !truncation.is_some_and(Truncation::is_auto) {
        return (ConversationContextRequest::default(), messages);
    }
    let begun = messages.iter().rposition(|message| message.role == "user").unwrap_or(0);
    let own = messages.split_off(begun);
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
