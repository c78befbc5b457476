//! The API whose format a client expects where the path does not tell: for errors and for the list of models.

use actix_web::HttpRequest;

use super::response::Mount;

/// The header that Anthropic's clients send.
const ANTHROPIC_VERSION: &str = "anthropic-version";

/// An API that clients speak.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ApiFormat {
    OpenAi,
    Anthropic,
}

impl ApiFormat {
    /// Anthropic's, if the request is for its Messages API or has its header.
    pub fn of(request: &HttpRequest) -> Self {
        let is_message = Mount::of(request.path()).is_some_and(|(_, path)| {
            path.strip_prefix("/messages").is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
        });
        match is_message || request.headers().contains_key(ANTHROPIC_VERSION) {
            true => Self::Anthropic,
            false => Self::OpenAi,
        }
    }
}
