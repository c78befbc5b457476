//! The body of a management write with its caller and optional `Idempotency-Key`.

use actix_web::dev::Payload;
use actix_web::{FromRequest, HttpRequest};
use futures_util::future::LocalBoxFuture;
use serde::Deserialize;
use serde::de::DeserializeOwned;

use super::authentication::Caller;
use super::extractors;
use super::response::Mount;
use crate::error::{Error, Result};
use crate::service::writes::idempotency::IdempotencyKey;

const IDEMPOTENCY_KEY: &str = "idempotency-key";

/// The body of a POST, PUT or PATCH of a management resource. The caller's access includes the idempotency key, so
/// writes with it happen only once.
pub struct IdempotentJson<T> {
    pub caller: Caller,
    pub body: T,
}

/// The body of a write that needs none.
#[derive(Deserialize, utoipa::ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Nothing {}

impl<T: DeserializeOwned + 'static> FromRequest for IdempotentJson<T> {
    type Error = Error;
    type Future = LocalBoxFuture<'static, Result<Self>>;

    fn from_request(request: &HttpRequest, payload: &mut Payload) -> Self::Future {
        let (request, payload) = (request.clone(), payload.take());
        Box::pin(async move {
            let caller = Caller::extract(&request).await?;
            let bytes = extractors::read_body(&request, payload).await?;
            let body = extractors::from_json(extractors::or_empty_object(&bytes))?;
            Ok(Self { caller: caller.with_idempotency_key(&request, &bytes)?, body })
        })
    }
}

impl Caller {
    /// The same caller with the request's idempotency key, if it has one. `body` is what must be
    /// equal for a replay, beside method and path; the two mounts count as one.
    pub fn with_idempotency_key(self, request: &HttpRequest, body: &[u8]) -> Result<Self> {
        let mut given = request.headers().get_all(IDEMPOTENCY_KEY);
        let Some(key) = given.next() else { return Ok(self) };
        if given.next().is_some() {
            let text = "The header 'Idempotency-Key' was sent more than once. Send one.";
            return Err(Error::invalid("Idempotency-Key", text));
        }
        // Non-text values fail the check for printable characters.
        let key = key.to_str().unwrap_or("\0");
        let path = Mount::of(request.path()).map_or(request.path(), |(_, path)| path);
        let parts = [request.method().as_str().as_bytes(), path.as_bytes(), request.query_string().as_bytes(), body];
        let idempotency_key = IdempotencyKey::new(self.access.key(), key, &parts)?;
        Ok(Self { access: self.access.with_idempotency_key(idempotency_key), ..self })
    }
}
