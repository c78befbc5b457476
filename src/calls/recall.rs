//! What a chat draws on beside its own messages: an agent's settings and a stored conversation.

use super::fit::{self, Fitted};
use super::keep::Keeping;
use super::turns;
use crate::engine::{Message, TextModel};
use crate::error::{Error, Result};
use crate::ids::{AgentId, ConversationId};
use crate::service::access::Access;
use crate::service::agents::{Agent, Agents};
use crate::service::conversations::{Conversation, Conversations, Transcript};
use crate::service::transcript::{self, Unknown};
use crate::service::version::IfMatch;

/// Where agents and conversations are found.
#[derive(Clone)]
pub struct Recall {
    pub conversations: Conversations,
    pub agents: Agents,
}

/// What a request names of them.
#[derive(Default)]
pub struct Recalling {
    pub conversation: Option<ConversationId>,
    pub agent: Option<AgentId>,
    /// Whether the oldest turns may be left out; absent: as the agent says, else not.
    pub truncate: Option<bool>,
    /// The request says `tool_choice: "none"`.
    pub without_tools: bool,
    /// What the conversation's version must be.
    pub if_match: Option<IfMatch>,
    /// The request's messages as they were sent, to be kept in the conversation.
    pub sent: Vec<String>,
}

/// What was found.
pub(super) struct Recalled {
    pub model: String,
    instructions: Option<String>,
    /// Whether the oldest turns may be left out.
    truncate: bool,
    transcript: Option<Transcript>,
    last_messages: Option<u32>,
}

impl Recall {
    /// Loads what the request names. The request's own model and settings win over the agent's.
    pub(super) async fn load(&self, access: &Access, model: Option<String>, asked: &mut Recalling) -> Result<Recalled> {
        let agent = match asked.agent {
            Some(id) => Some(self.agents.recall(access, id).await?),
            None => None,
        };
        if let Some(agent) = &agent {
            refuse_tools(agent, asked.without_tools)?;
        }
        let transcript = match asked.conversation {
            Some(id) => Some(self.conversations.recall(access, id, asked.if_match.take(), asked.sent.len()).await?),
            None => None,
        };
        let (of_agent, instructions, memory) = match agent {
            Some(agent) => (agent.model, agent.instructions, agent.memory.unwrap_or_default()),
            None => Default::default(),
        };
        Ok(Recalled {
            model: model.or(of_agent).ok_or_else(no_model)?,
            instructions,
            truncate: asked.truncate.or(memory.truncate).unwrap_or(false),
            transcript,
            last_messages: memory.last_messages,
        })
    }

    /// What puts the request and its answer into the conversation once the answer has ended well.
    pub(super) fn keeping(&self, access: &Access, conversation: Option<Conversation>, sent: Vec<String>) -> Keeping {
        conversation
            .map_or_else(Keeping::nothing, |seen| Keeping::new(self.conversations.clone(), access.clone(), seen, sent))
    }
}

impl Recalled {
    /// The conversation as it was found.
    pub fn conversation(&self) -> Option<Conversation> {
        self.transcript.as_ref().map(|transcript| transcript.conversation.clone())
    }

    /// Renders and tokenises everything together. Takes time in proportion to its length.
    pub fn prompt(self, model: &TextModel, own: Vec<Message>, wanted: Option<u32>) -> Result<Fitted> {
        let instructions = self.instructions.filter(|text| !text.is_empty());
        let system = instructions.map(|content| Message { role: "system".to_owned(), content, name: None });
        let history = match &self.transcript {
            Some(transcript) => fit::last(stored_turns(transcript)?, self.last_messages),
            None => Vec::new(),
        };
        let may_drop = self.truncate && self.transcript.is_some();
        let parts = fit::Parts { system, history, own };
        if may_drop { fit::truncated(model, parts, wanted) } else { fit::whole(model, parts) }
    }
}

fn stored_turns(transcript: &Transcript) -> Result<Vec<Message>> {
    let one = |(at, json): (usize, &String)| {
        let field = format!("messages[{at}]");
        let turn = transcript::read(&field, json, Unknown::Ignored).and_then(|message| turns::turn(&field, &message));
        turn.map_err(|error| {
            let id = transcript.conversation.id;
            let text = format!("In the conversation '{id}', {}", error.message());
            Error::invalid("conversation_id", text)
        })
    };
    transcript.messages.iter().enumerate().map(one).collect()
}

/// Tools that nobody can call must not be promised to a model, nor silently be left out.
fn refuse_tools(agent: &Agent, without_tools: bool) -> Result<()> {
    if agent.tools.is_none() || without_tools {
        return Ok(());
    }
    let text = format!(
        "The agent '{}' has tools, and this server cannot call tools yet. Send tool_choice: \"none\" to chat without them, or use an agent that has none.",
        agent.id
    );
    Err(Error::invalid("agent_id", text))
}

/// The error for a request from which no model follows.
pub fn no_model() -> Error {
    let text = "'model' is missing. Name an installed model; GET /v1/models lists them. With 'agent_id' it may be left out if the agent has one.";
    Error::invalid("model", text)
}
