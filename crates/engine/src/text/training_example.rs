//! Examples that a model is trained with.

use serde::{Deserialize, Serialize};

use super::tools::Tool;
use outpost_content::Message;
use outpost_models::training::TrainingText;

/// What a model learns from.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum TrainingExample {
    /// A conversation. The model learns to write those of its messages that `trained` marks.
    Chat { messages: Vec<Message>, trained: Vec<bool>, tools: Vec<Tool> },
    /// The model learns to continue the prompt, without a chat template.
    Completion { prompt: String, completion: String },
    /// The model learns to write the whole text, without a chat template.
    Text(String),
    /// The model learns to prefer one end of a conversation to another. Both consist of assistant messages and results of
    /// their tool calls.
    Preference { messages: Vec<Message>, tools: Vec<Tool>, chosen: Vec<Message>, rejected: Vec<Message> },
}

/// An example as tokens.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum TrainingTexts {
    /// One or more texts; of [`TrainingExample::Preference`] the chosen and the rejected one.
    Complete(Vec<TrainingText>),
    /// A text has this many tokens, which are too many.
    TooLong { tokens: usize },
}
