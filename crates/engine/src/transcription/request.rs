//! Requests for transcriptions, and what they return.

use std::ops::Range;

/// Samples per second of all audio that is transcribed.
pub const SAMPLE_RATE: usize = 16_000;
/// The most samples of a window: 30 seconds.
pub const WINDOW_SAMPLES: usize = 30 * SAMPLE_RATE;

/// What to transcribe.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TranscriptionTask {
    /// The text in the language that is spoken.
    Transcribe,
    /// The text in English.
    Translate,
}

/// A request to transcribe speech. The audio follows in windows ([`super::WindowSender`]).
#[derive(Clone, Debug)]
pub struct TranscriptionRequest {
    pub task: TranscriptionTask,
    /// The code of the language, such as `en`; `None`: it is detected in the first window.
    pub language: Option<String>,
    /// Text that precedes the audio. It sets the style and the spelling of names.
    pub prompt: Option<String>,
    /// 0 takes the most likely tokens; windows whose text is repetitive or improbable are then decoded again with higher
    /// temperatures.
    pub temperature: f32,
    /// Requests the times of words.
    pub words: bool,
    pub seed: u64,
    /// The tenant, for fair scheduling.
    pub tenant: u128,
}

/// A part of the audio to transcribe, 16 kHz mono.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct SpeechWindow {
    /// The index of its first sample in the audio.
    pub start: u64,
    /// At most [`WINDOW_SAMPLES`], from -1 to 1.
    pub samples: Vec<f32>,
    /// The ranges of `samples` that contain speech.
    pub speech: Vec<Range<usize>>,
}

/// Events of a transcription, in the order of the audio.
#[derive(Clone, Debug, PartialEq)]
pub enum TranscriptionEvent {
    /// The code of the language of the whole audio. It comes first, once.
    Language(String),
    /// A window is done.
    Window {
        segments: Vec<Segment>,
        /// Seconds of audio of the window.
        seconds: f64,
    },
}

/// A piece of the text, such as a sentence. Times are in seconds of the whole audio.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Segment {
    /// Where the window begins that was decoded.
    pub seek: f64,
    pub start: f64,
    pub end: f64,
    /// In most languages it begins with a space.
    pub text: String,
    /// With the tokens of timestamps.
    pub tokens: Vec<u32>,
    pub temperature: f32,
    /// The mean log-probability of the tokens of the window.
    pub avg_logprob: f32,
    /// The length of the window's text over its length after compression. Repetitions make it high.
    pub compression_ratio: f32,
    /// The probability that the window has no speech.
    pub no_speech_prob: f32,
    /// Empty unless requested.
    pub words: Vec<Word>,
    /// The tokens of the text.
    pub logprobs: Vec<SpokenToken>,
}

/// A word, with its times in seconds of the whole audio.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Word {
    /// With the punctuation that belongs to it, and the space before it.
    pub text: String,
    pub start: f64,
    pub end: f64,
    /// The mean probability of its tokens.
    pub probability: f32,
}

/// A token of the text.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct SpokenToken {
    pub id: u32,
    /// They may be a part of a UTF-8 character.
    pub bytes: Vec<u8>,
    pub logprob: f32,
}
