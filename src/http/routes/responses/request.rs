//! The request of the Responses API. Every field is supported, ignored because it cannot change the result, refused by
//! name, or named in a header.

use serde::Deserialize;
use serde_json::{Map, Value, json};

use super::continuation::{self, InputMessages};
use super::conversation_field::{ConversationField, RequestedConversation};
use super::input;
use super::input_schema::InputSchema;
use super::output;
use super::reasoning::{self, RequestedReasoning};
use super::response::Settings;
use crate::calls::responses::item_format::ReasoningFormat;
use crate::calls::text::chat::ChatCall;
use crate::display::shorten;
use crate::engine::{GenerationDefaults, MAX_TOP_LOGPROBS, PromptOptions};
use crate::error::Result;
use crate::http::routes::sampling_fields::{CheckedSampling, with_sampling_fields, within};
use crate::http::routes::truncation::Truncation;
use crate::http::unknown_fields::unknown_names;
use crate::ids::{ConversationId, ResponseId};
use crate::service::responses::{Chain, check_metadata, previous_not_found};
use crate::service::validation::json_fields::invalid_field;
use crate::service::writes::precondition::IfMatch;

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
        /// A stored conversation, as an alternative to `previous_response_id`. Its transcript precedes the input; the input
        /// and the output are appended to it, even if `store` is false.
        conversation: Option<RequestedConversation>,
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
    /// The name of the model.
    pub fn model(&self) -> &str {
        &self.model
    }

    /// The response that this one continues.
    pub fn previous(&self) -> Result<Option<ResponseId>> {
        parse_previous(self.previous_response_id.as_deref())
    }

    /// The same request in a batch, which is in the background itself. Its response is not stored.
    pub fn for_batch(self) -> Self {
        Self { store: Some(false), background: None, ..self }
    }

    /// The items of the request. With a conversation, there may be none.
    pub fn items(&self) -> Result<Vec<Value>> {
        match &self.input {
            None | Some(Value::Null) if self.conversation.is_some() => Ok(Vec::new()),
            input => input::items(input.as_ref()),
        }
    }

    /// The conversation that this response continues.
    fn conversation(&self) -> Result<Option<ConversationId>> {
        if self.conversation.is_some() && self.previous_response_id.is_some() {
            let text = "and 'previous_response_id' are both given. Send one of them: a response continues a conversation or another response";
            return invalid_field("conversation", text);
        }
        self.conversation.as_ref().map(RequestedConversation::id).transpose()
    }

    /// Validates each field; the module `calls` checks what depends on the model. `items`: those of the request, in which
    /// references are replaced by what they refer to. `chain`: what the response continues. `if_match`: the expected version
    /// of the conversation. `defaults`: those of the model.
    pub fn check(
        mut self,
        items: Vec<Value>,
        chain: &Chain,
        if_match: Option<IfMatch>,
        defaults: &GenerationDefaults,
    ) -> Result<Checked> {
        self.refuse_unsupported()?;
        let max_tokens = self.max_output_tokens.map(|count| (count, "max_output_tokens"));
        let CheckedSampling { mut sampling, seed, stop, stream } = self.sampling_fields()?.check(max_tokens, false)?;
        sampling.fill_in(defaults);
        let logprobs = self.logprobs()?;
        let RequestedReasoning { variables, format } =
            reasoning::requested(self.reasoning.as_ref(), self.include.as_deref())?;
        let InputMessages { messages, context, mut ignored } = match self.conversation()? {
            Some(id) => {
                continuation::of_conversation((id, if_match), self.instructions.as_deref(), self.truncation, &items)?
            }
            None if if_match.is_some() => return Err(continuation::unused_if_match()),
            None => continuation::of_chain(chain, self.instructions.as_deref(), self.truncation, &items)?,
        };
        ignored.extend(unknown_names(&self.rest, |name, _| IGNORED.contains(&name)));
        let output = output::request(
            self.text.as_ref(),
            self.tools.as_deref().unwrap_or_default(),
            self.tool_choice.as_ref(),
            self.parallel_tool_calls,
            &mut ignored,
        )?;
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
            seed: seed.or(defaults.seed),
            stop,
            logprobs,
            prompt_logprobs: None,
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
        if self.background == Some(true) && self.conversation.is_some() {
            let text = "is true, but a response that continues a conversation cannot be generated in the background. Send previous_response_id instead of 'conversation'";
            return invalid_field("background", text);
        }
        if given(&self.prompt) {
            return invalid_field(
                "prompt",
                "is not supported by this server. Send the text of the prompt in 'instructions' or 'input'",
            );
        }
        Ok(())
    }

    /// Alternatives are asked for with either field.
    fn logprobs(&self) -> Result<Option<u8>> {
        let top = within("top_logprobs", self.top_logprobs.unwrap_or(0), 0, MAX_TOP_LOGPROBS.into())?;
        let is_included = self.include.iter().flatten().any(|name| name == LOGPROBS);
        Ok((is_included || top > 0).then(|| u8::try_from(top).unwrap_or(MAX_TOP_LOGPROBS)))
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
        let sampling = call.sampling.clone().resolve(0);
        check_metadata(&metadata.to_string())?;
        Ok(Settings {
            background: self.background == Some(true),
            conversation: call.context.conversation.map(|id| ConversationField { id: id.to_string() }),
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
            temperature: sampling.temperature,
            text: output::echoed_text(self.text),
            tool_choice: self.tool_choice.filter(|choice| !choice.is_null()).unwrap_or_else(|| json!("auto")),
            tools: output::echoed_tools(self.tools.unwrap_or_default()),
            top_logprobs: self.top_logprobs.unwrap_or(0),
            top_p: sampling.top_p,
            presence_penalty: sampling.presence_penalty,
            frequency_penalty: sampling.frequency_penalty,
            truncation: self.truncation.unwrap_or(Truncation::Disabled),
            user,
        })
    }
}

/// Parses the field `previous_response_id`.
pub fn parse_previous(id: Option<&str>) -> Result<Option<ResponseId>> {
    id.map(|text| text.parse().map_err(|_| previous_not_found(shorten(text)))).transpose()
}
