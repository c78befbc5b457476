//! Extractors for bodies, query strings and path ids, with size limits and errors that name the invalid field.

use std::future::{Ready, ready};
use std::str::FromStr;
use std::time::Duration;

use actix_web::dev::Payload;
use actix_web::error::PayloadError;
use actix_web::http::header;
use actix_web::web::{Bytes, BytesMut};
use actix_web::{FromRequest, HttpRequest};
use futures_util::StreamExt;
use futures_util::future::LocalBoxFuture;
use serde::Deserialize;
use serde::de::{DeserializeOwned, Deserializer};
use serde_json::{Map, Value};

use super::resource_ids::parse_id;
use super::unknown_fields::known_fields;
use crate::display::shorten;
use crate::error::{Code, Error, Result};
use crate::ids::BadId;
use crate::json_input::{self, InputError};

/// Max bytes of a JSON body; enough for a transcript that fills a long context.
pub(super) const BODY_LIMIT: usize = 8 * 1024 * 1024;

/// A client must send its whole body within this time.
const BODY_TIMEOUT: Duration = Duration::from_secs(30);

/// A JSON body.
pub struct ApiJson<T>(pub T);

impl<T: DeserializeOwned + 'static> FromRequest for ApiJson<T> {
    type Error = Error;
    type Future = LocalBoxFuture<'static, Result<Self>>;

    fn from_request(request: &HttpRequest, payload: &mut Payload) -> Self::Future {
        let sent = SentJson::from_request(request, payload);
        Box::pin(async move { Ok(Self(sent.await?.body)) })
    }
}

/// A JSON body, and its bytes as they were sent.
pub struct SentJson<T> {
    pub body: T,
    pub bytes: Bytes,
}

impl<T: DeserializeOwned + 'static> FromRequest for SentJson<T> {
    type Error = Error;
    type Future = LocalBoxFuture<'static, Result<Self>>;

    fn from_request(request: &HttpRequest, payload: &mut Payload) -> Self::Future {
        let (request, payload) = (request.clone(), payload.take());
        Box::pin(async move {
            let bytes = read_body(&request, payload).await?;
            Ok(Self { body: from_json(or_empty_object(&bytes))?, bytes })
        })
    }
}

/// The parameters of a GET: the query string, and a JSON object as the body if one is sent.
/// A field given in both with different values is refused. Unknown parameters of the query string are ignored, because
/// clients add their own; unknown fields of the body are refused.
pub struct ApiParams<T>(pub T);

impl<T: DeserializeOwned + 'static> FromRequest for ApiParams<T> {
    type Error = Error;
    type Future = LocalBoxFuture<'static, Result<Self>>;

    fn from_request(request: &HttpRequest, payload: &mut Payload) -> Self::Future {
        let (request, payload) = (request.clone(), payload.take());
        Box::pin(async move {
            let mut fields = query_fields(request.query_string(), known_fields::<T>())?;
            let body = read_body(&request, payload).await?;
            if !body.is_empty() {
                merge(&mut fields, from_json(&body)?)?;
            }
            json_input::from_object(fields).map(Self).map_err(InputError::in_body)
        })
    }
}

/// The parameters in `known`.
fn query_fields(query: &str, known: &[&str]) -> Result<Map<String, Value>> {
    let mut fields = Map::new();
    let pairs = query_pairs(query)?;
    for (name, value) in pairs.into_iter().filter(|(name, _)| known.contains(&name.as_str())) {
        if fields.contains_key(&name) {
            let message = format!("The query parameter '{name}' is given more than once. Give it once.");
            return Err(Error::invalid(name, message));
        }
        fields.insert(name, Value::String(value));
    }
    Ok(fields)
}

/// The parameters of a query string, in their order.
pub fn query_pairs(query: &str) -> Result<Vec<(String, String)>> {
    actix_web::web::Query::<Vec<(String, String)>>::from_query(query)
        .map(|pairs| pairs.into_inner())
        .map_err(|_| Error::new(Code::InvalidParameter, "The query string is not valid percent-encoded UTF-8."))
}

fn merge(fields: &mut Map<String, Value>, body: Map<String, Value>) -> Result<()> {
    for (name, value) in body {
        match fields.get(&name) {
            Some(Value::String(given)) if *given != plain(&value) => {
                let message = format!(
                    "'{name}' is '{given}' in the query string but {value} in the body. Send it in one of them, or the same value in both."
                );
                return Err(Error::invalid(name, message));
            }
            _ => fields.insert(name, value),
        };
    }
    Ok(())
}

/// A JSON value as a query string would write it.
fn plain(value: &Value) -> String {
    value.as_str().map_or_else(|| value.to_string(), str::to_owned)
}

/// An id from the path. A malformed one gives 404, like an unknown one.
pub struct ApiPath<I>(pub I);

impl<I: FromStr<Err = BadId> + 'static> FromRequest for ApiPath<I> {
    type Error = Error;
    type Future = Ready<Result<Self>>;

    fn from_request(request: &HttpRequest, _: &mut Payload) -> Self::Future {
        let text = request.match_info().iter().next().map(|(_, value)| value).unwrap_or_default();
        ready(parse_id(text).map(Self))
    }
}

/// 415 for a body that is compressed. `Content-Encoding` is a list, on one line or several, and `identity` means that the
/// body is not encoded (RFC 9110, sections 5.6.1 and 8.4).
pub(super) fn refuse_encoding(request: &HttpRequest) -> Result<()> {
    for line in request.headers().get_all(header::CONTENT_ENCODING) {
        let line = String::from_utf8_lossy(line.as_bytes());
        let mut codings = line.split(',').map(|coding| coding.trim_matches([' ', '\t']));
        if let Some(coding) = codings.find(|coding| !coding.is_empty() && !coding.eq_ignore_ascii_case("identity")) {
            let coding = shorten(coding);
            let message = format!("Content-Encoding '{coding}' is not accepted. Send the body uncompressed.");
            return Err(Error::new(Code::UnsupportedEncoding, message));
        }
    }
    Ok(())
}

