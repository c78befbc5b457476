//! Requests to the handler of a model's tokenizers and templates.

use std::borrow::Cow;

use serde::{Deserialize, Serialize};

use crate::text::prompt_options::PromptOptions;
use crate::text::tools::Tool;
use crate::text::training_example::TrainingExample;
use crate::tokenizer::{InfillTexts, SpecialTokenOptions};
use outpost_content::Message;

/// To how many tokens pairs are truncated; `None`: not.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
pub struct PairLengths {
    /// Of a pair with its special tokens: the longer text first.
    pub pair: Option<usize>,
    /// Of the document.
    pub document: Option<usize>,
}

/// A request to an [`RequestHandler`](super::request_handler::RequestHandler). It is sent with the token limit of each
/// text.
#[derive(Serialize, Deserialize)]
pub enum Request<'a> {
    /// The prompt of a conversation.
    Prompt { messages: Cow<'a, [Message]>, tools: Cow<'a, [Tool]>, options: Cow<'a, PromptOptions> },
    /// A training example, of which no text may have more than `max_tokens` tokens.
    TrainingTexts { example: Cow<'a, TrainingExample>, max_tokens: usize },
    /// A text without a template.
    Text { text: Cow<'a, str>, special: SpecialTokenOptions },
    /// Words within a text.
    Words { words: Cow<'a, [String]> },
    /// A prompt to generate the text between two others.
    Infill { texts: Cow<'a, InfillTexts> },
    /// The text of the prompt of a conversation.
    Render { messages: Cow<'a, [Message]>, tools: Cow<'a, [Tool]>, options: Cow<'a, PromptOptions> },
    /// Texts for an encoder. Unless `keep_going`, those after the first with too many tokens are skipped.
    Texts { texts: Vec<Cow<'a, str>>, keep_going: bool },
    /// A query and documents. Without a length in `max`, documents after the first with too many tokens are skipped.
    Pairs { query: Cow<'a, str>, documents: Cow<'a, [String]>, instruction: Option<Cow<'a, str>>, max: PairLengths },
    /// The text of an encoder's tokens, special tokens included.
    Decode { ids: Cow<'a, [u32]> },
    /// The tokens with these IDs, as the tokenizer writes them.
    Pieces { ids: Cow<'a, [u32]> },
    /// Texts for each of a pipeline's tokenizers.
    Image { texts: [Cow<'a, str>; 2] },
}
