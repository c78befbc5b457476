//! Requests for transcriptions and translations: OpenAI's fields. Each is supported, ignored because it cannot change the
//! result, or rejected by name.

use serde::Deserialize;
use serde_json::{Map, Value};

use crate::calls::transcriptions::TranscriptionCall;
use crate::display::shorten;
use crate::engine::{TranscriptionTask, find_language};
use crate::error::{Error, Result};
use crate::http::unknown_fields::UnknownFields;

/// The longest prompt, in characters. Models read only its end.
pub const MAX_PROMPT_CHARS: usize = 8_000;

/// Fields that do not affect the output of this server.
const IGNORED: [&str; 2] = ["user", "safety_identifier"];

/// The fields of a request besides the file.
#[derive(Deserialize, utoipa::ToSchema)]
pub struct TranscriptionRequest {
    /// Id of an installed model.
    model: String,
    /// The language that is spoken: a code such as `en`, or an English name such as `german`. If absent, it is detected in
    /// the first 30 seconds of speech.
    language: Option<String>,
    /// Text that precedes the audio. It sets the style and the spelling of names.
    prompt: Option<String>,
    /// `json` if absent.
    response_format: Option<TranscriptFormat>,
    /// 0–1; 0 if absent.
    #[schema(minimum = 0, maximum = 1)]
    temperature: Option<f32>,
    /// `segment` if absent. Needs `response_format: "verbose_json"`.
    timestamp_granularities: Option<Vec<Granularity>>,
    /// `logprobs` adds the log-probabilities of the tokens. Needs `response_format: "json"`.
    include: Option<Vec<Include>>,
    /// Send events as the text is written down.
    stream: Option<bool>,
    /// Has no effect: audio is always cut in pauses, which are found by voice activity detection.
    #[expect(dead_code, reason = "it is checked and has no effect")]
    chunking_strategy: Option<ChunkingStrategy>,
    #[serde(flatten)]
    #[schema(ignore)]
    rest: Map<String, Value>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, utoipa::ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum TranscriptFormat {
    #[default]
    Json,
    Text,
    Srt,
    VerboseJson,
    Vtt,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, utoipa::ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum Granularity {
    Word,
    Segment,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, utoipa::ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum Include {
    Logprobs,
}

/// `auto`, or the settings of a voice activity detector.
#[derive(Deserialize, utoipa::ToSchema)]
#[expect(dead_code, reason = "as above")]
#[serde(untagged, expecting = "must be \"auto\" or an object with the type server_vad")]
pub enum ChunkingStrategy {
    Named(ChunkingName),
    Detector(DetectorSettings),
}

#[derive(Deserialize, utoipa::ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum ChunkingName {
    Auto,
    ServerVad,
}

#[derive(Deserialize, utoipa::ToSchema)]
#[serde(deny_unknown_fields)]
#[expect(dead_code, reason = "as above")]
pub struct DetectorSettings {
    r#type: ChunkingName,
    /// Milliseconds of audio before speech.
    prefix_padding_ms: Option<u32>,
    /// Milliseconds of silence that end speech.
    silence_duration_ms: Option<u32>,
    /// 0–1.
    threshold: Option<f32>,
}

/// A validated request.
pub struct CheckedRequest {
    pub call: TranscriptionCall,
    pub output: Output,
    pub stream: bool,
    /// The fields that are left out.
    pub ignored: Vec<String>,
}

/// What a response contains.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Output {
    pub format: TranscriptFormat,
    pub words: bool,
    pub segments: bool,
    pub logprobs: bool,
    pub is_translation: bool,
}

impl TranscriptFormat {
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Json => "json",
            Self::Text => "text",
            Self::Srt => "srt",
            Self::VerboseJson => "verbose_json",
            Self::Vtt => "vtt",
        }
    }
}

impl TranscriptionRequest {
    /// Validates each field.
    pub fn check(self, task: TranscriptionTask, unknown: UnknownFields) -> Result<CheckedRequest> {
        let ignored = unknown.left_out::<TranscriptionRequest>(&self.rest, &IGNORED)?;
        let stream = self.stream.unwrap_or(false);
        let format = self.response_format.unwrap_or_default();
        let granularities = self.timestamp_granularities.unwrap_or_default();
        check_format(format, stream, !granularities.is_empty())?;
        let logprobs = self.include.unwrap_or_default().contains(&Include::Logprobs);
        if logprobs && format != TranscriptFormat::Json {
            let text = format!(
                "'include' asks for logprobs, which need response_format: \"json\"; it is '{}'. Leave one of the two out.",
                format.as_str()
            );
            return Err(Error::invalid("include", text));
        }
        let output = Output {
            format,
            words: granularities.contains(&Granularity::Word),
            segments: granularities.is_empty() || granularities.contains(&Granularity::Segment),
            logprobs,
            is_translation: task == TranscriptionTask::Translate,
        };
        let call = TranscriptionCall {
            model: self.model,
            task,
            language: self.language.filter(|name| !name.is_empty()).map(|name| language(&name)).transpose()?,
            prompt: self.prompt.filter(|prompt| !prompt.is_empty()).map(prompt).transpose()?,
            temperature: temperature(self.temperature.unwrap_or(0.0))?,
            words: output.words,
            logprobs: output.logprobs,
        };
        Ok(CheckedRequest { call, output, stream, ignored })
    }
}

