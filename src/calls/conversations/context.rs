//! The context of a chat in addition to its messages: an agent's settings and a stored conversation.

use std::sync::Arc;

use crate::calls::conversations::persist_turn::TurnRecorder;
use crate::calls::conversations::truncation::{self, FittedPrompt, PromptParts, TokenBudget, default_reserve};
use crate::calls::output_format::output_spec::ToolCallIds;
use crate::calls::prompt::message_joining::{join_parts, last_turn};
use crate::calls::prompt::messages;
use crate::calls::prompt::text_input::check_ids;
use crate::calls::text::dialect::Dialect;
use crate::content::Message;
use crate::engine::{PromptOptions, TextModel, TokenIds, Tool};
use crate::error::{Code, Error, Result};
use crate::ids::{AgentId, ConversationId};
use crate::service::access::Access;
use crate::service::agents::Agents;
use crate::service::conversations::{Conversation, Conversations, Transcript};
use crate::service::validation::message_validation::{self, UnknownFields};
use crate::service::writes::precondition::IfMatch;

/// The field with the tokens that a request continues.
pub const CONTINUED: &str = "context";

/// Loads agents and conversations.
#[derive(Clone)]
pub struct ConversationContextLoader {
    pub conversations: Conversations,
    pub agents: Agents,
}

/// The agent and conversation that a request names.
#[derive(Default)]
pub struct ConversationContextRequest {
    pub conversation: Option<ConversationId>,
    pub agent: Option<AgentId>,
    /// The system prompt before the conversation, instead of the agent's. It is not stored.
    pub instructions: Option<String>,
    /// Whether the oldest turns may be left out; absent: the agent's setting, else no.
    pub truncate: Option<bool>,
    /// The expected version of the conversation.
    pub if_match: Option<IfMatch>,
    /// The JSON of the request's messages, to be stored in the conversation.
    pub sent: Vec<String>,
    /// Without a conversation: messages before those of the request, the oldest turns of which may be left out.
    pub history: Vec<Message>,
    /// Tokens of an earlier prompt and its completion, which the messages continue.
    pub continued: Vec<u32>,
    /// The tokens that the prompt may have. If the oldest turns may be left out, a prompt whose last turn alone is longer is
    /// not refused.
    pub max_prompt_tokens: Option<u32>,
}

/// The loaded context.
pub(in crate::calls) struct ConversationContext {
    pub model: String,
    /// The agent's tools: a JSON array, as text.
    pub tools: Option<String>,
    instructions: Option<String>,
    /// Whether the oldest turns may be left out.
    truncate: bool,
    transcript: Option<Transcript>,
    history: Vec<Message>,
    last_messages: Option<u32>,
    continued: Vec<u32>,
    max_prompt_tokens: Option<u32>,
    /// The system prompt of the model's settings, for prompts that have none.
    pub default_system: Option<Arc<str>>,
}

impl ConversationContextLoader {
    /// Loads what the request names. The request's own model and settings take precedence over the agent's.
    pub(in crate::calls) async fn load(
        &self,
        access: &Access,
        model: Option<String>,
        request: &mut ConversationContextRequest,
    ) -> Result<ConversationContext> {
        let agent = match request.agent {
            Some(id) => Some(self.agents.get_for_chat(access, id).await?),
            None => None,
        };
        let transcript = match request.conversation {
            Some(id) => {
                Some(self.conversations.get_for_chat(access, id, request.if_match.take(), request.sent.len()).await?)
            }
            None => None,
        };
        let (of_agent, instructions, tools, memory) = match agent {
            Some(agent) => {
                let fields = agent.fields;
                (fields.model, fields.instructions, fields.tools, fields.memory.unwrap_or_default())
            }
            None => Default::default(),
        };
        Ok(ConversationContext {
            model: model.or(of_agent).ok_or_else(no_model)?,
            tools,
            instructions: request.instructions.take().or(instructions),
            truncate: request.truncate.or(memory.truncate).unwrap_or(false),
            transcript,
            history: std::mem::take(&mut request.history),
            last_messages: memory.last_messages,
            continued: std::mem::take(&mut request.continued),
            max_prompt_tokens: request.max_prompt_tokens,
            default_system: None,
        })
    }

    /// The recorder that stores the request and its completion in the conversation.
    pub(in crate::calls) fn turn_recorder(
        &self,
        access: &Access,
        conversation: Option<Conversation>,
        sent: Vec<String>,
        ids: ToolCallIds,
    ) -> TurnRecorder {
        let turn_recorder =
            |conversation| TurnRecorder::new(self.conversations.clone(), access.clone(), conversation, sent, ids);
        conversation.map_or_else(TurnRecorder::disabled, turn_recorder)
    }
}

impl ConversationContext {
    /// The conversation as it was loaded.
    pub fn conversation(&self) -> Option<Conversation> {
        self.transcript.as_ref().map(|transcript| transcript.conversation.clone())
    }

    /// True if the turn is stored in a conversation.
    pub fn is_stored(&self) -> bool {
        self.transcript.is_some()
    }

