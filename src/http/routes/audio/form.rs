//! Multipart forms with an audio file, and the request's fields as text.

use actix_web::HttpRequest;
use actix_web::web::Payload;
use serde::Deserialize;
use serde_json::{Map, Value};

use super::request::{CheckedRequest, MAX_PROMPT_CHARS, TranscriptionRequest};
use crate::calls::transcriptions::{ReceivedAudio, Upload, too_large};
use crate::display::shorten;
use crate::engine::TranscriptionTask;
use crate::error::{Code, Error, Result};
use crate::http::extractors::from_json;
use crate::http::multipart::{FieldKind, Part, Parts};
use crate::http::unknown_fields::UnknownFields;

/// Max bytes of the other parts and the boundaries.
const FRAME: u64 = 1 << 20;
const MAX_FIELD_BYTES: usize = 4096;
/// Max parts; more than the number of fields and list entries.
const MAX_PARTS: usize = 64;

/// Fields that have several values: parts with the same name, which may end in `[]`, or a JSON array.
const LISTS: [&str; 2] = ["timestamp_granularities", "include"];
/// A field that is an object: clients send its fields as parts named `chunking_strategy[type]` and so on.
const CHUNKING: &str = "chunking_strategy";

fn kind(field: &str) -> FieldKind {
    match field {
        "stream" => FieldKind::Flag,
        "temperature" | CHUNKING => FieldKind::Json,
        _ => FieldKind::Text,
    }
}

/// The parts of a request.
#[derive(Deserialize, utoipa::ToSchema)]
#[expect(dead_code, reason = "describes the form in /openapi.json; it is read part by part")]
pub struct TranscriptionForm {
    /// The audio: WAV, MP3, FLAC, OGG (Vorbis, Opus, FLAC), M4A or MP4 (AAC, ALAC), WebM or Matroska, AAC, AIFF, AU or CAF. Its
    /// name does not matter.
    #[schema(value_type = String, format = Binary)]
    file: String,
    #[serde(flatten)]
    request: TranscriptionRequest,
}

/// Reads the whole form; the file is stored as it arrives.
pub async fn read(
    request: &HttpRequest,
    payload: Payload,
    upload: Upload,
    task: TranscriptionTask,
    unknown: UnknownFields,
) -> Result<(CheckedRequest, ReceivedAudio)> {
    let max_bytes = upload.max_bytes();
    let mut parts = Parts::of(request, payload, max_bytes.saturating_add(FRAME), || too_large(max_bytes))?;
    let mut form = Form { upload: Some(upload), audio: None, fields: Map::new() };
    let mut count = 0;
    while let Some(part) = parts.next().await? {
        count += 1;
        if count > MAX_PARTS {
            let text = format!("The form has more than {MAX_PARTS} parts. Send each field once.");
            return Err(Error::new(Code::InvalidParameter, text));
        }
        form.take(part).await?;
    }
    form.finish(task, unknown)
}

/// The parts read so far.
struct Form {
    /// Until the file begins.
    upload: Option<Upload>,
    audio: Option<ReceivedAudio>,
    fields: Map<String, Value>,
}

impl Form {
    async fn take(&mut self, part: Part) -> Result<()> {
        let name = part.name().to_owned();
        if name == "file" {
            let upload = self.upload.take().ok_or_else(|| repeated("file"))?;
            self.audio = Some(receive(part, upload).await?);
            return Ok(());
        }
        let max_bytes = if name == "prompt" { 4 * MAX_PROMPT_CHARS } else { MAX_FIELD_BYTES };
        let text = part.text_within(max_bytes).await?;
        if let Some(list) = name.strip_suffix("[]").or_else(|| LISTS.into_iter().find(|list| *list == name)) {
            return self.extend(list, text);
        }
        if let Some(inner) = name.strip_prefix(CHUNKING).and_then(|name| name.strip_prefix('[')?.strip_suffix(']')) {
            return self.insert_in_strategy(inner, &text);
        }
        if self.fields.contains_key(&name) {
            return Err(repeated(&name));
        }
        let value = kind(&name).value(text);
        self.fields.insert(name, value);
        Ok(())
    }

    /// Adds the values of a list.
    fn extend(&mut self, list: &str, text: String) -> Result<()> {
        let values = match serde_json::from_str(&text) {
            Ok(Value::Array(values)) => values,
            _ => vec![Value::String(text)],
        };
        match self.fields.entry(list).or_insert_with(|| Value::Array(Vec::new())) {
            Value::Array(known) => known.extend(values),
            _ => return Err(repeated(list)),
        }
        Ok(())
    }

    fn insert_in_strategy(&mut self, field: &str, text: &str) -> Result<()> {
        let value = serde_json::from_str(text).unwrap_or_else(|_| Value::String(text.to_owned()));
        match self.fields.entry(CHUNKING).or_insert_with(|| Value::Object(Map::new())) {
            Value::Object(known) if !known.contains_key(field) => drop(known.insert(field.to_owned(), value)),
            _ => return Err(repeated(CHUNKING)),
        }
        Ok(())
    }

    fn finish(self, task: TranscriptionTask, unknown: UnknownFields) -> Result<(CheckedRequest, ReceivedAudio)> {
        let audio = self.audio.ok_or_else(|| {
            let text = "'file' is missing. Send the audio as a part of the form, for example with -F file=@speech.mp3.";
            Error::invalid("file", text)
        })?;
        let fields = Value::Object(self.fields).to_string();
        let checked = from_json::<TranscriptionRequest>(fields.as_bytes())?.check(task, unknown)?;
        Ok((checked, audio))
    }
}

async fn receive(mut part: Part, mut upload: Upload) -> Result<ReceivedAudio> {
    while let Some(bytes) = part.next().await? {
        upload.write(&bytes).await?;
    }
    upload.finish().await
}

fn repeated(name: &str) -> Error {
    let name = shorten(name);
    Error::invalid(&*name, format!("'{name}' is given more than once. Give it once."))
}
