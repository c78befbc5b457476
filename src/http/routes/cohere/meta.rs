//! What all requests and responses share.

use serde::Serialize;

/// Fields that do not affect the output of this server.
pub const IGNORED: [&str; 1] = ["priority"];

#[derive(Serialize, utoipa::ToSchema)]
#[schema(as = CohereMeta)]
pub struct Meta {
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
    pub fn new(input_tokens: u64) -> Self {
        let tokens = Tokens { input_tokens };
        Self { api_version: ApiVersion { version: "2" }, billed_units: tokens, tokens }
    }
}
