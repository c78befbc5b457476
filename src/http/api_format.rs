//! The API whose format a client expects: for errors, and for the list of models where the path does not tell.

use actix_web::HttpRequest;

use super::response::Mount;

/// The prefix of the paths of Ollama's API. It has one format, so it is no [`Mount`].
pub const OLLAMA_PREFIX: &str = "/api";
/// That of Cohere's API.
pub const COHERE_PREFIX: &str = "/v2";

/// The APIs with a prefix of their own.
const PREFIXES: [(&str, ApiFormat); 2] = [(OLLAMA_PREFIX, ApiFormat::Ollama), (COHERE_PREFIX, ApiFormat::Cohere)];

/// The path below the prefix of an API that has its own, from its slash on.
pub fn below_own_prefix(path: &str) -> Option<&str> {
    split_prefix(path).map(|(_, rest)| rest)
}

fn split_prefix(path: &str) -> Option<(ApiFormat, &str)> {
    PREFIXES.into_iter().find_map(|(prefix, format)| {
        let rest = path.strip_prefix(prefix)?;
        rest.starts_with('/').then_some((format, rest))
    })
}

/// The header that Anthropic's clients send.
const ANTHROPIC_VERSION: &str = "anthropic-version";

/// An API that clients speak.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ApiFormat {
    OpenAi,
    Anthropic,
    Ollama,
    Cohere,
}

impl ApiFormat {
    /// Ollama's or Cohere's, if the path is. Anthropic's, if the request is for its Messages API or has its header.
    pub fn of(request: &HttpRequest) -> Self {
        if let Some((format, _)) = split_prefix(request.path()) {
            return format;
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
