//! Versions of resources in headers: `If-Match` in, `ETag` out.

use std::future::{Ready, ready};

use actix_web::dev::Payload;
use actix_web::http::header::{self, HeaderValue};
use actix_web::{FromRequest, HttpRequest};

use super::response::ApiResult;
use crate::error::{Error, Result};
use crate::service::writes::precondition::{IfMatch, Precondition};

/// The request's `If-Match`, if it has one.
pub struct IfMatchHeader(pub Option<IfMatch>);

impl IfMatchHeader {
    /// Combines it with the field `version` of the body.
    pub fn and(self, version: Option<u64>) -> Precondition {
        Precondition { version, if_match: self.0 }
    }
}

impl FromRequest for IfMatchHeader {
    type Error = Error;
    type Future = Ready<Result<Self>>;

    fn from_request(request: &HttpRequest, _: &mut Payload) -> Self::Future {
        let lines: Vec<_> = request.headers().get_all(header::IF_MATCH).collect();
        // A header on several lines is one list (RFC 9110, section 5.3).
        let text = lines.iter().map(|line| String::from_utf8_lossy(line.as_bytes())).collect::<Vec<_>>().join(", ");
        let parsed = if lines.is_empty() { Ok(None) } else { IfMatch::parse(&text).map(Some) };
        ready(parsed.map(Self))
    }
}

/// The same response with the resource's version as its `ETag`.
pub fn with_etag(reply: ApiResult, version: u64) -> ApiResult {
    let mut reply = reply?;
    if let Ok(tag) = HeaderValue::from_str(&format!("\"{version}\"")) {
        reply.headers_mut().insert(header::ETAG, tag);
    }
    Ok(reply)
}
