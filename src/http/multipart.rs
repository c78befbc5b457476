//! `multipart/form-data` (RFC 7578), read part by part as it arrives and never held whole.

use std::time::Duration;

use actix_multipart::{Field, Multipart};
use actix_web::http::header;
use actix_web::web::{Bytes, Payload};
use actix_web::{HttpMessage, HttpRequest};
use futures_util::{Stream, StreamExt};

use super::input;
use crate::error::{Code, Error, Result};
use crate::readable::shorten;

/// The longest that a client may be silent in the middle of its body.
const IDLE: Duration = Duration::from_secs(30);

/// The largest part that is a plain field.
const LONGEST_FIELD: usize = 4096;

/// The parts of a body, one after the other.
pub struct Parts(Multipart);

/// One part; its content must be read before the next one is asked for.
pub struct Part(Field);

impl Parts {
    /// Checks the headers; `largest` bounds what the whole body may declare.
    pub fn of(request: &HttpRequest, payload: Payload, largest: u64, too_large: impl Fn() -> Error) -> Result<Self> {
        input::refuse_encoding(request)?;
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
        Ok(Self(Multipart::new(request.headers(), payload)))
    }

    pub async fn next(&mut self) -> Result<Option<Part>> {
        Ok(within(&mut self.0).await?.map(Part))
    }
}

impl Part {
    pub fn name(&self) -> &str {
        self.0.name().unwrap_or_default()
    }

    /// The name that the file had at the client.
    pub fn file_name(&self) -> Option<String> {
        let disposition = self.0.content_disposition()?;
        let extended = disposition.get_filename_ext().and_then(|name| String::from_utf8(name.value.clone()).ok());
        extended.or_else(|| disposition.get_filename().map(str::to_owned))
    }

    /// The next bytes; none at the end of the part.
    pub async fn next(&mut self) -> Result<Option<Bytes>> {
        within(&mut self.0).await
    }

    /// The whole part, as the text of a plain field.
    pub async fn text(self) -> Result<String> {
        self.text_within(LONGEST_FIELD).await
    }

    /// The same for a field that may be longer than others, or shorter.
    pub async fn text_within(self, longest: usize) -> Result<String> {
        let name = shorten(self.name());
        let too_long = || Error::invalid(&*name, format!("'{name}' is longer than {longest} bytes. Shorten it."));
        let bytes = self.bytes_within(longest, too_long).await?;
        String::from_utf8(bytes).map_err(|_| Error::invalid(name.clone(), format!("'{name}' is not valid UTF-8.")))
    }

    /// The whole part, if it is no longer than that.
    pub async fn bytes_within(mut self, longest: usize, too_long: impl Fn() -> Error) -> Result<Vec<u8>> {
        let mut bytes = Vec::new();
        while let Some(piece) = self.next().await? {
            if bytes.len() + piece.len() > longest {
                return Err(too_long());
            }
            bytes.extend_from_slice(&piece);
        }
        Ok(bytes)
    }
}

/// The next item, if the client does not fall silent.
async fn within<T>(
    stream: &mut (impl Stream<Item = Result<T, actix_multipart::MultipartError>> + Unpin),
) -> Result<Option<T>> {
    let next = actix_web::rt::time::timeout(IDLE, stream.next()).await.map_err(|_| {
        let text =
            format!("Nothing of the body arrived for {} s. Send it steadily, or check the connection.", IDLE.as_secs());
        Error::new(Code::RequestTimeout, text)
    })?;
    next.transpose().map_err(|cause| refuse(&cause))
}

fn refuse(cause: &actix_multipart::MultipartError) -> Error {
    use actix_multipart::MultipartError as E;
    let text = match cause {
        E::Incomplete | E::Payload(_) => "The request body broke off before its end. Send it again.".to_owned(),
        other => format!("The body is not well-formed multipart/form-data: {other}."),
    };
    Error::new(Code::InvalidParameter, text).because(cause.to_string())
}
