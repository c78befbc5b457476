//! Preprocessing: conversations and texts become tokens, by the tokenizer and the chat template in a model's files.
//!
//! Both are untrusted code from the model's author. The libraries that run them bound neither their time nor their memory
//! nor how deep they recurse, so `outpost serve` runs them in a child process: one for each loaded model, with its
//! memory limited and without the right to open a file or a socket ([`sandbox`]). A request that takes too long, or
//! with which the process ends, fails alone; the next one gets a new process. Without a program to start
//! ([`crate::engine::settings::Settings::sandbox`]) the same code runs in this process.

mod chat;
pub(super) mod child;
mod interpreter;
mod sandbox;
mod templates;
pub(super) mod wire;

use std::borrow::Cow;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::clock_rng::ClockRng;
use crate::engine::error::Stopped;
use crate::engine::runtime::panics::{guarded, interpreted};
use crate::engine::text::chat_template::PromptError;
use crate::engine::text::message::Message;
use crate::engine::text::tools::{Format, Tool};
use crate::engine::tokenizer::{Prompt, TokenBound, Vocabulary};
use crate::models::encoder::Tokenized;
use interpreter::{Interpreter, Source, Spec};
use sandbox::Sandbox;
pub(super) use templates::Templates;

/// Timeout for loading a model's files and for each request, extended by their size: see [`BYTES_A_SECOND`].
const TIMEOUT: Duration = Duration::from_secs(10);
/// A tenth of what a tokenizer reads in a second on a slow machine.
const BYTES_A_SECOND: u64 = 2 << 20;
/// Requests that a process answers at once at most; further ones wait for their turn.
const WORKERS: usize = 4;

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A text encoder's tokenizer in a pipeline for images.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct TextSpec {
    pub folder: PathBuf,
    /// Tokens that the encoder takes.
    pub positions: usize,
    /// The padding token; overrides the folder's.
    pub padding: Option<String>,
}

/// What the server has to know of a chat model's tokenizer and templates.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct ChatFacts {
    pub vocabulary: Vocabulary,
    /// How the model writes calls of tools.
    pub call_format: Format,
}

/// What an encoder's tokenizer puts around texts.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct EncoderFacts {
    /// How many tokens there are.
    pub vocabulary: usize,
    /// What stands before and behind every single text.
    pub before: Vec<u32>,
    pub behind: Vec<u32>,
}