fn check_format(format: TranscriptFormat, stream: bool, has_granularities: bool) -> Result<()> {
    let name = format.as_str();
    if stream && matches!(format, TranscriptFormat::Srt | TranscriptFormat::Vtt) {
        let text = format!(
            "'response_format' is '{name}', but a stream consists of events. Send json, text or verbose_json, or leave \
             'stream' out."
        );
        return Err(Error::invalid("response_format", text));
    }
    if has_granularities && format != TranscriptFormat::VerboseJson {
        let text = format!(
            "'timestamp_granularities' needs response_format: \"verbose_json\"; it is '{name}'. Send verbose_json, or leave \
             'timestamp_granularities' out."
        );
        return Err(Error::invalid("timestamp_granularities", text));
    }
    Ok(())
}

fn language(name: &str) -> Result<String> {
    find_language(name).map(str::to_owned).ok_or_else(|| {
        let text = format!(
            "'language' is '{}', which is unknown. Send an ISO 639-1 code such as de, or an English name such as german; or \
             leave it out, and the language is detected.",
            shorten(name)
        );
        Error::invalid("language", text)
    })
}

fn prompt(text: String) -> Result<String> {
    let length = text.chars().count();
    if length > MAX_PROMPT_CHARS {
        let text = format!("'prompt' has {length} characters; at most {MAX_PROMPT_CHARS} are allowed. Shorten it.");
        return Err(Error::invalid("prompt", text));
    }
    Ok(text)
}

fn temperature(value: f32) -> Result<f32> {
    if (0.0..=1.0).contains(&value) {
        return Ok(value);
    }
    Err(Error::invalid("temperature", format!("'temperature' is {value}; it must be from 0 to 1.")))
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::{CheckedRequest, Output, TranscriptFormat, TranscriptionRequest};
    use crate::engine::TranscriptionTask;
    use crate::error::Result;
    use crate::http::unknown_fields::UnknownFields;

    fn check(fields: Value) -> Result<CheckedRequest> {
        let mut all = json!({ "model": "whisper" });
        all.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
        let request: TranscriptionRequest = serde_json::from_value(all).unwrap();
        request.check(TranscriptionTask::Transcribe, UnknownFields::Refused)
    }

    #[test]
    fn fields_have_openais_defaults() {
        let checked = check(json!({ "language": "", "prompt": "", "user": "someone" })).unwrap();
        assert_eq!(checked.output, Output { segments: true, ..Output::default() });
        assert_eq!((checked.call.language, checked.call.prompt, checked.stream), (None, None, false));
        let words =
            json!({ "response_format": "verbose_json", "timestamp_granularities": ["word"], "language": "German" });
        let checked = check(words).unwrap();
        assert!(checked.output.words && !checked.output.segments && checked.call.words);
        assert_eq!(
            (checked.output.format, checked.call.language.as_deref()),
            (TranscriptFormat::VerboseJson, Some("de"))
        );
        check(json!({ "chunking_strategy": "auto" })).unwrap();
        check(json!({ "chunking_strategy": { "type": "server_vad", "threshold": 0.5 } })).unwrap();
    }

    #[test]
    fn fields_that_do_not_fit_are_refused_by_name() {
        for (fields, param) in [
            (json!({ "language": "klingon" }), "language"),
            (json!({ "temperature": 1.5 }), "temperature"),
            (json!({ "temperature": -0.1 }), "temperature"),
            (json!({ "prompt": "x".repeat(8_001) }), "prompt"),
            (json!({ "timestamp_granularities": ["word"] }), "timestamp_granularities"),
            (json!({ "include": ["logprobs"], "response_format": "verbose_json" }), "include"),
            (json!({ "stream": true, "response_format": "srt" }), "response_format"),
            (json!({ "keywords": ["a"] }), "keywords"),
        ] {
            let error = check(fields).err().unwrap();
            assert_eq!((error.code().status(), error.param_name()), (400, Some(param)), "{error}");
        }
    }
}
