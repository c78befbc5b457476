//! Ollama's API: <https://docs.ollama.com/api>. The same calls as those of the other APIs, below `/api`.

mod body;
mod chat;
mod content;
mod create;
mod delivery;
mod embed;
mod generate;
mod installation;
mod lines;
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
