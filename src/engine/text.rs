//! A loaded chat model: the network, its tokenizer and its template.

use std::collections::BTreeMap;
use std::sync::Arc;

use minijinja::value::Value;
use outpost_kernels::Pool;

use super::budget::Lease;
use super::checkpoint::Checkpoint;
use super::schedule::ModelId;
use super::template::{PromptError, Template};
use super::tokens::Tokens;
use crate::ambient::Ambient;
use crate::models::kv::{KvShape, KvType};
use crate::models::llama::Llama;

/// One message of a conversation, as the template sees it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Message {
    pub role: String,
    pub content: String,
    pub name: Option<String>,
}

pub struct TextModel {
    id: String,
    /// Tells this load from every other.
    pub(super) key: ModelId,
    pub(super) network: Llama,
    pub(super) tokens: Tokens,
    template: Template,
    /// The weights' share of the memory budget, given back with the model.
    pub(super) lease: Lease,
}

impl TextModel {
    pub(super) fn open(
        id: &str,
        key: ModelId,
        checkpoint: &Checkpoint,
        lease: Lease,
        pool: Arc<Pool>,
        ambient: Arc<dyn Ambient>,
    ) -> Result<Self, String> {
        let hyper = checkpoint.weights().hyper().map_err(|error| error.to_string())?;
        let source = checkpoint.template()?;
        let tokens = checkpoint.tokens(hyper.vocabulary, &source)?;
        let template = Template::new(&source, tokens.text(tokens.bos), tokens.text(tokens.eos), ambient)?;
        let network = Llama::load(checkpoint.weights(), pool).map_err(|error| error.to_string())?;
        Ok(Self { id: id.to_owned(), key, network, tokens, template, lease })
    }

    pub fn id(&self) -> &str {
        &self.id
    }

    /// Positions that prompt and answer share.
    pub fn context_window(&self) -> u32 {
        u32::try_from(self.network.hyper().context).unwrap_or(u32::MAX)
    }

    /// How many tokens have a text; ids are below this.
    pub fn vocabulary(&self) -> usize {
        self.tokens.len()
    }

    /// Renders the conversation with the model's own template, up to where the answer begins.
    /// Takes time in proportion to its length: not for an async thread.
    pub fn prompt(&self, messages: &[Message]) -> Result<Vec<u32>, PromptError> {
        let rendered = self.template.render(messages.iter().map(|message| self.value(message)).collect())?;
        let ids = self.tokens.encode_prompt(&rendered);
        if ids.is_empty() {
            return Err(PromptError::Broken("it makes an empty prompt of these messages".to_owned()));
        }
        Ok(ids)
    }

    fn value(&self, message: &Message) -> Value {
        let safe = |text: &str| Value::from(self.tokens.protect(text));
        let name = message.name.as_ref().map(|name| ("name", safe(name)));
        let fields = [("role", safe(&message.role)), ("content", safe(&message.content))];
        Value::from(fields.into_iter().chain(name).collect::<BTreeMap<_, _>>())
    }

    /// Plain text as tokens: nothing in it is special, nothing is added.
    pub fn encode(&self, text: &str) -> Vec<u32> {
        self.tokens.encode(text)
    }

    /// The bytes that a token stands for; empty for an id without a token.
    pub fn token_bytes(&self, id: u32) -> &[u8] {
        self.tokens.bytes(id)
    }

    /// The sizes of its keys and values.
    pub(super) fn kv_shape(&self, kind: KvType) -> KvShape {
        self.network.kv_shape(kind)
    }
}

impl std::fmt::Debug for TextModel {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("TextModel").field("id", &self.id).finish_non_exhaustive()
    }
}
