//! Conversations become prompts: the model's chat template, then its tokenizer.

use std::sync::Arc;

use minijinja::value::{Serde, Value};

use super::facts::ChatFacts;
use super::spec::Source;
use super::templates::Templates;
use crate::clock_rng::ClockRng;
use crate::engine::text::chat_template::{PromptError, Template};
use crate::engine::text::message::Message;
use crate::engine::text::tools::{Tool, Wording};
use crate::engine::tokenizer::{ChatTokenizer, Prompt, TokenBound};

/// A chat model's tokenizer and templates.
pub struct ChatPreprocessor {
    tokens: ChatTokenizer,
    plain: Prompting,
    /// For requests with tools, where the model has a template apart that shows how it calls.
    calling: Option<Prompting>,
}

/// A template, and how it is told of tools.
struct Prompting {
    template: Template,
    wording: Wording,
}

impl ChatPreprocessor {
    /// `rows` is the number of embeddings: no token may lie beyond.
    pub fn new(source: &Source, rows: usize, clock: &Arc<dyn ClockRng>) -> Result<(Self, ChatFacts), String> {
        let templates = match source {
            Source::Gguf(metadata) => Templates::of_gguf(metadata)?,
            Source::Folder(files) => Templates::of_folder(files)?,
        };
        let (tokens, vocabulary) = match source {
            Source::Gguf(metadata) => ChatTokenizer::of_gguf(metadata, rows, &templates.joined())?,
            Source::Folder(files) => ChatTokenizer::of_hub(files, rows, &templates.joined())?,
        };
        let prompting = |source: &str, wording| {
            let (bos, eos) = (vocabulary.text(vocabulary.bos), vocabulary.text(vocabulary.eos));
            let template = Template::new(source, bos, eos, Arc::clone(clock))?;
            Ok::<_, String>(Prompting { template, wording })
        };
        let plain = prompting(&templates.default, Wording::of(&templates.default))?;
        let calling = templates.calling().map(|(source, wording)| prompting(source, wording)).transpose()?;
        let call_format = calling.as_ref().unwrap_or(&plain).wording.format();
        Ok((Self { tokens, plain, calling }, ChatFacts { vocabulary, call_format }))
    }

    /// Renders the conversation up to where the answer begins. A long prompt is tokenised only as far as `bound` says.
    pub fn prompt(&self, messages: &[Message], tools: &[Tool], bound: &TokenBound) -> Result<Prompt, PromptError> {
        let rendered = match self.render(messages, tools, false) {
            // Some templates reject system messages. Merge the tool descriptions into another message then.
            Err(PromptError::Refused(_)) if !tools.is_empty() => self.render(messages, tools, true)?,
            rendered => rendered?,
        };
        let prompt = self.tokens.encode_prompt(&rendered, bound);
        if prompt.ids.is_empty() && prompt.complete {
            return Err(PromptError::Broken("it makes an empty prompt of these messages".to_owned()));
        }
        Ok(prompt)
    }

    /// Plain text as tokens: nothing in it is special, nothing is added.
    pub fn encode(&self, text: &str) -> Vec<u32> {
        self.tokens.encode(text)
    }

    fn render(&self, messages: &[Message], tools: &[Tool], merged: bool) -> Result<String, PromptError> {
        let calling = self.calling.as_ref().filter(|_| !tools.is_empty());
        let Prompting { template, wording } = calling.unwrap_or(&self.plain);
        let (messages, tools) = wording.arrange(messages, tools, merged);
        let safe = |values: Vec<serde_json::Value>| -> Vec<Value> {
            values.into_iter().map(|value| Value::from(Serde(self.safe(value)))).collect()
        };
        template.render(Value::from(safe(messages)), safe(tools))
    }

    /// The same value with every text of it made safe for the template: a name of a field, too.
    fn safe(&self, value: serde_json::Value) -> serde_json::Value {
        use serde_json::Value::{Array, Object, String};
        match value {
            String(text) => String(self.tokens.protect(&text)),
            Array(all) => all.into_iter().map(|one| self.safe(one)).collect(),
            Object(fields) => {
                fields.into_iter().map(|(name, one)| (self.tokens.protect(&name), self.safe(one))).collect()
            }
            plain => plain,
        }
    }
}
