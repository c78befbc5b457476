//! Request bodies for targets.

use std::io;
use std::sync::Arc;

use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt, Full, StreamBody};
use hyper::body::{Bytes, Frame};
use tokio::sync::mpsc;

use super::config::UpstreamModel;

/// A request to an upstream model.
#[derive(Clone)]
pub struct UpstreamCall {
    pub model: Arc<UpstreamModel>,
    /// The path below the base URL, such as `chat/completions`.
    pub operation: &'static str,
    /// Makes the body, given the model's name at a target. A request that tries several targets makes several.
    pub payload: Arc<dyn Fn(&str) -> Payload + Send + Sync>,
    /// Max bytes of the response's body. A target that sends more has failed.
    pub max_bytes: u64,
}

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
