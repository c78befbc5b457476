//! A loaded transcription model: the network, its vocabulary and its tokenizer.

use std::sync::Arc;

use serde_json::Value;

use super::checkpoint::WhisperCheckpoint;
use super::device_network::{self, DeviceNetwork};
use super::non_speech::non_speech_tokens;
use super::prepared_request::{Language, PreparedRequest};
use super::request::{TranscriptionRequest, TranscriptionTask};
use super::token_rules::TokenRules;
use super::vocabulary::{TIMESTAMPS, WhisperVocabulary};
use super::window_decoder::DecodingOptions;
use crate::error::Refused;
use crate::kinds::{LoadOptions, LoadSource};
use crate::preprocessor::Preprocessor;
use crate::runtime::DeviceIndex;
use crate::runtime::memory_budget::Lease;
use crate::tokenizer::{SpecialTokenOptions, TokenizeLimits};
use outpost_models::backend::{PagedAttention, TimeConvolutions};
use outpost_models::whisper::LANGUAGES;

/// A model that transcribes speech.
pub struct TranscriptionModel {
    id: String,
    /// The device that runs it.
    pub(crate) device: DeviceIndex,
    network: Box<dyn DeviceNetwork>,
    /// Rows of the token embedding.
    rows: usize,
    /// The most tokens that the decoder takes.
    positions: usize,
    vocabulary: Arc<WhisperVocabulary>,
    rules: Arc<TokenRules>,
    preprocessor: Preprocessor,
    /// Its share of the memory budget, returned on drop.
    pub(crate) lease: Lease,
}

/// The key of the latest first timestamp, in multiples of 0.02 s.
const FIRST_TIMESTAMP: &str = "max_initial_timestamp_index";

/// The generation settings in a model's files.
#[derive(Debug, Default)]
pub struct GenerationSettings {
    suppressed: Option<Vec<u32>>,
    suppressed_first: Option<Vec<u32>>,
    max_first_timestamp: Option<u32>,
}

impl GenerationSettings {
    /// Reads those of `generation_config.json`. Absent fields have the values of the reference implementation.
    ///
    /// # Errors
    /// If the first timestamp is not one of a window.
    pub fn from_json(json: &Value) -> Result<Self, String> {
        let id = |value: &Value| value.as_u64().and_then(|id| u32::try_from(id).ok());
        let list = |key: &str| Some(json.get(key)?.as_array()?.iter().filter_map(id).collect());
        let first = json.get(FIRST_TIMESTAMP).filter(|value| !value.is_null());
        let max_first_timestamp = first.map(|value| {
            id(value).filter(|index| *index < TIMESTAMPS).ok_or_else(|| {
                let last = TIMESTAMPS - 1;
                format!("generation_config.json: {FIRST_TIMESTAMP} is {value}, it must be a number from 0 to {last}")
            })
        });
        Ok(Self {
            suppressed: list("suppress_tokens"),
            suppressed_first: list("begin_suppress_tokens"),
            max_first_timestamp: max_first_timestamp.transpose()?,
        })
    }

    fn rules(self, vocabulary: &WhisperVocabulary) -> TokenRules {
        /// One second.
        const MAX_FIRST_TIMESTAMP: u32 = 50;
        let first = || vocabulary.space().into_iter().chain([vocabulary.end_of_text]).collect();
        let mut suppressed = self.suppressed.unwrap_or_else(|| non_speech_tokens(vocabulary));
        suppressed.extend(vocabulary.special_tokens_of_prompts());
        TokenRules {
            suppressed,
            suppressed_first: self.suppressed_first.unwrap_or_else(first),
            max_first_timestamp: Some(self.max_first_timestamp.unwrap_or(MAX_FIRST_TIMESTAMP)),
        }
    }
}

impl TranscriptionModel {
    /// Reads the weights of a checkpoint.
    pub(super) fn new<B: PagedAttention + TimeConvolutions>(
        files: &WhisperCheckpoint,
        source: &LoadSource<'_>,
        lease: Lease,
        backend: &B,
    ) -> Result<Self, String> {
        let LoadSource { id, path, device, options: LoadOptions { precision, .. }, isolation, .. } = *source;
        let (rows, positions) = (files.config().vocabulary, files.config().context);
        let (preprocessor, info) = Preprocessor::chat(isolation, path, rows)?;
        let codes = LANGUAGES.map(|(code, _)| code);
        let vocabulary = WhisperVocabulary::new(info.vocabulary, rows, files.config().is_multilingual(), &codes)?;
        let rules = GenerationSettings::from_json(files.generation_config())?.rules(&vocabulary);
        let network = device_network::load(files, precision, backend).map_err(|error| error.to_string())?;
        let (id, vocabulary, rules) = (id.to_owned(), Arc::new(vocabulary), Arc::new(rules));
        Ok(Self { id, device, network, rows, positions, vocabulary, rules, preprocessor, lease })
    }

    pub fn id(&self) -> &str {
        &self.id
    }

    /// The codes of the languages that the model knows.
    pub fn languages(&self) -> Vec<&str> {
        match &self.vocabulary.multilingual {
            Some(tokens) => tokens.languages.iter().map(|(code, _)| code.as_str()).collect(),
            None => vec!["en"],
        }
    }

    pub(super) fn network(&self) -> &dyn DeviceNetwork {
        &*self.network
    }

    pub(super) fn vocabulary(&self) -> &WhisperVocabulary {
        &self.vocabulary
    }

    /// Logits of a token: rows of the embedding.
    pub(super) fn logits_width(&self) -> usize {
        self.rows
    }

    /// Checks the request, and tokenizes its prompt.
    pub(crate) fn prepare(&self, request: &TranscriptionRequest) -> Result<PreparedRequest, Refused> {
        let translate = request.task == TranscriptionTask::Translate;
        let language = self.language(request.language.as_deref())?;
        if translate && self.vocabulary.multilingual.is_none() {
            return Err(Refused::Invalid("the model knows only English and cannot translate".to_owned()));
        }
        let options = DecodingOptions {
            vocabulary: Arc::clone(&self.vocabulary),
            rules: Arc::clone(&self.rules),
            prompt: self.prompt(request.prompt.as_deref().unwrap_or_default())?,
            translate,
            temperature: request.temperature,
            seed: request.seed,
            positions: self.positions,
        };
        let TranscriptionRequest { words, tenant, .. } = *request;
        Ok(PreparedRequest { tenant, options: Arc::new(options), words, language })
    }

    fn language(&self, code: Option<&str>) -> Result<Language, Refused> {
        let unknown = |code: &str| Refused::Invalid(format!("the model does not know the language '{code}'"));
        match (code, &self.vocabulary.multilingual) {
            (None | Some("en"), None) => Ok(Language::Known(None)),
            (Some(code), None) => Err(unknown(code)),
            (None, Some(_)) => Ok(Language::Unknown),
            (Some(code), Some(_)) => {
                let token = self.vocabulary.language(code).ok_or_else(|| unknown(code))?;
                Ok(Language::Known(Some(token)))
            }
        }
    }

    /// The last tokens of the prompt that fit beside the text.
    fn prompt(&self, text: &str) -> Result<Vec<u32>, Refused> {
        let text = text.trim();
        if text.is_empty() {
            return Ok(Vec::new());
        }
        let special = SpecialTokenOptions::default();
        let mut ids = self.preprocessor.tokenize(&format!(" {text}"), special, &TokenizeLimits::default())?.ids;
        let max = (self.positions / 2).saturating_sub(1);
        ids.drain(..ids.len().saturating_sub(max));
        Ok(ids)
    }
}
