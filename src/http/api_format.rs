//! The API whose format a client expects: for errors, and for the list of models where the path does not tell.

use actix_web::HttpRequest;

use super::response::Mount;

/// The prefix of the paths of Ollama's API. It has one format, so it is no [`Mount`].
pub const OLLAMA_PREFIX: &str = "/api";

/// Whether a path belongs to Ollama's API.
pub fn is_ollama(path: &str) -> bool {
    path.strip_prefix(OLLAMA_PREFIX).is_some_and(|rest| rest.starts_with('/'))
}

/// The header that Anthropic's clients send.
const ANTHROPIC_VERSION: &str = "anthropic-version";

/// An API that clients speak.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ApiFormat {
    OpenAi,
    Anthropic,
    Ollama,
}

impl ApiFormat {
    /// Ollama's, if the path is. Anthropic's, if the request is for its Messages API or has its header.
    pub fn of(request: &HttpRequest) -> Self {
        if is_ollama(request.path()) {
            return Self::Ollama;
        }
        let is_message = Mount::of(request.path()).is_some_and(|(_, path)| {
            path.strip_prefix("/messages").is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
        });
        match is_message || request.headers().contains_key(ANTHROPIC_VERSION) {
            true => Self::Anthropic,
            false => Self::OpenAi,
        }
    }
}
