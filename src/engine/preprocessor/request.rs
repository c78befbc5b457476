//! Requests to a model's tokenizers and templates.

use std::borrow::Cow;

use serde::{Deserialize, Serialize};

use crate::engine::text::message::Message;
use crate::engine::text::tools::Tool;

/// A request to an [`Interpreter`](super::interpreter::Interpreter). With it goes how many tokens are wanted of a text at most: no text is tokenised
/// much further.
#[derive(Serialize, Deserialize)]
pub enum Request<'a> {
    /// The prompt of a conversation.
    Prompt { messages: Cow<'a, [Message]>, tools: Cow<'a, [Tool]> },
    /// A text in which nothing is special.
    Text { text: Cow<'a, str> },
    /// Texts for an encoder. Unless `keep_going`, those after the first with too many tokens are left out.
    Texts { texts: Vec<Cow<'a, str>>, keep_going: bool },
    /// A question and texts that may answer it, cut to `max_length` tokens if there is one. Without it those after the first
    /// with too many tokens are left out.
    Pairs { query: Cow<'a, str>, documents: Cow<'a, [String]>, max_length: Option<usize> },
    /// Texts by each of a pipeline's tokenizers.
    Image { texts: [Cow<'a, str>; 2] },
}
