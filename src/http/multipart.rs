//! Streaming parser for `multipart/form-data` (RFC 7578); a part's content is never buffered as a whole unless the
//! caller requests it.

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use actix_multipart::{Field, Multipart};
use actix_web::http::header;
use actix_web::web::{Bytes, Payload};
use actix_web::{HttpMessage, HttpRequest, web};
use futures_util::{Stream, StreamExt};
use serde_json::Value;

use super::{Api, extractors};
use crate::clock_rng::ClockRng;
use crate::display::shorten;
use crate::error::{Code, Error, Result};
use crate::json_input;

/// In every window of this much waiting time, at least [`MIN_WINDOW_BYTES`] bytes must arrive.
const WINDOW: Duration = Duration::from_secs(30);
const MIN_WINDOW_BYTES: usize = 30 << 10;
/// The max total time that the server waits for one body.
const MAX_WAIT: Duration = Duration::from_secs(2 * 3600);

/// The largest part that is a plain field.
const MAX_FIELD_BYTES: usize = 4096;

/// The parts of a body, in order.
pub struct Parts {
    form: Multipart,
    rate: TransferRate,
}

/// A part. Its content must be read before the next part is requested.
pub struct Part {
    field: Field,
    rate: TransferRate,
}

/// How fast a body arrives. Counts only the time in which the server waits for the client.
#[derive(Clone)]
struct TransferRate {
    clock_rng: Arc<dyn ClockRng>,
    progress: Rc<RefCell<Progress>>,
}

#[derive(Clone, Copy, Default)]
struct Progress {
    /// Bytes that arrived in this window, and the wait for them.
    bytes: usize,
    waited: Duration,
    /// The waiting time of all earlier windows.
    before: Duration,
}

impl Parts {
    /// Checks the headers; `largest` bounds what the whole body may declare.
    pub fn of(request: &HttpRequest, payload: Payload, largest: u64, too_large: impl Fn() -> Error) -> Result<Self> {
        extractors::refuse_encoding(request)?;
        let form = request.mime_type().ok().flatten().is_some_and(|kind| kind.essence_str() == "multipart/form-data");
        if !form {
            let text =
                "The request body must be a form with the header 'Content-Type: multipart/form-data; boundary=…'.";
            return Err(Error::new(Code::InvalidParameter, text));
        }
        let declared =
            request.headers().get(header::CONTENT_LENGTH).and_then(|value| value.to_str().ok()?.parse().ok());
        if declared.is_some_and(|bytes: u64| bytes > largest) {
            return Err(too_large());
        }
        let api = request.app_data::<web::Data<Api>>().ok_or_else(|| Error::internal("no application state"))?;
        let rate = TransferRate { clock_rng: api.clock_rng.clone(), progress: Rc::default() };
        Ok(Self { form: Multipart::new(request.headers(), payload), rate })
    }

    pub async fn next(&mut self) -> Result<Option<Part>> {
        let field = self.rate.next(&mut self.form, |_| 0).await?;
        Ok(field.map(|field| Part { field, rate: self.rate.clone() }))
    }
}

/// What the text of a field stands for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FieldKind {
    Text,
    /// Numbers, arrays and objects.
    Json,
    /// True or false, in JSON or as HTML forms and Python write it.
    Flag,
}

impl FieldKind {
    /// The value of a field. A text that is no value of its kind stays text, for the error.
    pub fn value(self, text: String) -> Value {
        let value = match self {
            Self::Text => None,
            Self::Json => serde_json::from_str(&text).ok(),
            Self::Flag => extractors::flag(&text).map(Value::Bool).or_else(|| serde_json::from_str(&text).ok()),
        };
        value.unwrap_or(Value::String(text))
    }
}

impl Part {
    pub fn name(&self) -> &str {
        self.field.name().unwrap_or_default()
    }

    /// The client's name of the file.
    pub fn file_name(&self) -> Option<String> {
        let disposition = self.field.content_disposition()?;
        let extended = disposition.get_filename_ext().and_then(|name| String::from_utf8(name.value.clone()).ok());
        extended.or_else(|| disposition.get_filename().map(str::to_owned))
    }

    /// The next bytes; none at the end of the part.
    pub async fn next(&mut self) -> Result<Option<Bytes>> {
        self.rate.next(&mut self.field, Bytes::len).await
    }

