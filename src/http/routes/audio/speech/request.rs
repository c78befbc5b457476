//! Requests for speech: OpenAI's fields.

use serde::Deserialize;
use serde_json::{Map, Value};

use super::voice_field::VoiceField;
use crate::calls::speech::{AudioFormat, SpeechCall};
use crate::error::{Error, Result};
use crate::http::unknown_fields::UnknownFields;

/// The longest text, in characters.
const MAX_INPUT_CHARS: usize = 50_000;
const SPEEDS: std::ops::RangeInclusive<f32> = 0.25..=4.0;

/// Fields that do not change the audio. It is always sent while it is spoken.
const IGNORED: [&str; 3] = ["user", "safety_identifier", "stream"];

#[derive(Deserialize, utoipa::ToSchema)]
pub struct SpeechRequest {
    /// Id of an installed model.
    model: String,
    /// The text.
    #[schema(min_length = 1, max_length = 50_000)]
    input: String,
    /// A voice of the model, one of OpenAI's names, or a mix of up to eight voices: `af_heart+af_bella`, or with weights
    /// `af_heart(2)+af_bella(1)`.
    voice: VoiceField,
    /// 0.25–4; 1 if absent.
    #[schema(minimum = 0.25, maximum = 4)]
    speed: Option<f32>,
    /// `mp3` if absent.
    response_format: Option<SpeechFormat>,
    /// Has no effect: the models take no instructions.
    #[expect(dead_code, reason = "it is checked and has no effect")]
    instructions: Option<String>,
    /// `audio` if absent.
    stream_format: Option<StreamFormat>,
    #[serde(flatten)]
    #[schema(ignore)]
    rest: Map<String, Value>,
}

/// `aac` is not supported.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, utoipa::ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum SpeechFormat {
    #[default]
    Mp3,
    Opus,
    Flac,
    Wav,
    Pcm,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, utoipa::ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum StreamFormat {
    /// The bytes of the file.
    #[default]
    Audio,
    /// Server-sent events.
    Sse,
}

/// A validated request.
pub struct CheckedRequest {
    pub call: SpeechCall,
    pub stream_format: StreamFormat,
    /// The fields that are left out.
    pub ignored: Vec<String>,
}

impl From<SpeechFormat> for AudioFormat {
    fn from(format: SpeechFormat) -> Self {
        match format {
            SpeechFormat::Mp3 => Self::Mp3,
            SpeechFormat::Opus => Self::Opus,
            SpeechFormat::Flac => Self::Flac,
            SpeechFormat::Wav => Self::Wav,
            SpeechFormat::Pcm => Self::Pcm,
        }
    }
}

impl SpeechRequest {
    /// Validates each field.
    pub fn check(self, unknown: UnknownFields) -> Result<CheckedRequest> {
        let ignored = unknown.left_out::<SpeechRequest>(&self.rest, &IGNORED)?;
        let call = SpeechCall {
            model: self.model,
            text: input(self.input)?,
            voices: self.voice.parse()?,
            speed: speed(self.speed.unwrap_or(1.0))?,
            format: self.response_format.unwrap_or_default().into(),
        };
        Ok(CheckedRequest { call, stream_format: self.stream_format.unwrap_or_default(), ignored })
    }
}

fn input(text: String) -> Result<String> {
    let length = text.chars().count();
    if length > MAX_INPUT_CHARS {
        let text = format!(
            "'input' has {length} characters; at most {MAX_INPUT_CHARS} are allowed. Send the text in several requests."
        );
        return Err(Error::invalid("input", text));
    }
    match text.trim().is_empty() {
        true => Err(Error::invalid("input", "'input' is empty. Send the text to speak.")),
        false => Ok(text),
    }
}

fn speed(value: f32) -> Result<f32> {
    if SPEEDS.contains(&value) {
        return Ok(value);
    }
    Err(Error::invalid("speed", format!("'speed' is {value}; it must be from 0.25 to 4.")))
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::{AudioFormat, CheckedRequest, SpeechRequest, StreamFormat};
    use crate::error::Result;
    use crate::http::unknown_fields::UnknownFields;

    fn check(fields: Value) -> Result<CheckedRequest> {
        let mut all = json!({ "model": "kokoro", "input": "Hello.", "voice": "alloy" });
        all.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
        let request: SpeechRequest = serde_json::from_value(all).unwrap();
        request.check(UnknownFields::Refused)
    }

    #[test]
    fn fields_have_openais_defaults() {
        let checked = check(json!({ "instructions": "Whisper.", "user": "someone", "stream": true })).unwrap();
        assert_eq!((checked.call.format, checked.call.speed), (AudioFormat::Mp3, 1.0));
        assert_eq!(
            (checked.stream_format, checked.call.voices),
            (StreamFormat::Audio, vec![("alloy".to_owned(), 1.0)])
        );
        let checked = check(json!({ "voice": { "id": "af_sky" }, "speed": 4, "stream_format": "sse" })).unwrap();
        assert_eq!((checked.stream_format, checked.call.voices[0].0.as_str()), (StreamFormat::Sse, "af_sky"));
        check(json!({ "input": "ü".repeat(50_000) })).unwrap();
    }

    #[test]
    fn fields_that_do_not_fit_are_refused_by_name() {
        for (fields, param) in [
            (json!({ "input": "" }), "input"),
            (json!({ "input": " \n" }), "input"),
            (json!({ "input": "x".repeat(50_001) }), "input"),
            (json!({ "speed": 0.2 }), "speed"),
            (json!({ "speed": 4.1 }), "speed"),
            (json!({ "voice": "" }), "voice"),
            (json!({ "pitch": 1 }), "pitch"),
        ] {
            let error = check(fields).err().unwrap();
            assert_eq!((error.code().status(), error.param_name()), (400, Some(param)), "{error}");
        }
    }
}
