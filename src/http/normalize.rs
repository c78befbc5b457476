//! Normalizes requests before they are routed: a path is the same with and without a trailing slash, paths that other servers
//! have outside of `/v1` are those of a mount, and HEAD is GET without the body.
//!
//! Those paths are a fixed list and not a mount, because a scope at the root would require a key for every unknown
//! path. Paths below them, such as `/models/{id}`, are not mapped.

use std::convert::Infallible;
use std::pin::Pin;
use std::task::{Context, Poll};

use actix_web::Error as ActixError;
use actix_web::body::{BodySize, BoxBody, MessageBody};
use actix_web::dev::{ServiceRequest, ServiceResponse};
use actix_web::http::uri::PathAndQuery;
use actix_web::http::{Method, Uri};
use actix_web::middleware::Next;
use actix_web::web::Bytes;

use super::response::Mount;

/// Middleware around the routes.
pub async fn normalize(
    mut request: ServiceRequest,
    next: Next<impl MessageBody + 'static>,
) -> Result<ServiceResponse<BoxBody>, ActixError> {
    if let Some(uri) = served_uri(request.uri()) {
        request.match_info_mut().get_mut().update(&uri);
        request.head_mut().uri = uri;
    }
    let head_only = request.method() == Method::HEAD;
    if head_only {
        request.head_mut().method = Method::GET;
    }
    let response = next.call(request).await?.map_into_boxed_body();
    Ok(match head_only {
        true => response.map_body(|_, body| BoxBody::new(OmittedBody(body.size()))),
        false => response,
    })
}

/// The paths that llama.cpp and vLLM serve outside of `/v1`. Editors have llama.cpp's own there, and clients of vLLM, such as
/// lm-eval, remove `/v1` and what follows from their base address.
const OUTSIDE_OF_V1: [&str; 15] = [
    "/apply-template",
    "/chat/completions",
    "/completion",
    "/completions",
    "/detokenize",
    "/embeddings",
    "/infill",
    "/models",
    "/props",
    "/rerank",
    "/reranking",
    "/responses",
    "/score",
    "/tokenize",
    "/tokenizer_info",
];

/// The address by which a request is routed; `None` if it is its own.
fn served_uri(uri: &Uri) -> Option<Uri> {
    let trimmed = uri.path().trim_end_matches('/');
    let below = trimmed.strip_prefix("/openai").unwrap_or(trimmed);
    let path = match OUTSIDE_OF_V1.contains(&below) {
        true => format!("{}{below}", Mount::OpenAi.prefix()),
        false if trimmed.is_empty() || trimmed == uri.path() => return None,
        false => trimmed.to_owned(),
    };
    let target = uri.query().map_or_else(|| path.clone(), |query| format!("{path}?{query}"));
    let mut parts = uri.clone().into_parts();
    parts.path_and_query = Some(PathAndQuery::try_from(target).ok()?);
    Uri::from_parts(parts).ok()
}

/// A body that is not sent; the response states its size.
struct OmittedBody(BodySize);

impl MessageBody for OmittedBody {
    type Error = Infallible;

    fn size(&self) -> BodySize {
        self.0
    }

    fn poll_next(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Option<Result<Bytes, Self::Error>>> {
        Poll::Ready(None)
    }
}

#[cfg(test)]
mod tests {
    use super::served_uri;

    #[test]
    fn a_trailing_slash_is_removed_and_paths_outside_of_v1_are_mapped() {
        for (uri, trimmed) in [
            ("/v1/models/", Some("/v1/models")),
            ("/v1/models//?a=/", Some("/v1/models?a=/")),
            ("http://host:1/v1/x/?y", Some("http://host:1/v1/x?y")),
            ("/v1/models", None),
            ("/v1/models?a=/", None),
            ("/", None),
            ("//", None),
            ("/?a", None),
            ("/tokenize", Some("/openai/v1/tokenize")),
            ("/openai/tokenizer_info/?model=a", Some("/openai/v1/tokenizer_info?model=a")),
            ("/openai/v1/tokenize", None),
            ("/v1/tokenize", None),
            ("/infill/", Some("/openai/v1/infill")),
            ("/chat/completions", Some("/openai/v1/chat/completions")),
            ("/chat/completions/chatcmpl-1", None),
            ("/chat", None),
            ("/models?a", Some("/openai/v1/models?a")),
            ("/models/a", None),
        ] {
            let found = served_uri(&uri.parse().unwrap());
            assert_eq!(found.map(|uri| uri.to_string()).as_deref(), trimmed, "{uri}");
        }
    }
}
