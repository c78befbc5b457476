//! Newline-delimited JSON: one value a line, as Ollama's API streams its responses.

use std::convert::Infallible;

use actix_web::HttpResponse;
use actix_web::http::header;
use actix_web::web::Bytes;
use futures_util::{Stream, StreamExt};
use serde::Serialize;

use crate::json_lines;

/// A JSON value as one line.
pub fn line(value: &impl Serialize) -> Bytes {
    let mut bytes = Vec::new();
    if let Err(cause) = json_lines::write(&mut bytes, value) {
        tracing::error!(%cause, "a line could not be encoded");
        return Bytes::new();
    }
    bytes.push(b'\n');
    bytes.into()
}

/// A streamed response of `lines`.
pub fn response(lines: impl Stream<Item = Bytes> + 'static) -> HttpResponse {
    HttpResponse::Ok()
        .content_type("application/x-ndjson")
        .insert_header((header::CACHE_CONTROL, "no-cache, no-transform"))
        .insert_header(("x-accel-buffering", "no"))
        .streaming(lines.map(Ok::<_, Infallible>))
}

#[cfg(test)]
mod tests {
    use serde_json::value::RawValue;

    use super::line;

    #[test]
    fn a_value_is_one_line() {
        let raw = RawValue::from_string("{\n\"z\": \"a\\nb\",\r\n\"a\": 1e3}".to_owned()).unwrap();
        assert_eq!(line(&raw), "{ \"z\": \"a\\nb\",  \"a\": 1e3}\n");
    }
}
