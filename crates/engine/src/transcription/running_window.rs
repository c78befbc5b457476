//! A window that is being transcribed: decodes it from its beginning, and again from where the last segment has no end.

use std::sync::Arc;

use super::alignment::AttentionWeights;
use super::prepared_request::Language;
use super::request::{SAMPLE_RATE, Segment, SpokenToken, Word};
use super::scheduler::WindowJob;
use super::segments::{self, Cut, TokenSegment};
use super::vocabulary::TIMESTAMP_SECONDS;
use super::window_decoder::{DecodedWindow, WindowDecoder};
use super::words;
use outpost_models::ModelError;

/// Samples between two timestamps.
const TIMESTAMP_SAMPLES: usize = 320;
/// A window is decoded again only if that begins this many samples later, so that every window ends.
const MIN_ADVANCE: usize = SAMPLE_RATE;
/// Speech that is worth another pass; samples.
const MIN_SPEECH: usize = SAMPLE_RATE / 10;

/// Computes the attention of the alignment heads for these tokens.
type Align<'a> = &'a mut dyn FnMut(&[u32]) -> Result<AttentionWeights, ModelError>;

pub struct RunningWindow {
    pub job: WindowJob,
    pub decoder: WindowDecoder,
    /// Set once the network has encoded the samples.
    pub is_encoded: bool,
    pub segments: Vec<Segment>,
    /// Where the part begins that is decoded; samples.
    seek: usize,
}

impl RunningWindow {
    pub fn new(job: WindowJob) -> Self {
        let decoder = decoder(&job);
        Self { job, decoder, is_encoded: false, segments: Vec::new(), seek: 0 }
    }

    /// Sets the language, which the decoder has detected.
    pub fn set_language(&mut self, token: u32) {
        self.job.language = Language::Known(Some(token));
    }

    /// The samples to encode; `None` if they are encoded.
    pub fn unencoded_samples(&self) -> Option<&[f32]> {
        (!self.is_encoded).then(|| self.samples())
    }

    /// The part of the window that is decoded.
    fn samples(&self) -> &[f32] {
        self.job.window.samples.get(self.seek..).unwrap_or_default()
    }

    /// Adds the segments of a decoded part. `true`: the rest of the window must be decoded, too.
    ///
    /// # Errors
    /// If the alignment of words fails.
    pub fn add_segments(
        &mut self,
        decoded: DecodedWindow,
        align: Align<'_>,
        pause: &dyn Fn() -> Result<(), ModelError>,
    ) -> Result<bool, ModelError> {
        let length = u32::try_from(self.samples().len().div_ceil(TIMESTAMP_SAMPLES)).unwrap_or(u32::MAX);
        if decoded.is_silent {
            return Ok(false);
        }
        let vocabulary = &self.job.options.vocabulary;
        let Cut { mut segments, unfinished } = segments::cut(vocabulary, &decoded.tokens, length);
        // The model may have invented the text of silence.
        let rest = unfinished.filter(|rest| self.has_speech(self.begin_of(rest)));
        let seek = rest.as_ref().map(|rest| self.begin_of(rest)).filter(|begin| *begin >= self.seek + MIN_ADVANCE);
        // Text that is not decoded again is kept.
        let kept = rest.filter(|rest| seek.is_none() && segments::has_text(vocabulary, &decoded.tokens, rest));
        segments.extend(kept);
        let mut new: Vec<Segment> = segments.iter().map(|one| self.segment(one, &decoded)).collect();
        if self.job.words {
            self.add_words(&mut new, &decoded, align, pause)?;
        }
        self.segments.append(&mut new);
        if let Some(seek) = seek {
            self.seek = seek;
            self.decoder = decoder(&self.job);
            self.is_encoded = false;
        }
        Ok(seek.is_some())
    }

    /// Where a segment of the part begins in the window; samples.
    fn begin_of(&self, segment: &TokenSegment) -> usize {
        self.seek + segment.start as usize * TIMESTAMP_SAMPLES
    }

