//! Calls of upstream models: the requests that targets get, and what their responses mean.
//!
//! The files here build and read JSON. Each call (`calls::text::chat`, `calls::embeddings` and so on) asks
//! [`models::UpstreamModels`] once where its model runs, and has one function for each answer. Admission, metering,
//! conversations and the formats of responses are the same for both.
//!
//! Upstream models branch off here and not in the engine, because an upstream request has no device work to schedule.
//! The deltas of a text are the only thing that both have in common, so limits, metering, conversations and the
//! encoders of all APIs need no second path.

mod bounded_list;
pub mod byte_stream;
pub mod chat_chunk;
pub mod chat_request;
pub mod completion_chunk;
pub mod completion_request;
pub mod embeddings;
pub mod errors;
pub mod image_request;
pub mod models;
pub mod request_fields;
pub mod rerank;
pub mod response_limits;
pub mod text_stream;
pub mod token_estimate;
pub mod told_usage;
pub mod transcription_request;

/// A chat model `m` with one target. `more`: further lines of its file.
#[cfg(test)]
pub fn test_model(more: &str) -> std::sync::Arc<crate::upstream::UpstreamModel> {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("upstream.toml");
    std::fs::write(&path, format!("kind = \"chat\"\n{more}\n[[target]]\nurl = \"http://a\"")).unwrap();
    crate::upstream::UpstreamModel::read("m", &path).unwrap()
}
