//! What is sent to a target.

use std::io;

use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt, Full, StreamBody};
use hyper::body::{Bytes, Frame};
use tokio::sync::mpsc;

/// The body of a request and its media type.
pub struct Payload {
    pub(super) content_type: String,
    pub(super) body: PayloadBody,
}

pub type PayloadBody = UnsyncBoxBody<Bytes, io::Error>;

impl Payload {
    pub fn json(value: &serde_json::Value) -> Self {
        let body = Full::new(Bytes::from(value.to_string())).map_err(|never| match never {});
        Self { content_type: "application/json".to_owned(), body: body.boxed_unsync() }
    }

    /// A body whose parts arrive while it is sent.
    pub fn parts(content_type: String, parts: mpsc::Receiver<io::Result<Bytes>>) -> Self {
        let stream = futures_util::stream::unfold(parts, |mut parts| async move {
            let part = parts.recv().await?;
            Some((part.map(Frame::data), parts))
        });
        Self { content_type, body: StreamBody::new(stream).boxed_unsync() }
    }
}
