//! Harmony, the format of gpt-oss: a turn consists of messages, each in a channel.
//!
//! `<|channel|>analysis<|message|>…<|end|><|start|>assistant<|channel|>final<|message|>…<|return|>`
//!
//! Messages in `analysis` are reasoning. Those in `final`, and those in `commentary` that have no recipient (preambles, which
//! announce calls), are text. A message to `functions.NAME` is a call. See
//! <https://github.com/openai/harmony/blob/main/docs/format.md>.
//!
//! Markers are recognized by the IDs of their tokens and never by their text, so a model can write about them. What the format
//! does not foresee is kept: a message without a channel or in an unknown one is text, as is output without any marker, which
//! gpt-oss sometimes writes when it is asked for nothing but JSON. A message to a tool that the request does not have is
//! reasoning, because it is not meant for the user: gpt-oss was trained to call `browser` and `python`, and does so unasked.
//!
//! The grammar of a request governs the whole output, and not only the answer: it knows the channels and leaves the reasoning
//! free. So a request with a schema or with tools cannot end without an answer or a call.

mod parser;

use crate::tokenizer::Vocabulary;
use crate::tokenizer::harmony::HarmonyTokens;
pub use parser::{AllowedTokens, HarmonyParser};

/// The role of the messages that a model writes.
const ASSISTANT: &str = "assistant";
/// The channel of reasoning.
const ANALYSIS: &str = "analysis";

/// The tokens with which a model writes this format.
#[derive(Clone, Debug)]
pub struct HarmonySyntax {
    tokens: HarmonyTokens,
    /// Tokens that are a part of [`ASSISTANT`], with their texts.
    role_parts: Vec<(u32, String)>,
    /// Tokens with which the name of the channel of reasoning may begin.
    analysis_beginnings: Vec<u32>,
}

impl HarmonySyntax {
    /// `None`: the vocabulary lacks the tokens of the format.
    pub fn of(vocabulary: &Vocabulary) -> Option<Self> {
        let tokens = HarmonyTokens::of(vocabulary)?;
        let ids = 0..u32::try_from(vocabulary.len()).unwrap_or(u32::MAX);
        let texts = ids.filter(|id| !vocabulary.is_control(*id)).filter_map(|id| {
            let text = std::str::from_utf8(vocabulary.bytes(id)).ok()?;
            (!text.is_empty()).then_some((id, text))
        });
        let (mut role_parts, mut analysis_beginnings) = (Vec::new(), Vec::new());
        for (id, text) in texts {
            if ASSISTANT.contains(text) {
                role_parts.push((id, text.to_owned()));
            }
            let name = text.trim_start();
            if ANALYSIS.starts_with(name) || name.starts_with(ANALYSIS) {
                analysis_beginnings.push(id);
            }
        }
        Some(Self { tokens, role_parts, analysis_beginnings })
    }

    /// True if this token is a marker.
    pub fn is_marker(&self, id: u32) -> bool {
        self.tokens.all().contains(&id)
    }

    /// The tokens after the role of a prompt's last message, up to the one before its content, if the prompt ends within that
    /// message.
    pub fn open_header<'a>(&self, prompt: &'a [u32]) -> &'a [u32] {
        let message = self.last_message(prompt);
        if message.iter().any(|id| [self.tokens.end, self.tokens.call, self.tokens.ret].contains(id)) {
            return &[];
        }
        let first = message.iter().position(|id| self.is_marker(*id)).unwrap_or(message.len());
        let last = message.iter().position(|id| *id == self.tokens.message).map_or(message.len(), |at| at + 1);
        message.get(first..last).unwrap_or_default()
    }

    /// The last message of a prompt, after the token with which it starts; empty if there is none.
    fn last_message<'a>(&self, prompt: &'a [u32]) -> &'a [u32] {
        let start = prompt.iter().rposition(|id| *id == self.tokens.start);
        start.and_then(|start| prompt.get(start + 1..)).unwrap_or_default()
    }
}
