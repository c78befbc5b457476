//! Preprocessing: turns conversations and texts into tokens with the tokenizer and the chat template in a model's
//! files.
//!
//! Both are untrusted code from the model's author. The libraries that run them limit neither time nor memory nor
//! recursion depth, so `outpost serve` runs them in child processes: one for each loaded model, with limited memory and
//! without the right to open files or sockets ([`sandbox`]). A request that takes too long or crashes the process fails
//! alone; the next one gets a new process. Without a program to start
//! ([`crate::settings::Settings::sandbox`]) the same code runs in the server's process.
//!
//! A template of 49 bytes can overflow the stack, and 26 `Replace` steps turn one letter into 64 MB; Rust code cannot
//! catch either. An allow-list with exact bounds would have to model every filter, operator and normalizer of both
//! libraries, and every update could add one that it misses. A child process needs no knowledge of them. For a chat of
//! one token the pipes add less than 0.1 ms; starting a child costs about 10 ms.

mod chat;
mod request;
mod request_handler;
pub(super) mod sandbox_child;
mod sandbox_parent;
pub(super) mod sandbox_protocol;
mod spec;
pub(super) mod stop_flag;
mod template_sources;
pub(super) mod tokenizer_info;
mod training_texts;

use std::borrow::Cow;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde::de::DeserializeOwned;

use crate::embedding::EncoderTokenizerSpec;
use crate::error::PreprocessError;
use crate::runtime::catch_panic::{catch_load_panic, catch_preprocess_panic};
use crate::text::chat_template::PromptError;
use crate::text::prompt_options::PromptOptions;
use crate::text::tools::Tool;
use crate::text::training_example::{TrainingExample, TrainingTexts};
use crate::tokenizer::{InfillTexts, SpecialTokenOptions, TokenIds, TokenizeLimits};
use outpost_common::clock_rng::ClockRng;
use outpost_content::Message;
use outpost_models::encoder::Tokenized;
pub use request::PairLengths;
use request::Request;
use request_handler::RequestHandler;
use sandbox_parent::Sandbox;
use spec::{ModelFiles, Spec};
use stop_flag::StopFlag;
pub(super) use template_sources::TemplateSources;

/// The chat template in the files of a model whose main file is `path`, if it has one. It is not run.
pub(super) fn chat_template(path: &Path) -> Result<Option<String>, String> {
    Ok(ModelFiles::read(path)?.templates()?.map(|templates| templates.default))
}
pub use tokenizer_info::TokenizerDescription;
pub(super) use tokenizer_info::{ChatTokenizerInfo, EncoderTokenizerInfo, PromptTokenizerSpec};

/// A model's tokenizers and templates, ready for requests.
pub(super) struct Preprocessor(Backend);

#[expect(clippy::large_enum_variant, reason = "there is one for each model")]
enum Backend {
    InProcess(RequestHandler),
    Sandbox(Sandbox),
}

/// Where preprocessors run.
#[derive(Clone)]
pub(super) struct Isolation {
    /// The program to start as a sandbox; `None`: run in this process.
    pub program: Option<PathBuf>,
    pub clock: Arc<dyn ClockRng>,
    /// Ends the sandbox processes.
    pub stop: StopFlag,
}

impl Preprocessor {
    /// The preprocessor of a chat model. `path`: its main file; `rows`: the rows of its token embedding.
    pub fn chat(isolation: &Isolation, path: &Path, rows: usize) -> Result<(Self, ChatTokenizerInfo), String> {
        Self::start(isolation, Spec::Chat { path: path.to_owned(), rows })
    }

    /// The preprocessor of an embedding model or reranker.
    pub fn encoder(
        isolation: &Isolation,
        path: &Path,
        tokenizer: EncoderTokenizerSpec,
    ) -> Result<(Self, EncoderTokenizerInfo), String> {
        Self::start(isolation, Spec::Encoder { path: path.to_owned(), tokenizer })
    }

    /// The preprocessor of an image pipeline. Also returns the vocabulary size of each tokenizer.
    pub fn pipeline(isolation: &Isolation, texts: Vec<PromptTokenizerSpec>) -> Result<(Self, Vec<usize>), String> {
        Self::start(isolation, Spec::Image { texts })
    }

    fn start<F: DeserializeOwned>(isolation: &Isolation, spec: Spec) -> Result<(Self, F), String> {
        let (backend, info) = match &isolation.program {
            None => {
                let (handler, info) = catch_load_panic(|| RequestHandler::new(&spec, &spec.read()?, &isolation.clock))?;
                (Backend::InProcess(handler), info)
            }
            Some(program) => {
                let reason = |error: PreprocessError| match error {
                    PreprocessError::Failed(reason) => reason,
                    error => format!("loading its tokenizer or chat template failed: {error}"),
                };
                let (sandbox, info) = Sandbox::start(program.clone(), spec, isolation.stop.clone()).map_err(reason)?;
                (Backend::Sandbox(sandbox), info)
            }
        };
        Ok((Self(backend), sandbox_protocol::decode(&info)?))
    }

