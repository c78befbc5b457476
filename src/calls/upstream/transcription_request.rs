//! Transcriptions of an upstream model: the form with the audio file, and the transcript.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::sync::Arc;

use hyper::body::Bytes;
use serde::Deserialize;
use tokio::sync::mpsc;

use super::bounded_list::AtMost;
use super::response_limits;
use crate::engine::{Segment, TranscriptionEvent, Word, find_language};
use crate::upstream::{Payload, UpstreamCall, UpstreamModel};

/// Bytes of the file that are read at once.
const BLOCK: usize = 128 << 10;
/// Blocks that wait for the connection.
const WAITING_BLOCKS: usize = 4;

/// Max segments and max words of a transcript: several days of speech.
const MAX_PARTS: usize = 1 << 18;

/// A file to transcribe or translate.
pub struct TranscriptionRequest {
    pub file: File,
    /// The name of the operation, such as `audio/transcriptions`.
    pub operation: &'static str,
    /// The code of the language; `None`: it is detected.
    pub language: Option<String>,
    pub prompt: Option<String>,
    pub temperature: f32,
    /// Requests the times of words.
    pub words: bool,
    /// A text that is not in the file.
    pub boundary: String,
}

#[derive(Deserialize)]
struct Body {
    text: String,
    language: Option<String>,
    #[serde(default)]
    segments: Option<AtMost<SegmentBody, MAX_PARTS>>,
    #[serde(default)]
    words: Option<AtMost<WordBody, MAX_PARTS>>,
}

#[derive(Deserialize)]
struct SegmentBody {
    start: f64,
    end: f64,
    text: String,
    temperature: Option<f32>,
    avg_logprob: Option<f32>,
    compression_ratio: Option<f32>,
    no_speech_prob: Option<f32>,
}

#[derive(Deserialize)]
struct WordBody {
    word: String,
    start: f64,
    end: f64,
}

impl TranscriptionRequest {
    /// The request to an upstream model. The file is read while it is sent, again for each target that is tried. `seconds`: its
    /// length.
    pub fn call(self, model: &Arc<UpstreamModel>, seconds: f64) -> UpstreamCall {
        let (operation, request) = (self.operation, Arc::new(self));
        let payload = move |name: &str| {
            let (sender, parts) = mpsc::channel(WAITING_BLOCKS);
            let content_type = format!("multipart/form-data; boundary={}", request.boundary);
            let (request, head) = (Arc::clone(&request), request.head(name));
            // It ends when the connection takes no more.
            tokio::task::spawn_blocking(move || request.send(head, &sender));
            Payload::parts(content_type, parts)
        };
        let max_bytes = response_limits::transcript(seconds);
        UpstreamCall { model: Arc::clone(model), operation, payload: Arc::new(payload), max_bytes }
    }

    /// The form up to the contents of the file.
    fn head(&self, model: &str) -> String {
        let mut fields = vec![
            ("model", model.to_owned()),
            ("response_format", "verbose_json".to_owned()),
            ("temperature", self.temperature.to_string()),
            ("timestamp_granularities[]", "segment".to_owned()),
        ];
        fields.extend(self.words.then(|| ("timestamp_granularities[]", "word".to_owned())));
        fields.extend(self.language.clone().map(|language| ("language", language)));
        fields.extend(self.prompt.clone().map(|prompt| ("prompt", prompt)));
        let boundary = &self.boundary;
        let part = |(name, value): (&str, String)| {
            format!("--{boundary}\r\nContent-Disposition: form-data; name=\"{name}\"\r\n\r\n{value}\r\n")
        };
        let fields: String = fields.into_iter().map(part).collect();
        let ending = file_ending(&self.file);
        format!(
            "{fields}--{boundary}\r\nContent-Disposition: form-data; name=\"file\"; filename=\"audio.{ending}\"\r\n\
             Content-Type: application/octet-stream\r\n\r\n"
        )
    }

    /// Sends the whole form. Blocks. Ends early if the connection takes no more.
    fn send(&self, head: String, sender: &mpsc::Sender<io::Result<Bytes>>) {
        let end = format!("\r\n--{}--\r\n", self.boundary);
        let parts = [Ok(head.into())].into_iter().chain(self.blocks()).chain([Ok(end.into())]);
        for part in parts {
            let has_failed = part.is_err();
            if sender.blocking_send(part).is_err() || has_failed {
                return;
            }
        }
    }

    /// The contents of the file. Leaves its position alone, because an earlier attempt may still read it.
    fn blocks(&self) -> impl Iterator<Item = io::Result<Bytes>> {
        let mut offset = 0;
        std::iter::from_fn(move || {
            let mut block = vec![0; BLOCK];
            match self.file.read_at(&mut block, offset) {
                Ok(0) => None,
                Ok(count) => {
                    offset += count as u64;
                    block.truncate(count);
                    Some(Ok(block.into()))
                }
                Err(error) => Some(Err(error)),
            }
        })
    }
}