    /// The whole part, as the text of a plain field.
    pub async fn text(self) -> Result<String> {
        self.text_within(MAX_FIELD_BYTES).await
    }

    /// Like [`Self::text`], with another length limit.
    pub async fn text_within(self, max_bytes: usize) -> Result<String> {
        let name = shorten(self.name());
        let too_long = || Error::invalid(&*name, format!("'{name}' is longer than {max_bytes} bytes. Shorten it."));
        let bytes = self.bytes_within(max_bytes, too_long).await?;
        let text = json_input::decode(&bytes).map(str::to_owned);
        text.map_err(|problem| Error::invalid(&*name, format!("'{name}' {problem}. Send it as UTF-8.")))
    }

    /// The whole part, if it does not exceed the limit.
    pub async fn bytes_within(mut self, max_bytes: usize, too_long: impl Fn() -> Error) -> Result<Vec<u8>> {
        let mut bytes = Vec::new();
        while let Some(chunk) = self.next().await? {
            if bytes.len() + chunk.len() > max_bytes {
                return Err(too_long());
            }
            bytes.extend_from_slice(&chunk);
        }
        Ok(bytes)
    }
}

impl TransferRate {
    /// The next item, of `size` bytes, unless the client is too slow.
    async fn next<T>(
        &self,
        stream: &mut (impl Stream<Item = Result<T, actix_multipart::MultipartError>> + Unpin),
        size: impl Fn(&T) -> usize,
    ) -> Result<Option<T>> {
        let so_far = *self.progress.borrow();
        let allowed = WINDOW.saturating_sub(so_far.waited).min(MAX_WAIT.saturating_sub(so_far.before));
        let began = self.clock_rng.uptime();
        let next = actix_web::rt::time::timeout(allowed, stream.next()).await.map_err(|_| too_slow())?;
        let next = next.transpose().map_err(|cause| refuse(&cause))?;
        let waited = self.clock_rng.uptime().saturating_sub(began);
        self.progress.borrow_mut().add(next.as_ref().map_or(0, size), waited);
        Ok(next)
    }
}

impl Progress {
    fn add(&mut self, bytes: usize, waited: Duration) {
        self.bytes += bytes;
        self.waited += waited;
        if self.bytes >= MIN_WINDOW_BYTES {
            *self = Self { before: self.before + self.waited, ..Self::default() };
        }
    }
}

fn too_slow() -> Error {
    let (min, seconds) = (MIN_WINDOW_BYTES >> 10, WINDOW.as_secs());
    let text = format!(
        "The body arrives too slowly: at least {min} KiB in {seconds} s are required. Send it steadily, or check the connection."
    );
    Error::new(Code::RequestTimeout, text)
}

fn refuse(cause: &actix_multipart::MultipartError) -> Error {
    use actix_multipart::MultipartError as E;
    let text = match cause {
        E::Incomplete | E::Payload(_) => "The request body broke off before its end. Send it again.".to_owned(),
        E::BoundaryMissing => {
            "The header 'Content-Type' has no boundary. Leave the header to your HTTP client, which adds one."
                .to_owned()
        }
        E::ContentDispositionMissing | E::ContentDispositionNameMissing => {
            "A part of the form has no name. Send 'Content-Disposition: form-data; name=\"…\"' with each part."
                .to_owned()
        }
        _ => "The body is not well-formed multipart/form-data. Send it with your HTTP client's support for forms."
            .to_owned(),
    };
    Error::new(Code::InvalidParameter, text).with_cause(cause.to_string())
}

#[cfg(test)]
mod tests {
    use super::{MIN_WINDOW_BYTES, Progress, WINDOW};
    use std::time::Duration;

    #[test]
    fn a_window_ends_when_enough_bytes_have_arrived() {
        let mut progress = Progress::default();
        progress.add(MIN_WINDOW_BYTES - 1, Duration::from_secs(20));
        assert_eq!(WINDOW.saturating_sub(progress.waited), Duration::from_secs(10));
        progress.add(1, Duration::from_secs(5));
        assert_eq!((progress.bytes, progress.waited, progress.before), (0, Duration::ZERO, Duration::from_secs(25)));
    }
}