/// What is asked of an [`Interpreter`]. With it goes how many tokens are wanted of a text at most: no text is tokenised
/// much further.
#[derive(Serialize, Deserialize)]
enum Request<'a> {
    /// The prompt of a conversation.
    Prompt { messages: Cow<'a, [Message]>, tools: Cow<'a, [Tool]> },
    /// A text in which nothing is special.
    Plain { text: Cow<'a, str> },
    /// Texts for an encoder. Unless `whole`, those after the first with too many tokens are left out.
    Texts { texts: Vec<Cow<'a, str>>, whole: bool },
    /// A question and texts that may answer it, cut to `limit` tokens if there is one. Without it those after the first
    /// with too many tokens are left out.
    Pairs { query: Cow<'a, str>, documents: Cow<'a, [String]>, limit: Option<usize> },
    /// Texts by each of a pipeline's tokenizers.
    Image { texts: [Cow<'a, str>; 2] },
}

/// A model's tokenizers and templates, ready for requests.
pub(super) struct Preprocessor(Place);

enum Place {
    Local(Interpreter),
    Sandboxed(Sandbox),
}

/// Where preprocessors run.
#[derive(Clone)]
pub(super) struct Isolation {
    /// The program to start; `None`: in this process.
    pub program: Option<PathBuf>,
    pub clock: Arc<dyn ClockRng>,
}

impl Preprocessor {
    /// Of a chat model. `path`: the file that stands for it; `rows`: its embeddings.
    pub fn chat(isolation: &Isolation, path: &Path, rows: usize) -> Result<(Self, ChatFacts), String> {
        Self::start(isolation, Spec::Chat { path: path.to_owned(), rows })
    }

    /// Of an embedding model or a reranker.
    pub fn encoder(isolation: &Isolation, path: &Path, lower_case: bool) -> Result<(Self, EncoderFacts), String> {
        Self::start(isolation, Spec::Encoder { path: path.to_owned(), lower_case })
    }

    /// Of a pipeline for images; and how many tokens each of its tokenizers has.
    pub fn pipeline(isolation: &Isolation, texts: Vec<TextSpec>) -> Result<(Self, Vec<usize>), String> {
        Self::start(isolation, Spec::Image { texts })
    }

    fn start<F: DeserializeOwned>(isolation: &Isolation, spec: Spec) -> Result<(Self, F), String> {
        let (place, facts) = match &isolation.program {
            None => {
                let (interpreter, facts) = guarded(|| Interpreter::new(&spec, &spec.read()?, &isolation.clock))?;
                (Place::Local(interpreter), facts)
            }
            Some(program) => {
                let stopped = |stopped: Stopped| match stopped {
                    Stopped::Failed(reason) => reason,
                    stopped => format!("reading its tokenizer or its chat template failed: {stopped}"),
                };
                let (sandbox, facts) = Sandbox::start(program.clone(), spec).map_err(stopped)?;
                (Place::Sandboxed(sandbox), facts)
            }
        };
        Ok((Self(place), wire::decode(&facts)?))
    }

    fn ask<T: DeserializeOwned>(&self, request: &Request<'_>, bound: &TokenBound) -> Result<T, Stopped> {
        let request = wire::encode(&(bound.most(), request)).map_err(Stopped::Failed)?;
        let answer = match &self.0 {
            Place::Local(interpreter) => interpreted(|| interpreter.answer(request, bound)).map_err(Stopped::Failed)?,
            Place::Sandboxed(sandbox) => sandbox.ask(request, bound)?,
        };
        wire::decode(&answer).map_err(Stopped::Failed)
    }

    /// The prompt of a conversation, up to where the answer begins.
    pub fn prompt(&self, messages: &[Message], tools: &[Tool], bound: &TokenBound) -> Result<Prompt, PromptError> {
        let request = Request::Prompt { messages: messages.into(), tools: tools.into() };
        self.ask(&request, bound).unwrap_or_else(|stopped| Err(PromptError::Stopped(stopped)))
    }

    /// A text as tokens: nothing in it is special, nothing is added.
    pub fn plain(&self, text: &str) -> Result<Vec<u32>, Stopped> {
        self.ask(&Request::Plain { text: text.into() }, &TokenBound::default())
    }

    /// Texts for an encoder, and of each whether these are all of its tokens. Unless `whole`, the first text that goes
    /// beyond the bound is the last of the result.
    pub fn texts(
        &self,
        texts: Vec<Cow<'_, str>>,
        whole: bool,
        bound: &TokenBound,
    ) -> Result<Vec<(Tokenized, bool)>, Stopped> {
        let answer: Result<_, String> = self.ask(&Request::Texts { texts, whole }, bound)?;
        answer.map_err(Stopped::Failed)
    }

    /// A question beside each of the documents; with a `limit` the longer text of a pair loses its end. Without one,
    /// the first pair that goes beyond the bound is the last of the result.
    pub fn pairs(
        &self,
        query: &str,
        documents: &[String],
        limit: Option<usize>,
        bound: &TokenBound,
    ) -> Result<Vec<(Tokenized, bool)>, Stopped> {
        let (query, documents) = (query.into(), documents.into());
        let answer: Result<_, String> = self.ask(&Request::Pairs { query, documents, limit }, bound)?;
        answer.map_err(Stopped::Failed)
    }

    /// Texts by each of a pipeline's tokenizers: `[tokenizer][text]`.
    pub fn image(&self, texts: [&str; 2]) -> Result<Vec<Vec<Vec<u32>>>, Stopped> {
        let answer: Result<_, String> =
            self.ask(&Request::Image { texts: texts.map(Cow::from) }, &TokenBound::default())?;
        answer.map_err(Stopped::Failed)
    }
}