    fn call<T: DeserializeOwned>(&self, request: &Request<'_>, limits: &TokenizeLimits) -> Result<T, PreprocessError> {
        let request = sandbox_protocol::encode(&(limits.max_tokens(), request)).map_err(PreprocessError::Failed)?;
        let response = match &self.0 {
            Backend::InProcess(handler) => {
                catch_preprocess_panic(|| handler.handle(request, limits)).map_err(PreprocessError::Failed)?
            }
            Backend::Sandbox(sandbox) => sandbox.call(request, limits)?,
        };
        sandbox_protocol::decode(&response).map_err(PreprocessError::Failed)
    }

    /// The prompt of a conversation.
    pub fn prompt(
        &self,
        messages: &[Message],
        tools: &[Tool],
        options: &PromptOptions,
        limits: &TokenizeLimits,
    ) -> Result<TokenIds, PromptError> {
        let options = Cow::Borrowed(options);
        let request = Request::Prompt { messages: messages.into(), tools: tools.into(), options };
        self.call(&request, limits).unwrap_or_else(|error| Err(PromptError::PreprocessError(error)))
    }

    /// The text of the prompt of a conversation.
    pub fn render(
        &self,
        messages: &[Message],
        tools: &[Tool],
        options: &PromptOptions,
        limits: &TokenizeLimits,
    ) -> Result<String, PromptError> {
        let options = Cow::Borrowed(options);
        let request = Request::Render { messages: messages.into(), tools: tools.into(), options };
        self.call(&request, limits).unwrap_or_else(|error| Err(PromptError::PreprocessError(error)))
    }

    /// The tokens of a training example, unless a text has more than `max_tokens`.
    pub fn training_texts(
        &self,
        example: &TrainingExample,
        max_tokens: usize,
        limits: &TokenizeLimits,
    ) -> Result<TrainingTexts, PromptError> {
        let request = Request::TrainingTexts { example: Cow::Borrowed(example), max_tokens };
        self.call(&request, limits).unwrap_or_else(|error| Err(PromptError::PreprocessError(error)))
    }

    /// Tokenizes a text without a template.
    pub fn tokenize(
        &self,
        text: &str,
        special: SpecialTokenOptions,
        limits: &TokenizeLimits,
    ) -> Result<TokenIds, PreprocessError> {
        self.call(&Request::Text { text: text.into(), special }, limits)
    }

    /// A prompt to generate the text between two others; `None` if the model was not trained for it.
    pub fn infill(&self, texts: &InfillTexts, limits: &TokenizeLimits) -> Result<Option<TokenIds>, PreprocessError> {
        self.call(&Request::Infill { texts: Cow::Borrowed(texts) }, limits)
    }

    /// The tokens of words within a text, with a space before them and without.
    pub fn encode_words(&self, words: &[String], limits: &TokenizeLimits) -> Result<Vec<Vec<u32>>, PreprocessError> {
        self.call(&Request::Words { words: words.into() }, limits)
    }

    /// The text of an encoder's tokens, special tokens included.
    pub fn decode(&self, ids: &[u32]) -> Result<String, PreprocessError> {
        let response: Result<_, String> =
            self.call(&Request::Decode { ids: ids.into() }, &TokenizeLimits::default())?;
        response.map_err(PreprocessError::Failed)
    }

    /// An encoder's tokens as its tokenizer writes them.
    pub fn pieces(&self, ids: &[u32]) -> Result<Vec<String>, PreprocessError> {
        self.call(&Request::Pieces { ids: ids.into() }, &TokenizeLimits::default())
    }

    /// Tokenizes texts for an encoder, and says for each whether its tokens are complete. Unless `keep_going`, the
    /// first text over the limits is the last of the result.
    pub fn encode_texts(
        &self,
        texts: Vec<Cow<'_, str>>,
        keep_going: bool,
        limits: &TokenizeLimits,
    ) -> Result<Vec<(Tokenized, bool)>, PreprocessError> {
        let response: Result<_, String> = self.call(&Request::Texts { texts, keep_going }, limits)?;
        response.map_err(PreprocessError::Failed)
    }

    /// Tokenizes the query with each document, in the model's prompt with the `instruction` if it has one. Without a length of
    /// pairs in `max`, the first pair over the limits is the last of the result.
    pub fn encode_pairs(
        &self,
        query: &str,
        documents: &[String],
        instruction: Option<&str>,
        max: PairLengths,
        limits: &TokenizeLimits,
    ) -> Result<Vec<(Tokenized, bool)>, PreprocessError> {
        let (query, documents, instruction) = (query.into(), documents.into(), instruction.map(Cow::from));
        let response: Result<_, String> = self.call(&Request::Pairs { query, documents, instruction, max }, limits)?;
        response.map_err(PreprocessError::Failed)
    }

    /// Tokenizes the texts with each of a pipeline's tokenizers: `[tokenizer][text]`.
    pub fn encode_image_prompts(&self, texts: [&str; 2]) -> Result<Vec<Vec<Vec<u32>>>, PreprocessError> {
        let response: Result<_, String> =
            self.call(&Request::Image { texts: texts.map(Cow::from) }, &TokenizeLimits::default())?;
        response.map_err(PreprocessError::Failed)
    }
}
