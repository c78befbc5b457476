//! Cohere's API: <https://docs.cohere.com/reference>. Embeddings and reranking, below `/v2`.
//!
//! Cohere's clients append `/v2/embed` to the base URL, so the paths cannot be below a mount. They have one format, and
//! usage reports keep their prefix.

pub mod api_format;
mod embed;
mod meta;
mod quantization;
mod rerank;

use utoipa_actix_web::service_config::ServiceConfig;

/// The routes below `/v2`.
pub fn mount(config: &mut ServiceConfig) {
    config.configure(embed::routes).configure(rerank::routes);
}