    /// True if the window has speech after this sample.
    fn has_speech(&self, after: usize) -> bool {
        let speech = self.job.window.speech.iter().map(|range| range.end.saturating_sub(range.start.max(after)));
        speech.sum::<usize>() >= MIN_SPEECH
    }

    /// Seconds in the audio of a sample of the part.
    fn seconds(&self, sample: usize) -> f64 {
        (self.job.window.start + (self.seek + sample) as u64) as f64 / SAMPLE_RATE as f64
    }

    /// Seconds in the audio of a time in the part, not after the window.
    fn time(&self, seconds: f64) -> f64 {
        (self.seconds(0) + seconds).min(self.seconds(self.samples().len()))
    }

    fn segment(&self, one: &TokenSegment, decoded: &DecodedWindow) -> Segment {
        let vocabulary = &self.job.options.vocabulary;
        let tokens = decoded.tokens.get(one.tokens.clone()).unwrap_or_default();
        let logprobs = decoded.logprobs.get(one.tokens.clone()).unwrap_or_default();
        let texts = tokens.iter().zip(logprobs).filter(|(id, _)| vocabulary.is_text(**id));
        let spoken = |(id, logprob): (&u32, &f32)| SpokenToken {
            id: *id,
            bytes: vocabulary.bytes(*id).to_vec(),
            logprob: *logprob,
        };
        Segment {
            seek: self.seconds(0),
            start: self.time(f64::from(one.start) * TIMESTAMP_SECONDS),
            end: self.time(f64::from(one.end) * TIMESTAMP_SECONDS),
            text: vocabulary.text(tokens),
            tokens: tokens.to_vec(),
            temperature: decoded.temperature,
            avg_logprob: decoded.avg_logprob,
            compression_ratio: decoded.compression_ratio,
            no_speech_prob: decoded.no_speech_prob,
            words: Vec::new(),
            logprobs: texts.map(spoken).collect(),
        }
    }

    fn add_words(
        &self,
        segments: &mut [Segment],
        decoded: &DecodedWindow,
        align: Align<'_>,
        pause: &dyn Fn() -> Result<(), ModelError>,
    ) -> Result<(), ModelError> {
        let vocabulary = &self.job.options.vocabulary;
        let ids: Vec<u32> = segments.iter().flat_map(|one| one.logprobs.iter().map(|token| token.id)).collect();
        if ids.is_empty() {
            return Ok(());
        }
        let first = decoded.start_tokens.len();
        let ends = [vocabulary.no_timestamps];
        let tokens = [&decoded.start_tokens[..], &ends, &ids, &[vocabulary.end_of_text]].concat();
        let frames = self.samples().len() / TIMESTAMP_SAMPLES;
        // The attention of a token tells where the next one is spoken.
        let times = align(&tokens)?.first_frames(first..tokens.len() - 1, frames, pause)?;
        let times: Vec<f64> = times.iter().map(|frame| self.time(*frame as f64 * TIMESTAMP_SECONDS)).collect();
        let language = match self.job.language {
            _ if self.job.options.translate => "en",
            Language::Known(Some(token)) => vocabulary.language_code(token).unwrap_or("en"),
            _ => "en",
        };
        let mut begin = 0;
        let mut all: Vec<Vec<Word>> = Vec::new();
        for segment in segments.iter() {
            let ids: Vec<u32> = segment.logprobs.iter().map(|token| token.id).collect();
            let logprobs: Vec<f32> = segment.logprobs.iter().map(|token| token.logprob).collect();
            let times = times.get(begin..).unwrap_or_default();
            all.push(words::timed(&words::split(vocabulary, &ids, language), times, &logprobs));
            begin += ids.len();
        }
        for (segment, mut words) in segments.iter_mut().zip(all) {
            words::limit_durations(&mut words);
            segment.words = words::join_punctuation(words);
        }
        Ok(())
    }
}

/// A decoder of the window, or of a part of it.
fn decoder(job: &WindowJob) -> WindowDecoder {
    let language = match job.language {
        Language::Known(token) => token,
        Language::Unknown => None,
    };
    WindowDecoder::new(Arc::clone(&job.options), language, job.number)
}
