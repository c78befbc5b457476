//! Preprocessing: conversations and texts become tokens, by the tokenizer and the chat template in a model's files.
//!
//! Both are untrusted code from the model's author. The libraries that run them bound neither their time nor their memory
//! nor how deep they recurse, so `outpost serve` runs them in a child process: one for each loaded model, with its
//! memory limited and without the right to open a file or a socket ([`sandbox`]). A request that takes too long, or
//! with which the process ends, fails alone; the next one gets a new process. Without a program to start
//! ([`crate::engine::settings::Settings::sandbox`]) the same code runs in this process.

mod chat;
pub(super) mod child;
pub(super) mod facts;
mod interpreter;
mod request;
mod sandbox;
mod spec;
mod templates;
pub(super) mod wire;

use std::borrow::Cow;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde::de::DeserializeOwned;

use crate::clock_rng::ClockRng;
use crate::engine::error::PreprocessError;
use crate::engine::runtime::panics::{guarded, interpreted};
use crate::engine::text::chat_template::PromptError;
use crate::engine::text::message::Message;
use crate::engine::text::tools::Tool;
use crate::engine::tokenizer::{Prompt, TokenBound};
use crate::models::encoder::Tokenized;
pub(super) use facts::{ChatFacts, EncoderFacts, TextSpec};
use interpreter::Interpreter;
use request::Request;
use sandbox::Sandbox;
use spec::Spec;
pub(super) use templates::Templates;

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
                let stopped = |stopped: PreprocessError| match stopped {
                    PreprocessError::Failed(reason) => reason,
                    stopped => format!("reading its tokenizer or its chat template failed: {stopped}"),
                };
                let (sandbox, facts) = Sandbox::start(program.clone(), spec).map_err(stopped)?;
                (Place::Sandboxed(sandbox), facts)
            }
        };
        Ok((Self(place), wire::decode(&facts)?))
    }

    fn ask<T: DeserializeOwned>(&self, request: &Request<'_>, bound: &TokenBound) -> Result<T, PreprocessError> {
        let request = wire::encode(&(bound.most(), request)).map_err(PreprocessError::Failed)?;
        let answer = match &self.0 {
            Place::Local(interpreter) => {
                interpreted(|| interpreter.answer(request, bound)).map_err(PreprocessError::Failed)?
            }
            Place::Sandboxed(sandbox) => sandbox.ask(request, bound)?,
        };
        wire::decode(&answer).map_err(PreprocessError::Failed)
    }

    /// The prompt of a conversation, up to where the answer begins.
    pub fn prompt(&self, messages: &[Message], tools: &[Tool], bound: &TokenBound) -> Result<Prompt, PromptError> {
        let request = Request::Prompt { messages: messages.into(), tools: tools.into() };
        self.ask(&request, bound).unwrap_or_else(|stopped| Err(PromptError::PreprocessError(stopped)))
    }

    /// A text as tokens: nothing in it is special, nothing is added.
    pub fn plain(&self, text: &str) -> Result<Vec<u32>, PreprocessError> {
        self.ask(&Request::Plain { text: text.into() }, &TokenBound::default())
    }

    /// Texts for an encoder, and of each whether these are all of its tokens. Unless `whole`, the first text that goes
    /// beyond the bound is the last of the result.
    pub fn texts(
        &self,
        texts: Vec<Cow<'_, str>>,
        whole: bool,
        bound: &TokenBound,
    ) -> Result<Vec<(Tokenized, bool)>, PreprocessError> {
        let answer: Result<_, String> = self.ask(&Request::Texts { texts, whole }, bound)?;
        answer.map_err(PreprocessError::Failed)
    }

    /// A question beside each of the documents; with a `limit` the longer text of a pair loses its end. Without one,
    /// the first pair that goes beyond the bound is the last of the result.
    pub fn pairs(
        &self,
        query: &str,
        documents: &[String],
        limit: Option<usize>,
        bound: &TokenBound,
    ) -> Result<Vec<(Tokenized, bool)>, PreprocessError> {
        let (query, documents) = (query.into(), documents.into());
        let answer: Result<_, String> = self.ask(&Request::Pairs { query, documents, limit }, bound)?;
        answer.map_err(PreprocessError::Failed)
    }

    /// Texts by each of a pipeline's tokenizers: `[tokenizer][text]`.
    pub fn image(&self, texts: [&str; 2]) -> Result<Vec<Vec<Vec<u32>>>, PreprocessError> {
        let answer: Result<_, String> =
            self.ask(&Request::Image { texts: texts.map(Cow::from) }, &TokenBound::default())?;
        answer.map_err(PreprocessError::Failed)
    }
}
