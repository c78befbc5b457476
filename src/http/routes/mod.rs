//! One file per resource. `mount` is the route table: its routes are served on both mounts, documented in
//! `/openapi.json` and covered by the tests.

pub mod agents;
pub mod api_keys;
pub mod audit;
pub mod catalog;
pub mod chat;
pub mod conversations;
pub mod embeddings;
pub mod files;
pub mod fine_tuning;
pub mod health;
mod hyperparameters;
pub mod images;
pub mod limits;
mod message_schema;
pub mod metrics;
pub mod models;
pub mod projects;
pub mod rerank;
pub mod usage;

use utoipa_actix_web::service_config::ServiceConfig;

/// Every route below a mount's prefix.
pub fn mount(config: &mut ServiceConfig) {
    config
        .service(projects::create)
        .service(projects::list)
        .service(projects::get)
        .service(projects::replace)
        .service(projects::archive)
        .service(limits::get)
        .service(limits::update)
        .service(usage::get)
        .service(api_keys::create)
        .service(api_keys::list)
        .service(api_keys::own)
        .service(api_keys::get)
        .service(api_keys::rotate)
        .service(api_keys::update)
        .service(api_keys::revoke)
        .service(conversations::create)
        .service(conversations::list)
        .service(conversations::get)
        .service(conversations::replace)
        .service(conversations::append)
        .service(conversations::update)
        .service(conversations::delete)
        .service(agents::create)
        .service(agents::list)
        .service(agents::get)
        .service(agents::versions)
        .service(agents::update)
        .service(agents::delete)
        .service(catalog::list)
        .service(models::list)
        .service(models::get)
        .service(models::load)
        .service(models::unload)
        .service(chat::complete)
        .service(embeddings::create)
        .service(rerank::create)
        .service(images::create)
        .service(images::edit)
        .service(images::vary)
        .service(files::create)
        .service(files::list)
        .service(files::get)
        .service(files::content)
        .service(files::delete)
        .service(fine_tuning::create)
        .service(fine_tuning::list)
        .service(fine_tuning::get)
        .service(fine_tuning::update)
        .service(fine_tuning::cancel)
        .service(fine_tuning::events)
        .service(audit::list);
}
