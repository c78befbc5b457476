//! One file per resource; its function `routes` registers its handlers. They are served on both mounts, documented in
//! `/openapi.json` and covered by the tests.

mod agents;
pub mod anthropic_messages;
mod api_keys;
mod audio;
mod audit;
pub mod batches;
mod catalog;
pub mod chat;
pub mod cohere;
mod completion_body;
pub mod completions;
mod conversation_items;
mod conversations;
pub mod embeddings;
mod files;
mod fine_tuning;
mod foreign_fields;
pub mod health;
mod hyperparameters;
pub mod images;
mod limits;
mod llama_cpp;
mod message_schema;
pub mod metrics;
mod model_pulls;
mod models;
pub mod moderations;
pub mod ollama;
mod projects;
mod prompt_fields;
mod prompt_logprobs;
mod rerank;
pub mod responses;
mod sampling_fields;
mod score;
pub mod sign_in;
mod text_inputs;
mod tokenization;
mod tool_choice;
mod truncation;
mod turn_response;
mod usage;

use utoipa_actix_web::service_config::ServiceConfig;

/// Every route below a mount's prefix. Each resource registers its own.
pub fn mount(config: &mut ServiceConfig) {
    config
        .configure(projects::routes)
        .configure(limits::routes)
        .configure(usage::routes)
        .configure(api_keys::routes)
        .configure(conversations::routes)
        .configure(conversation_items::routes)
        .configure(agents::routes)
        .configure(catalog::routes)
        .configure(model_pulls::routes)
        .configure(models::routes)
        .configure(chat::routes)
        .configure(anthropic_messages::routes)
        .configure(responses::routes)
        .configure(completions::routes)
        .configure(embeddings::routes)
        .configure(rerank::routes)
        .configure(score::routes)
        .configure(llama_cpp::routes)
        .configure(moderations::routes)
        .configure(tokenization::routes)
        .configure(images::routes)
        .configure(audio::routes)
        .configure(files::routes)
        .configure(fine_tuning::routes)
        .configure(batches::routes)
        .configure(audit::routes);
}
