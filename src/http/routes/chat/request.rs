//! OpenAI's chat request. Every field is supported, ignored because it cannot change the result, or rejected by name.
//!
//! A misspelled `temperature` that is silently ignored can cost its user hours. Unknown query parameters are ignored,
//! because clients add their own, such as Codex's `client_version`.

use serde::Deserialize;
use serde_json::{Map, Value, value::RawValue};

use super::conversation_fields;
use super::guided_output::GuidedFields;
use super::output_format::{self, ResponseFormat, ToolChoice};
use crate::calls::conversations::context::no_model;
use crate::calls::prompt::messages;
use crate::calls::text::chat::ChatCall;
use crate::content;
use crate::engine::{MAX_CHOICES, MAX_TOP_LOGPROBS, PromptOptions};
use crate::error::{Error, Result};
use crate::http::routes::foreign_fields::left_out;
use crate::http::routes::message_schema::{self, Message};
use crate::http::routes::prompt_fields::PromptFields;
use crate::http::routes::prompt_logprobs;
use crate::http::routes::sampling_fields::{
    CheckedSampling, StreamOptions, check_logprobs, limit, with_sampling_fields, within,
};
use crate::http::routes::truncation::Truncation;
use crate::http::unknown_fields::UnknownFields;
use crate::service::chat_completions::check_metadata;
use crate::service::writes::precondition::IfMatch;

with_sampling_fields! {
    #[derive(Deserialize, utoipa::ToSchema)]
    pub struct ChatRequest {
        /// Id of an installed model. May be absent with an agent that has one.
        model: Option<String>,
        /// The conversation so far, in order; with `conversation_id`, the messages after the stored transcript.
        #[schema(value_type = Vec<Message>)]
        messages: Vec<Box<RawValue>>,
        /// A stored conversation. Its transcript precedes `messages`; after a successful response, `messages` and the
        /// response are appended to it. Only with `n: 1`.
        conversation_id: Option<String>,
        /// An agent, whose instructions, model and memory settings apply.
        agent_id: Option<String>,
        /// What happens if the conversation is too long; absent: the agent's setting, else `disabled`.
        truncation: Option<Truncation>,
        /// Number of choices, 1–128; fewer with `top_logprobs`: `n` × (`top_logprobs` + 1) may be 336.
        n: Option<u32>,
        /// Whether the completion is stored for 30 days, with the messages of the request; false if absent.
        store: Option<bool>,
        /// Application-defined metadata of a stored completion, at most 16 KiB.
        #[schema(value_type = Option<Object>)]
        metadata: Option<Value>,
        /// Up to the end of the context if it is absent or -1. 0 only with `prompt_logprobs`.
        max_completion_tokens: Option<i64>,
        /// The deprecated name of `max_completion_tokens`.
        max_tokens: Option<i64>,
        logprobs: Option<bool>,
        /// 0–20; needs `logprobs: true`.
        top_logprobs: Option<u32>,
        /// Log-probabilities of the prompt's tokens and of so many alternatives each, 0–20. Not with `stream`.
        prompt_logprobs: Option<i64>,
        /// Format of the output, enforced during generation.
        #[schema(value_type = Option<ResponseFormat>)]
        response_format: Option<Value>,
        /// JSON schema of the text, as an object or as a string. This field and the next eight are alternatives to
        /// `response_format`.
        #[schema(value_type = Option<Object>)]
        guided_json: Option<Value>,
        /// Regular expression that matches the whole text.
        guided_regex: Option<String>,
        /// The texts to choose from, at most 1,024.
        guided_choice: Option<Vec<String>>,
        /// Grammar of the text, in Lark or GBNF; also as `grammar`.
        guided_grammar: Option<String>,
        grammar: Option<String>,
        /// One of `json`, `json_object`, `regex`, `choice` and `grammar`.
        #[schema(value_type = Option<Object>)]
        structured_outputs: Option<Map<String, Value>>,
        /// JSON schema of the text, as llama.cpp and SGLang name it.
        #[schema(value_type = Option<Object>)]
        json_schema: Option<Value>,
        /// Regular expression and grammar, as SGLang names them.
        regex: Option<String>,
        ebnf: Option<String>,
        /// Function tools, at most 128; absent: the agent's. Arguments of calls always match their schemas.
        #[schema(value_type = Option<Vec<output_format::FunctionTool>>)]
        tools: Option<Box<RawValue>>,
        /// `auto` if absent.
        #[schema(value_type = Option<ToolChoice>)]
        tool_choice: Option<Value>,
        /// Whether one response may contain several calls; true if absent.
        parallel_tool_calls: Option<bool>,
        /// `none`, `minimal`, `low`, `medium`, `high`, `xhigh` or `max`: a variable of the chat template. `none` sets
        /// `enable_thinking` to false, the others to true.
        reasoning_effort: Option<String>,
        /// Whether the model reasons before it answers, if its chat template knows this variable.
        enable_thinking: Option<bool>,
        /// Max tokens of the reasoning; then the answer begins.
        #[serde(alias = "thinking_budget", alias = "thinking_token_budget")]
        max_reasoning_tokens: Option<u32>,
        /// Whether the response has the reasoning; true if absent. The model reasons in any case.
        include_reasoning: Option<bool>,
        /// Further variables of the chat template.
        #[schema(value_type = Option<Object>)]
        chat_template_kwargs: Option<Map<String, Value>>,
        /// Whether the beginning of the assistant's message follows the last message; true if absent.
        add_generation_prompt: Option<bool>,
        /// Whether the model continues the last message, one of the assistant, instead of beginning another.
        continue_final_message: Option<bool>,
    }
}

/// What is stored with a completion.
pub struct Storing {
    /// The JSON of each message of the request.
    pub messages: Vec<String>,
    /// A JSON object, if there is one.
    pub metadata: Option<String>,
}