    /// Bytes of the messages before those of the request.
    pub fn bytes(&self) -> usize {
        let stored: usize =
            self.transcript.as_ref().map_or(0, |transcript| transcript.messages.iter().map(String::len).sum());
        let system = self.default_system.as_ref().map_or(0, |text| text.len());
        stored + system + self.history.iter().map(Message::bytes).sum::<usize>()
    }

    /// Renders and tokenises the whole prompt. Takes time in proportion to its length.
    pub fn prompt(
        mut self,
        model: &TextModel,
        own: Vec<Message>,
        (tools, options): (Arc<[Tool]>, PromptOptions),
        dialect: &Dialect,
        budget: TokenBudget,
    ) -> Result<FittedPrompt> {
        let (continued, max_prompt) = (std::mem::take(&mut self.continued), self.max_prompt_tokens);
        let is_strict = !self.truncate;
        let limit = if dialect.limits_reserve { default_reserve(budget.window) } else { u32::MAX };
        let max_tokens = budget.max_tokens.map(|count| count.min(limit));
        let budget = TokenBudget { max_prompt, max_tokens, ..budget };
        let (parts, may_drop) = self.parts(own, (tools, options), dialect)?;
        let fitted = match () {
            () if !continued.is_empty() => {
                check_ids(model.id(), model.vocabulary(), &continued, CONTINUED)?;
                truncation::continuing(model, parts, continued, &budget)?
            }
            () if may_drop => truncation::truncated(model, parts, &budget)?,
            () => truncation::untruncated(model, parts, &budget)?,
        };
        match max_prompt {
            Some(limit) if is_strict && fitted.prompt.ids.len() > limit as usize => {
                Err(longer_than_allowed(&fitted.prompt, limit, dialect))
            }
            _ => Ok(fitted),
        }
    }

    /// True if it continues tokens of an earlier prompt.
    pub fn has_tokens(&self) -> bool {
        !self.continued.is_empty()
    }

    /// The parts of the prompt, and whether the oldest turns may be left out.
    pub fn parts(
        self,
        mut own: Vec<Message>,
        (tools, options): (Arc<[Tool]>, PromptOptions),
        dialect: &Dialect,
    ) -> Result<(PromptParts, bool)> {
        let instructions = self.instructions.filter(|text| !text.is_empty());
        let mut system = instructions.map(|content| Message::new("system", content));
        let may_drop = self.truncate && (self.transcript.is_some() || !self.history.is_empty());
        let mut history = self.transcript.as_ref().map_or(Ok(self.history), stored_messages)?;
        let has_system = || system.is_some() || history.iter().chain(&own).any(|message| message.role == "system");
        if let Some(text) = self.default_system.filter(|_| !has_system()) {
            system = Some(Message::new("system", &*text));
        }
        messages::check_tool_results(&history, &own, dialect)?;
        if history.is_empty() && own.is_empty() {
            return Err(no_messages(dialect.prompt));
        }
        if dialect.joins_messages {
            history.splice(..0, system.take());
            (history, own) = join_parts(history, own);
        }
        if own.first().is_none_or(|message| message.tool_call_id.is_some()) {
            // Tool results belong to the turn that called the tools, which must not be left out.
            own.splice(..0, history.split_off(last_turn(&history)));
        }
        let history = truncation::last_messages(history, self.last_messages);
        Ok((PromptParts { system, history, own, tools, options }, may_drop))
    }
}

fn stored_messages(transcript: &Transcript) -> Result<Vec<Message>> {
    let parse_message = |(index, json): (usize, &String)| {
        let field = format!("messages[{index}]");
        let turn = message_validation::parse(&field, json, UnknownFields::Ignore)
            .and_then(|message| messages::to_message(&field, &message));
        turn.map_err(|error| {
            let id = transcript.conversation.id;
            let text = format!("In the conversation '{id}', {}", error.message());
            Error::invalid("conversation_id", text)
        })
    };
    transcript.messages.iter().enumerate().map(parse_message).collect()
}

/// The error for a prompt that is longer than the request allows.
fn longer_than_allowed(prompt: &TokenIds, limit: u32, dialect: &Dialect) -> Error {
    let (field, at_least) = (dialect.prompt, if prompt.complete { "" } else { "at least " });
    let text = format!(
        "The prompt has {at_least}{} tokens, but the request allows {limit}. Shorten the {field}, or let the server leave out the oldest turns.",
        prompt.ids.len()
    );
    Error::new(Code::ContextLengthExceeded, text).param(field)
}

/// The error for a prompt without messages.
fn no_messages(field: &str) -> Error {
    let text = format!("'{field}' has no message, and neither does the conversation. Send at least one message.");
    Error::invalid(field, text)
}

/// The error for a request without a model.
pub fn no_model() -> Error {
    let text = "'model' is missing. Name an installed model; GET /v1/models lists them. With 'agent_id' it may be left out if the agent has one.";
    Error::invalid("model", text)
}
