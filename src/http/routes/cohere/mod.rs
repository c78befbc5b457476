//! Cohere's API: <https://docs.cohere.com/reference>. Embeddings and reranking, below `/v2`.

mod embed;
mod quantization;
mod rerank;

use serde::Serialize;
use utoipa_actix_web::service_config::ServiceConfig;

/// Fields that do not affect the output of this server.
const IGNORED: [&str; 1] = ["priority"];

/// The routes below `/v2`.
pub fn mount(config: &mut ServiceConfig) {
    config.configure(embed::routes).configure(rerank::routes);
}

#[derive(Serialize, utoipa::ToSchema)]
#[schema(as = CohereMeta)]
struct Meta {
    api_version: ApiVersion,
    billed_units: Tokens,
    tokens: Tokens,
}

#[derive(Serialize, utoipa::ToSchema)]
#[schema(as = CohereApiVersion)]
struct ApiVersion {
    version: &'static str,
}

#[derive(Clone, Copy, Serialize, utoipa::ToSchema)]
#[schema(as = CohereTokens)]
struct Tokens {
    input_tokens: u64,
}

impl Meta {
    fn new(input_tokens: u64) -> Self {
        let tokens = Tokens { input_tokens };
        Self { api_version: ApiVersion { version: "2" }, billed_units: tokens, tokens }
    }
}