impl Storing {
    fn new(messages: &[String], metadata: Option<Value>) -> Result<Self> {
        let metadata = metadata.map(|metadata| metadata.to_string());
        check_metadata(metadata.as_deref())?;
        Ok(Self { messages: messages.to_vec(), metadata })
    }

    /// Bytes of the messages.
    pub fn bytes(&self) -> u64 {
        self.messages.iter().map(|message| message.len() as u64).sum()
    }
}

/// A validated request.
pub struct CheckedRequest {
    pub call: ChatCall,
    /// What is stored with the completion; `None` if it is not stored.
    pub storing: Option<Storing>,
    /// Stream options; `None` if not streaming.
    pub stream: Option<StreamOptions>,
    /// Whether the response has the reasoning.
    pub includes_reasoning: bool,
    /// The fields that are left out.
    pub ignored: Vec<String>,
}

impl ChatRequest {
    /// Validates each field; the module `calls` checks what depends on the model.
    pub fn check(mut self, if_match: Option<IfMatch>, unknown: UnknownFields) -> Result<CheckedRequest> {
        let ignored = left_out::<Self>(unknown, &self.rest, self.stream_options.as_ref(), is_idle)?;
        let max_tokens = self.max_tokens()?;
        let CheckedSampling { sampling, seed, stop, stream } =
            self.sampling_fields()?.check(max_tokens, self.prompt_logprobs.is_some())?;
        let choices = self.n.unwrap_or(1);
        within("n", choices, 1, MAX_CHOICES)?;
        let logprobs = self.logprobs()?;
        let prompt_logprobs = prompt_logprobs::check(self.prompt_logprobs, stream.is_some())?;
        check_logprobs(choices, "top_logprobs", logprobs)?;
        let guided = GuidedFields {
            guided_json: self.guided_json.take(),
            guided_regex: self.guided_regex.take(),
            guided_choice: self.guided_choice.take(),
            guided_grammar: self.guided_grammar.take(),
            grammar: self.grammar.take(),
            structured_outputs: self.structured_outputs.take(),
            json_schema: self.json_schema.take(),
            regex: self.regex.take(),
            ebnf: self.ebnf.take(),
        };
        let output = output_format::output_request(
            self.response_format.as_ref(),
            guided,
            self.tools.as_deref(),
            self.tool_choice.as_ref(),
            self.parallel_tool_calls,
        )?;
        let sent = message_schema::to_json(&self.messages);
        let messages = messages::parse(&sent, self.conversation_id.is_some())?;
        let storing = match self.store {
            Some(true) => Some(Storing::new(&sent, self.metadata.take())?),
            _ => None,
        };
        let prompt = self.prompt(messages.last())?;
        let named = conversation_fields::ConversationFields {
            conversation: self.conversation_id,
            agent: self.agent_id,
            truncation: self.truncation,
        };
        let context = named.check(sent, choices, if_match)?;
        if self.model.is_none() && context.agent.is_none() {
            return Err(no_model());
        }
        let call = ChatCall {
            model: self.model,
            messages,
            context,
            prompt,
            max_reasoning_tokens: self.max_reasoning_tokens,
            output,
            choices,
            max_tokens,
            sampling,
            seed,
            stop,
            logprobs,
            prompt_logprobs,
        };
        let includes_reasoning = self.include_reasoning != Some(false);
        Ok(CheckedRequest { call, storing, stream, includes_reasoning, ignored })
    }

    fn prompt(&mut self, last: Option<&content::Message>) -> Result<PromptOptions> {
        if self.continue_final_message == Some(true) && self.conversation_id.is_some() {
            let text = "'continue_final_message' is not supported with conversation_id: the conversation would have the message in two parts.";
            return Err(Error::invalid("continue_final_message", text));
        }
        let fields = PromptFields {
            add_generation_prompt: self.add_generation_prompt,
            continue_final_message: self.continue_final_message,
            chat_template_kwargs: self.chat_template_kwargs.take(),
            enable_thinking: self.enable_thinking,
            reasoning_effort: self.reasoning_effort.take(),
        };
        fields.check(last)
    }

    fn max_tokens(&self) -> Result<Option<(u32, &'static str)>> {
        let newer = limit("max_completion_tokens", self.max_completion_tokens)?;
        let older = limit("max_tokens", self.max_tokens)?;
        if let (Some((newer, field)), Some((older, _))) = (newer, older)
            && newer != older
        {
            let message = format!("'max_completion_tokens' is {newer} but 'max_tokens' is {older}. Send one of them.");
            return Err(Error::invalid(field, message));
        }
        Ok(newer.or(older))
    }

    fn logprobs(&self) -> Result<Option<u8>> {
        let top = within("top_logprobs", self.top_logprobs.unwrap_or(0), 0, MAX_TOP_LOGPROBS.into())?;
        let top = u8::try_from(top).unwrap_or(MAX_TOP_LOGPROBS);
        match (self.logprobs.unwrap_or(false), self.top_logprobs) {
            (true, _) => Ok(Some(top)),
            (false, None | Some(0)) => Ok(None),
            (false, Some(_)) => Err(Error::invalid("top_logprobs", "'top_logprobs' requires logprobs: true.")),
        }
    }
}

/// Whether a field of OpenAI's API with this value asks for nothing that this server does not do.
fn is_idle(name: &str, value: &Value) -> bool {
    match name {
        "functions" => value.as_array().is_some_and(Vec::is_empty),
        "function_call" => matches!(value.as_str(), Some("none" | "auto")),
        "modalities" => value.as_array().is_some_and(|kinds| kinds.iter().all(|kind| kind == "text")),
        _ => false,
    }
}