/// Reads the body under its size and time limits. A body must be JSON and not compressed.
pub(super) async fn read_body(request: &HttpRequest, payload: Payload) -> Result<Bytes> {
    let body = read_bytes(request, payload, BODY_LIMIT).await?;
    if body.is_empty() { Ok(body) } else { require_json(request).map(|()| body) }
}

/// A JSON body of at most `limit` bytes, for requests without a key.
pub(super) async fn read_small_json<T: DeserializeOwned>(
    request: &HttpRequest,
    payload: Payload,
    limit: usize,
) -> Result<T> {
    require_json(request)?;
    from_json(or_empty_object(&read_bytes(request, payload, limit).await?))
}

/// Reads the body under a limit of its bytes and the time limit, whatever the `Content-Type`.
pub(super) async fn read_bytes(request: &HttpRequest, payload: Payload, limit: usize) -> Result<Bytes> {
    refuse_encoding(request)?;
    let declared = request.headers().get(header::CONTENT_LENGTH).and_then(|v| v.to_str().ok()?.parse().ok());
    if declared.is_some_and(|bytes: usize| bytes > limit) {
        return Err(too_large(limit));
    }
    let read = actix_web::rt::time::timeout(BODY_TIMEOUT, collect(payload, limit)).await;
    read.unwrap_or_else(|_| {
        let message = format!(
            "The body did not arrive within {} s. Send it faster, or check the connection.",
            BODY_TIMEOUT.as_secs()
        );
        Err(Error::new(Code::RequestTimeout, message))
    })
}

async fn collect(mut payload: Payload, limit: usize) -> Result<Bytes> {
    let mut body = BytesMut::new();
    while let Some(chunk) = payload.next().await {
        let chunk = chunk.map_err(|cause| {
            let message = match cause {
                PayloadError::EncodingCorrupted => {
                    "The request body is not valid chunks of 'Transfer-Encoding: chunked'."
                }
                _ => "The request body broke off before its end.",
            };
            Error::new(Code::InvalidParameter, message).with_cause(cause.to_string())
        })?;
        if body.len() + chunk.len() > limit {
            return Err(too_large(limit));
        }
        body.extend_from_slice(&chunk);
    }
    Ok(body.freeze())
}

fn too_large(limit: usize) -> Error {
    let message = format!("The request body is larger than {limit} bytes. Send less in one request.");
    Error::new(Code::RequestTooLarge, message)
}

fn require_json(request: &HttpRequest) -> Result<()> {
    use actix_web::HttpMessage;
    let is_single = request.headers().get_all(header::CONTENT_TYPE).count() == 1;
    match request.mime_type() {
        Ok(Some(kind)) if is_single && kind.essence_str() == "application/json" => Ok(()),
        _ => Err(Error::new(
            Code::InvalidParameter,
            "The request body must be JSON with one header 'Content-Type: application/json'.",
        )),
    }
}

/// A missing body counts as an empty object, so the error names the first required field.
pub(super) fn or_empty_object(body: &[u8]) -> &[u8] {
    if matches!(body, b"" | b"\xef\xbb\xbf") { b"{}" } else { body }
}

pub(super) fn from_json<T: DeserializeOwned>(body: &[u8]) -> Result<T> {
    let wrong = |problem: String| Error::new(Code::InvalidParameter, format!("The body {problem}. Send it as UTF-8."));
    let text = json_input::decode(body).map_err(wrong)?;
    json_input::from_str(text).map_err(InputError::in_body)
}

/// A field of a PATCH: absent leaves it unchanged, `null` clears it, a value sets it.
pub fn nullable<'de, D, T>(deserializer: D) -> Result<Option<Option<T>>, D::Error>
where
    D: Deserializer<'de>,
    T: Deserialize<'de>,
{
    Option::deserialize(deserializer).map(Some)
}

/// A JSON object that is kept as text.
pub fn object_text(fields: Map<String, Value>) -> String {
    Value::Object(fields).to_string()
}

/// The flag that a text stands for. Python writes `True`; HTML forms write `on`.
pub fn flag(text: &str) -> Option<bool> {
    match text.trim().to_ascii_lowercase().as_str() {
        "true" | "1" | "yes" | "on" => Some(true),
        "false" | "0" | "no" | "off" => Some(false),
        _ => None,
    }
}

/// A number or flag that a query string writes as text and a JSON body as itself.
#[derive(Deserialize)]
#[serde(untagged)]
enum Lenient<T> {
    Plain(T),
    Text(String),
}

/// Reads [`Lenient`] values of optional parameters.
pub fn lenient<'de, D, T>(deserializer: D) -> Result<Option<T>, D::Error>
where
    D: Deserializer<'de>,
    T: Deserialize<'de> + FromStr,
{
    let wrong = || serde::de::Error::custom(format!("must be {}", kind::<T>()));
    match Option::<Lenient<T>>::deserialize(deserializer).map_err(|_| wrong())? {
        None => Ok(None),
        Some(Lenient::Plain(value)) => Ok(Some(value)),
        Some(Lenient::Text(text)) => {
            let flag = if is_flag::<T>() { flag(&text) } else { None };
            flag.map_or(text, |flag| flag.to_string()).parse().map(Some).map_err(|_| wrong())
        }
    }
}

fn kind<T>() -> &'static str {
    if is_flag::<T>() { "true or false" } else { "a whole number" }
}

fn is_flag<T>() -> bool {
    std::any::type_name::<T>() == "bool"
}