/// The usual ending of a file with these first bytes. Some servers go by it.
fn file_ending(file: &File) -> &'static str {
    let mut start = [0; 12];
    if file.read_exact_at(&mut start, 0).is_err() {
        return "wav";
    }
    match &start {
        [b'R', b'I', b'F', b'F', ..] => "wav",
        [b'O', b'g', b'g', b'S', ..] => "ogg",
        [b'f', b'L', b'a', b'C', ..] => "flac",
        [_, _, _, _, b'f', b't', b'y', b'p', ..] => "m4a",
        [0x1a, 0x45, 0xdf, 0xa3, ..] => "webm",
        _ => "mp3",
    }
}

/// Reads a response about this many seconds of audio. `None` if it makes no sense.
pub fn read(body: &[u8], seconds: f64) -> Option<Vec<TranscriptionEvent>> {
    let Body { text, language, segments, words } = serde_json::from_slice(body).ok()?;
    let mut segments: Vec<Segment> = segments.unwrap_or_default().0.into_iter().map(segment).collect();
    if segments.is_empty() && !text.trim().is_empty() {
        segments.push(Segment { end: seconds, text, ..Segment::default() });
    }
    let is_sound = |start: f64, end: f64| start.is_finite() && end.is_finite();
    let words = words.unwrap_or_default().0;
    if !segments.iter().all(|segment| is_sound(segment.start, segment.end))
        || !words.iter().all(|word| is_sound(word.start, word.end))
    {
        return None;
    }
    // The earliest start of each segment and those after it, so that the last segment that begins early enough is quickly found.
    let backwards = segments.iter().rev().scan(f64::INFINITY, |earliest, segment| {
        *earliest = earliest.min(segment.start);
        Some(*earliest)
    });
    let mut earliest: Vec<f64> = backwards.collect();
    earliest.reverse();
    for WordBody { word, start, end } in words {
        let text = if word.starts_with(char::is_whitespace) { word } else { format!(" {word}") };
        // A word belongs to the last segment that begins before it ends.
        let at = earliest.partition_point(|earliest| *earliest < end || *earliest <= start).saturating_sub(1);
        if let Some(segment) = segments.get_mut(at) {
            segment.words.push(Word { text, start, end, probability: 1.0 });
        }
    }
    let language =
        language.as_deref().and_then(find_language).map(|code| TranscriptionEvent::Language(code.to_owned()));
    Some(language.into_iter().chain([TranscriptionEvent::Window { segments, seconds }]).collect())
}

fn segment(body: SegmentBody) -> Segment {
    Segment {
        start: body.start,
        end: body.end,
        text: body.text,
        temperature: body.temperature.unwrap_or_default(),
        avg_logprob: body.avg_logprob.unwrap_or_default(),
        compression_ratio: body.compression_ratio.unwrap_or_default(),
        no_speech_prob: body.no_speech_prob.unwrap_or_default(),
        ..Segment::default()
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn segments(body: &serde_json::Value) -> Option<(Option<String>, Vec<Segment>)> {
        let mut events = read(body.to_string().as_bytes(), 4.0)?;
        let Some(TranscriptionEvent::Window { segments, seconds: 4.0 }) = events.pop() else { panic!("no window") };
        let language = events.pop().map(|event| match event {
            TranscriptionEvent::Language(code) => code,
            TranscriptionEvent::Window { .. } => panic!("two windows"),
        });
        Some((language, segments))
    }

    #[test]
    fn words_belong_to_their_segments() {
        let body = json!({
            "task": "transcribe", "language": "english", "duration": 4.0, "text": "One. Two.",
            "segments": [{ "id": 0, "start": 0.0, "end": 1.0, "text": " One." }, { "start": 1.0, "end": 2, "text": " Two." }],
            "words": [{ "word": "One", "start": 0.1, "end": 0.9 }, { "word": " Two", "start": 1.0, "end": 1.5 }],
        });
        let (language, segments) = segments(&body).unwrap();
        assert_eq!(language.as_deref(), Some("en"));
        let words: Vec<Vec<&str>> =
            segments.iter().map(|one| one.words.iter().map(|word| word.text.as_str()).collect()).collect();
        assert_eq!(words, [[" One"], [" Two"]]);
    }

    #[test]
    fn words_belong_to_the_last_segment_that_begins_early_enough() {
        let segment = |start: f64| json!({ "start": start, "end": 9.0, "text": "" });
        let word = |start: f64, end: f64| json!({ "word": "a", "start": start, "end": end });
        // Not in order, as servers may send them.
        let body = json!({
            "text": "", "segments": [segment(1.0), segment(5.0), segment(3.0), segment(8.0)],
            "words": [word(0.0, 0.5), word(1.0, 1.0), word(2.0, 2.5), word(4.0, 4.5), word(6.0, 7.0), word(8.0, 9.0)],
        });
        let counts: Vec<usize> = segments(&body).unwrap().1.iter().map(|one| one.words.len()).collect();
        assert_eq!(counts, [3, 0, 2, 1]);
    }

    #[test]
    fn a_text_without_segments_is_one() {
        let (language, found) = segments(&json!({ "text": "One." })).unwrap();
        assert_eq!((language, found.len(), found[0].end), (None, 1, 4.0));
        assert_eq!(segments(&json!({ "text": " " })).unwrap().1, []);
        assert!(segments(&json!({ "words": [] })).is_none());
    }
}
