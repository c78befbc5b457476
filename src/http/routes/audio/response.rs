//! OpenAI's transcription responses.

use actix_web::HttpResponse;
use serde::Serialize;

use super::request::{Output, TranscriptFormat};
use super::subtitles;
use crate::calls::transcriptions::{RunningTranscription, Transcript};
use crate::engine::{Segment, SpokenToken, Word, language_name};
use crate::http::response::Mount;

const PLAIN_TEXT: &str = "text/plain; charset=utf-8";
/// The language of audio without speech.
const NO_LANGUAGE: &str = "unknown";
/// Frames of the spectrogram per second, in which `seek` is.
const FRAMES_PER_SECOND: f64 = 100.0;

/// The body with `response_format` `json` or `verbose_json`.
#[derive(Serialize, utoipa::ToSchema)]
#[serde(untagged)]
pub enum TranscriptionResponse {
    Json(TranscriptionBody),
    Verbose(VerboseTranscriptionBody),
}

#[derive(Serialize, utoipa::ToSchema)]
pub struct TranscriptionBody {
    /// The whole text.
    text: String,
    /// If `include` has `logprobs`.
    #[serde(skip_serializing_if = "Option::is_none")]
    logprobs: Option<Vec<TokenLogprob>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    usage: Option<DurationUsage>,
}

#[derive(Serialize, utoipa::ToSchema)]
pub struct VerboseTranscriptionBody {
    /// `transcribe` or `translate`.
    task: &'static str,
    /// The English name of the language in lower case. `unknown` if there is no speech; `english` for translations.
    language: &'static str,
    /// Seconds of audio.
    duration: f64,
    /// The whole text.
    text: String,
    /// Unless `timestamp_granularities` has only `word`.
    #[serde(skip_serializing_if = "Option::is_none")]
    segments: Option<Vec<SegmentBody>>,
    /// If `timestamp_granularities` has `word`.
    #[serde(skip_serializing_if = "Option::is_none")]
    words: Option<Vec<WordBody>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    usage: Option<DurationUsage>,
}

/// A segment; times are in seconds.
#[derive(Serialize, utoipa::ToSchema)]
struct SegmentBody {
    id: usize,
    /// Where its window begins, in hundredths of a second.
    seek: u64,
    start: f64,
    end: f64,
    text: String,
    tokens: Vec<u32>,
    temperature: f32,
    avg_logprob: f32,
    compression_ratio: f32,
    no_speech_prob: f32,
}

/// A word; times are in seconds.
#[derive(Serialize, utoipa::ToSchema)]
pub struct WordBody {
    word: String,
    start: f64,
    end: f64,
}

#[derive(Clone, Serialize, utoipa::ToSchema)]
pub struct TokenLogprob {
    token: String,
    /// A token may be a part of a character.
    bytes: Vec<u8>,
    logprob: f32,
}

/// The length of the audio, which is what is metered.
#[derive(Clone, Copy, Serialize, utoipa::ToSchema)]
pub struct DurationUsage {
    /// Always `duration`.
    r#type: &'static str,
    seconds: f64,
}

impl DurationUsage {
    pub fn of(seconds: f64) -> Self {
        Self { r#type: "duration", seconds }
    }
}

impl TokenLogprob {
    /// The tokens of a segment.
    pub fn all(tokens: &[SpokenToken]) -> Vec<Self> {
        let one = |token: &SpokenToken| Self {
            token: String::from_utf8_lossy(&token.bytes).into_owned(),
            bytes: token.bytes.clone(),
            logprob: token.logprob,
        };
        tokens.iter().map(one).collect()
    }
}

impl WordBody {
    pub fn of(word: &Word) -> Self {
        Self { word: word.text.trim().to_owned(), start: rounded(word.start), end: rounded(word.end) }
    }
}

impl SegmentBody {
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "a time is not negative, and one beyond the range of u64 saturates"
    )]
    fn of(id: usize, segment: Segment) -> Self {
        Self {
            id,
            seek: (segment.seek * FRAMES_PER_SECOND).round() as u64,
            start: rounded(segment.start),
            end: rounded(segment.end),
            text: segment.text,
            tokens: segment.tokens,
            temperature: segment.temperature,
            avg_logprob: segment.avg_logprob,
            compression_ratio: segment.compression_ratio,
            no_speech_prob: segment.no_speech_prob,
        }
    }
}

/// Seconds in whole milliseconds.
pub fn rounded(seconds: f64) -> f64 {
    (seconds * 1000.0).round() / 1000.0
}

/// The response in the requested format.
pub fn respond(running: &RunningTranscription, transcript: Transcript, output: Output, mount: Mount) -> HttpResponse {
    // OpenAI's translations have no usage.
    let usage = (mount == Mount::Spec || !output.is_translation).then(|| DurationUsage::of(running.seconds()));
    match output.format {
        TranscriptFormat::Json => mount.bare(running.id, TranscriptionResponse::Json(body(&transcript, output, usage))),
        TranscriptFormat::VerboseJson => {
            let verbose = verbose(transcript, output, running.seconds(), usage);
            mount.bare(running.id, TranscriptionResponse::Verbose(verbose))
        }
        TranscriptFormat::Text => plain(transcript.text() + "\n"),
        TranscriptFormat::Srt => plain(subtitles::srt(&transcript.segments)),
        TranscriptFormat::Vtt => plain(subtitles::vtt(&transcript.segments)),
    }
}

fn plain(text: String) -> HttpResponse {
    HttpResponse::Ok().content_type(PLAIN_TEXT).body(text)
}

fn body(transcript: &Transcript, output: Output, usage: Option<DurationUsage>) -> TranscriptionBody {
    let tokens = || transcript.segments.iter().flat_map(|segment| TokenLogprob::all(&segment.logprobs)).collect();
    TranscriptionBody { text: transcript.text(), logprobs: output.logprobs.then(tokens), usage }
}

/// The English name of the language of the text, in lower case. `spoken`: the code of the language of the audio, if it has speech.
pub fn language_of_text(spoken: Option<&str>, output: Output) -> &'static str {
    match output.is_translation {
        true => "english",
        false => spoken.and_then(language_name).unwrap_or(NO_LANGUAGE),
    }
}

fn verbose(
    transcript: Transcript,
    output: Output,
    duration: f64,
    usage: Option<DurationUsage>,
) -> VerboseTranscriptionBody {
    let language = language_of_text(transcript.language.as_deref(), output);
    let text = transcript.text();
    let words = || transcript.segments.iter().flat_map(|segment| &segment.words).map(WordBody::of).collect();
    let words = output.words.then(words);
    let all = transcript.segments.into_iter().enumerate().map(|(id, segment)| SegmentBody::of(id, segment));
    let segments = output.segments.then(|| all.collect());
    let task = if output.is_translation { "translate" } else { "transcribe" };
    VerboseTranscriptionBody { task, language, duration, text, segments, words, usage }
}
