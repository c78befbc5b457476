//! The vocabulary of Whisper models: text, and the special tokens that control the decoder
//! (Radford et al. 2022, <https://arxiv.org/abs/2212.04356>).

use crate::tokenizer::Vocabulary;

/// Seconds between two timestamp tokens.
pub const TIMESTAMP_SECONDS: f64 = 0.02;
/// Timestamp tokens: 0.00 to 30.00.
pub const TIMESTAMPS: u32 = 1501;

/// The tokens of a Whisper model.
#[derive(Debug)]
pub struct WhisperVocabulary {
    tokens: Vocabulary,
    pub end_of_text: u32,
    pub start_of_transcript: u32,
    pub start_of_previous: u32,
    /// Its probability after [`Self::start_of_transcript`] is the probability that there is no speech.
    pub no_speech: Option<u32>,
    pub no_timestamps: u32,
    /// The token of 0.00. Those of later times follow it.
    pub first_timestamp: u32,
    /// `None`: the model knows only English.
    pub multilingual: Option<MultilingualTokens>,
}

/// The special tokens of multilingual models.
#[derive(Debug)]
pub struct MultilingualTokens {
    pub transcribe: u32,
    pub translate: u32,
    /// The codes of the languages, such as `en`, with their tokens.
    pub languages: Vec<(String, u32)>,
}

impl MultilingualTokens {
    fn find(tokens: &Vocabulary, multilingual: bool, known: &[&str]) -> Result<Option<Self>, String> {
        if !multilingual {
            return Ok(None);
        }
        let token = |text: &str| tokens.control_id(text).ok_or_else(|| missing(text));
        let language = |code: &&str| Some(((*code).to_owned(), tokens.control_id(&format!("<|{code}|>"))?));
        let languages: Vec<_> = known.iter().filter_map(language).collect();
        if languages.is_empty() {
            return Err(missing("<|en|>"));
        }
        Ok(Some(Self { transcribe: token("<|transcribe|>")?, translate: token("<|translate|>")?, languages }))
    }
}

fn missing(text: &str) -> String {
    format!("its tokenizer has no token {text}, which a Whisper model needs")
}

impl WhisperVocabulary {
    /// Finds the special tokens. `rows`: rows of the token embedding; `multilingual`: whether the model knows other
    /// languages than English; `languages`: the codes of all languages that such models may know.
    ///
    /// # Errors
    /// If a token is missing, or the embedding has no rows for the timestamps.
    pub fn new(tokens: Vocabulary, rows: usize, multilingual: bool, languages: &[&str]) -> Result<Self, String> {
        let token = |text: &str| tokens.control_id(text).ok_or_else(|| missing(text));
        let no_timestamps = token("<|notimestamps|>")?;
        // Files of some converters do not list the timestamps.
        let first_timestamp = tokens.control_id("<|0.00|>").unwrap_or(no_timestamps.saturating_add(1));
        if u64::from(first_timestamp) + u64::from(TIMESTAMPS) > rows as u64 {
            return Err(format!("its embedding has {rows} rows, which do not include the timestamp tokens"));
        }
        Ok(Self {
            end_of_text: token("<|endoftext|>")?,
            start_of_transcript: token("<|startoftranscript|>")?,
            start_of_previous: token("<|startofprev|>")?,
            no_speech: ["<|nospeech|>", "<|nocaptions|>"].iter().find_map(|text| tokens.control_id(text)),
            no_timestamps,
            first_timestamp,
            multilingual: MultilingualTokens::find(&tokens, multilingual, languages)?,
            tokens,
        })
    }

    /// True for timestamp tokens.
    pub fn is_timestamp(&self, id: u32) -> bool {
        (self.first_timestamp..self.first_timestamp + TIMESTAMPS).contains(&id)
    }

    /// The time of a timestamp token, in multiples of [`TIMESTAMP_SECONDS`]; `None` for other tokens.
    pub fn timestamp(&self, id: u32) -> Option<u32> {
        self.is_timestamp(id).then(|| id - self.first_timestamp)
    }

    /// True for text tokens, which are neither special nor timestamps.
    pub fn is_text(&self, id: u32) -> bool {
        id < self.end_of_text && !self.tokens.is_control(id)
    }

    /// The bytes of a text token; none of others.
    pub fn bytes(&self, id: u32) -> &[u8] {
        if self.is_text(id) { self.tokens.bytes(id) } else { &[] }
    }

    /// The text of tokens, without special tokens and timestamps.
    pub fn text(&self, ids: &[u32]) -> String {
        let bytes: Vec<u8> = ids.iter().flat_map(|id| self.bytes(*id)).copied().collect();
        String::from_utf8_lossy(&bytes).into_owned()
    }

    /// The token of a language; `None` if the model does not know it.
    pub fn language(&self, code: &str) -> Option<u32> {
        self.multilingual.as_ref()?.languages.iter().find(|(known, _)| known == code).map(|(_, id)| *id)
    }

    /// The code of a language by its token.
    pub fn language_code(&self, id: u32) -> Option<&str> {
        let languages = &self.multilingual.as_ref()?.languages;
        languages.iter().find(|(_, known)| *known == id).map(|(code, _)| code.as_str())
    }

    /// The token of a space.
    pub fn space(&self) -> Option<u32> {
        self.tokens.id_of(" ")
    }

    /// The special tokens that are part of prompts only.
    pub fn special_tokens_of_prompts(&self) -> Vec<u32> {
        let tasks = self.multilingual.iter().flat_map(|tokens| [tokens.transcribe, tokens.translate]);
        let start_of_lm = self.tokens.control_id("<|startoflm|>");
        let start = [self.start_of_transcript, self.start_of_previous];
        start.into_iter().chain(tasks).chain(start_of_lm).chain(self.no_speech).collect()
    }

    /// The special tokens that precede text of this language and task. `language`: its token.
    pub fn start_tokens(&self, language: Option<u32>, translate: bool) -> Vec<u32> {
        let mut all = vec![self.start_of_transcript];
        if let (Some(tokens), Some(language)) = (&self.multilingual, language) {
            all.extend([language, if translate { tokens.translate } else { tokens.transcribe }]);
        }
        all
    }
}
