//! Reasoning: what a model writes between two markers before its answer.
//!
//! Reasoning is split token by token in the engine, before tool calls and stop strings are looked for. Only there is it
//! known which token closes it, which is where the grammar begins and which token is forced at the limit. A parser of
//! the finished text could do neither.
//!
//! The end of the prompt decides how the output begins, not the values of the template's variables. Templates open or
//! close the reasoning in the prompt, or leave it to the model; the end is right for every template, and for texts that
//! a client begins itself.
//!
//! At the limit, the closing marker is forced without a sentence that announces it. Some models were trained with such
//! a sentence, each with another one, and they answer after the marker alone.

mod parser;

use serde::{Deserialize, Serialize};

use crate::tokenizer::Vocabulary;
pub use parser::{ReasoningParser, Split};

/// The markers of model families, opening and closing.
const MARKERS: [(&str, &str); 6] = [
    // DeepSeek R1, GLM 4.5, Phi 4 reasoning, Qwen 3, QwQ, SmolLM 3.
    ("<think>", "</think>"),
    // Magistral.
    ("[THINK]", "[/THINK]"),
    // Seed-OSS.
    ("<seed:think>", "</seed:think>"),
    // EXAONE Deep.
    ("<thought>", "</thought>"),
    // Command A Reasoning.
    ("<|START_THINKING|>", "<|END_THINKING|>"),
    // Gemma 4.
    (GEMMA, "<channel|>"),
];

/// The opening marker of Gemma 4, and what follows it: the name of the channel.
const GEMMA: &str = "<|channel>";
const GEMMA_LABEL: &str = "thought\n";

/// Templates of models that write [channels](crate::text::harmony) show the one of reasoning.
const HARMONY: &str = "<|channel|>analysis";

/// The tokens at the end of a prompt in which a marker is looked for.
const TAIL_TOKENS: usize = 32;

/// The markers of a model's reasoning.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReasoningSyntax {
    pub opening: String,
    /// What follows the opening marker and is no part of the reasoning.
    pub label: String,
    pub closing: String,
    /// The token of the opening marker, if it is one token.
    pub opening_id: Option<u32>,
    /// The tokens of the closing marker.
    pub closing_ids: Vec<u32>,
}

/// The reasoning of a request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ReasoningRequest {
    /// Set if the prompt ends within reasoning. Otherwise the model may begin it.
    pub is_open: bool,
    /// Max tokens of the reasoning; then it is closed.
    pub max_tokens: Option<u32>,
}

/// The state of the reasoning at the end of a prompt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PromptReasoning {
    /// Before it: the model may begin to reason.
    Before,
    /// Within it.
    Open,
    /// After it: the model answers at once.
    Closed,
}

/// True if a chat template contains the markers of reasoning.
pub fn is_in_template(template: &str) -> bool {
    MARKERS.iter().any(|(_, closing)| template.contains(closing)) || template.contains(HARMONY)
}

impl ReasoningSyntax {
    /// The markers that occur in the template, or that are tokens of the vocabulary. `encode`: tokenises plain text.
    pub fn detect(template: &str, vocabulary: &Vocabulary, encode: impl Fn(&str) -> Vec<u32>) -> Option<Self> {
        let is_known = |&&(opening, closing): &&(&str, &str)| {
            template.contains(closing) || vocabulary.id_of(opening).is_some() && vocabulary.id_of(closing).is_some()
        };
        let (opening, closing) = *MARKERS.iter().find(is_known)?;
        let closing_ids = vocabulary.id_of(closing).map_or_else(|| encode(closing), |id| vec![id]);
        Some(Self {
            opening: opening.to_owned(),
            label: if opening == GEMMA { GEMMA_LABEL.to_owned() } else { String::new() },
            closing: closing.to_owned(),
            opening_id: vocabulary.id_of(opening),
            closing_ids,
        })
    }

    /// The state of the reasoning at the end of a prompt: some templates begin the reasoning themselves, or close it at
    /// once.
    pub fn at_end_of(&self, prompt: &[u32], vocabulary: &Vocabulary) -> PromptReasoning {
        let tail = prompt.get(prompt.len().saturating_sub(TAIL_TOKENS)..).unwrap_or_default();
        let bytes: Vec<u8> = tail.iter().flat_map(|id| vocabulary.bytes(*id)).copied().collect();
        let text = String::from_utf8_lossy(&bytes);
        let text = text.trim_end();
        if text.ends_with(self.closing.as_str()) {
            PromptReasoning::Closed
        } else if text.strip_suffix(self.label.trim_end()).unwrap_or(text).ends_with(self.opening.as_str()) {
            PromptReasoning::Open
        } else {
            PromptReasoning::Before
        }
    }
}
