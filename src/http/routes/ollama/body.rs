//! The JSON body of a request. Ollama reads it whatever its `Content-Type` says, and the examples of its documentation send
//! none.

use actix_web::dev::Payload;
use actix_web::{FromRequest, HttpRequest};
use futures_util::future::LocalBoxFuture;
use serde::de::DeserializeOwned;

use crate::error::{Error, Result};
use crate::http::extractors::{BODY_LIMIT, from_json, or_empty_object, read_bytes};

/// A JSON body of bounded size.
pub struct OllamaJson<T>(pub T);

impl<T: DeserializeOwned + 'static> FromRequest for OllamaJson<T> {
    type Error = Error;
    type Future = LocalBoxFuture<'static, Result<Self>>;

    fn from_request(request: &HttpRequest, payload: &mut Payload) -> Self::Future {
        let (request, payload) = (request.clone(), payload.take());
        Box::pin(async move {
            let body = read_bytes(&request, payload, BODY_LIMIT).await?;
            from_json(or_empty_object(&body)).map(Self)
        })
    }
}
