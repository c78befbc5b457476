//! Ollama's API: <https://docs.ollama.com/api>. The same calls as those of the other APIs, below `/api`.
//!
//! It is not a third mount: its paths are fixed, it has one format and none of the other resources. Authentication,
//! rate limits, metering and CORS apply as on the mounts. Usage records keep the prefix, because `/embeddings` is also
//! a path of the mounts.
//!
//! What Ollama does silently is an error here, or a header names it: Ollama drops the oldest messages of a long
//! conversation and ignores unknown options.

pub mod api_format;
mod body;
mod chat;
mod content;
mod create;
mod delivery;
mod embed;
mod encoder;
mod generate;
mod installation;
mod model_name;
mod modelfile;
mod models;
mod options;
mod output;
mod pull;
mod response;

use utoipa_actix_web::service_config::ServiceConfig;

/// The routes below `/api`.
pub fn mount(config: &mut ServiceConfig) {
    config
        .configure(models::routes)
        .configure(chat::routes)
        .configure(generate::routes)
        .configure(embed::routes)
        .configure(pull::routes)
        .configure(create::routes)
        .configure(installation::routes);
}
