//! Authentication: resolves the bearer token to an [`Access`] before any handler runs or body is read.
//!
//! It is middleware of the mounts and runs before routing. No handler can therefore omit the check, and a request
//! without a key gets a 401 for every path, known or not.

use std::fmt::Display;
use std::future::{Ready, ready};

use actix_web::body::MessageBody;
use actix_web::dev::{Payload, ServiceRequest, ServiceResponse};
use actix_web::http::header::{self, HeaderMap, HeaderName, HeaderValue};
use actix_web::middleware::Next;
use actix_web::{Error as ActixError, FromRequest, HttpMessage, HttpRequest, HttpResponse, web};
use serde::Serialize;

use super::Api;
use super::connections::Connection;
use super::keyless::{self, API_KEY};
use super::metering_middleware::SharedRecorder;
use super::response::{ApiResult, Head, List, Mount};
use super::response_budget::Room;
use crate::error::{Code, Error, Result};
use crate::ids::ListId;
use crate::service::access::Access;

/// Set on a response that is replayed for an idempotency key.
const REPLAYED: HeaderName = HeaderName::from_static("idempotent-replayed");

/// An authenticated caller.
pub struct Caller {
    pub access: Access,
    /// The mount whose format the response has ([`Mount::for_client`]).
    pub mount: Mount,
    /// Records the request's usage.
    pub recorder: SharedRecorder,
    /// Room for the response, if it is large.
    pub room: Room,
}

/// Middleware of the mounts and of the APIs with a prefix of their own: every request needs a valid key, even for a 404. The exception is
/// [`keyless`].
pub async fn authenticate<B: MessageBody + 'static>(
    request: ServiceRequest,
    next: Next<B>,
) -> Result<ServiceResponse<actix_web::body::EitherBody<B>>, ActixError> {
    match access(&request).await {
        Ok(access) => {
            request.extensions_mut().insert(access);
            Ok(next.call(request).await?.map_into_left_body())
        }
        Err(error) => Ok(request.error_response(error).map_into_right_body()),
    }
}

async fn access(request: &ServiceRequest) -> Result<Access> {
    let Some(api) = request.app_data::<web::Data<Api>>() else {
        return Err(Error::internal("no application state"));
    };
    authenticate_request(api, request.request()).await
}

/// Authenticates a request. Requests without a key do not count as failed attempts: they always get 401.
pub async fn authenticate_request(api: &Api, request: &HttpRequest) -> Result<Access> {
    let keys = &api.services.keys;
    let access = match keyless::key(api, request) {
        Some(key) => keys.authenticate_keyless(key).await?,
        None => keys.authenticate_from(api.proxies.client(request), secret(request.headers())?).await?,
    };
    if let Some(connection) = Connection::of(request) {
        connection.authenticated();
    }
    Ok(access)
}

/// The key of a request: from `Authorization`, or else from `x-api-key`, where Anthropic's clients send it.
fn secret(headers: &HeaderMap) -> Result<&str> {
    if let Some(value) = single(headers, &header::AUTHORIZATION, "Authorization")? {
        return bearer(value);
    }
    let key = single(headers, &API_KEY, "x-api-key")?.ok_or_else(missing)?;
    key.to_str().ok().map(str::trim).filter(|key| !key.is_empty()).ok_or_else(missing)
}

fn missing() -> Error {
    Error::new(Code::MissingApiKey, "No API key was given. Send it in the header 'Authorization: Bearer YOUR_KEY'.")
}

/// The value of a header that may be sent once.
fn single<'a>(headers: &'a HeaderMap, name: &HeaderName, shown: &str) -> Result<Option<&'a HeaderValue>> {
    let mut values = headers.get_all(name);
    let value = values.next();
    match values.next() {
        Some(_) => {
            let text = format!("The header '{shown}' was sent more than once. Send one.");
            Err(Error::new(Code::InvalidApiKey, text))
        }
        None => Ok(value),
    }
}

fn bearer(value: &HeaderValue) -> Result<&str> {
    let text = value.to_str().map_err(|_| missing())?;
    let (scheme, key) = text.split_once(' ').ok_or_else(missing)?;
    if scheme.eq_ignore_ascii_case("bearer") && !key.trim().is_empty() { Ok(key.trim()) } else { Err(missing()) }
}

impl FromRequest for Caller {
    type Error = Error;
    type Future = Ready<Result<Self>>;

    fn from_request(request: &HttpRequest, _: &mut Payload) -> Self::Future {
        let access = request.extensions().get::<Access>().cloned();
        let strict = request.app_data::<web::Data<Api>>().is_some_and(|api| api.strict_envelope);
        let mount = request.app_data::<Mount>().map(|mount| mount.for_client(request.headers(), strict));
        let recorder = request.extensions().get::<SharedRecorder>().cloned();
        let room = request.extensions().get::<Room>().cloned();
        ready(match (access, mount, recorder, room) {
            (Some(access), Some(mount), Some(recorder), Some(room)) => Ok(Self { access, mount, recorder, room }),
            _ => Err(Error::internal("a handler that needs a caller is outside the two mounts")),
        })
    }
}

impl Caller {
    /// [`Mount::reply`] on the caller's mount; marked if it is a replay.
    pub fn reply<T: Serialize>(&self, head: Head<impl Display>, body: T) -> ApiResult {
        Ok(self.marked(self.mount.reply(head, body)))
    }

    /// [`Mount::result`] on the caller's mount; marked if it is a replay.
    pub fn result<T: Serialize>(&self, id: impl Display, object: &'static str, body: T) -> ApiResult {
        Ok(self.marked(self.mount.result(id, object, body)))
    }

    fn marked(&self, mut reply: HttpResponse) -> HttpResponse {
        if self.access.idempotency_key().is_some_and(|key| key.is_replayed()) {
            reply.headers_mut().insert(REPLAYED, HeaderValue::from_static("true"));
        }
        reply
    }

    /// A page of a listing.
    pub fn list<T: Serialize>(&self, id: ListId, list: List<T>) -> ApiResult {
        Ok(self.mount.result(id, "list", list))
    }
}
