//! One file a resource. `mount` is the route table: what stands in it is served on both mounts,
//! documented in `/openapi.json` and walked by the tests.

pub mod agents;
pub mod api_keys;
pub mod audit;
pub mod chat;
pub mod conversations;
pub mod health;
mod messages;
pub mod models;
pub mod projects;

use utoipa_actix_web::service_config::ServiceConfig;

/// Every route below a mount's prefix.
pub fn mount(config: &mut ServiceConfig) {
    config
        .service(projects::create)
        .service(projects::list)
        .service(projects::get)
        .service(projects::replace)
        .service(projects::archive)
        .service(api_keys::create)
        .service(api_keys::list)
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
        .service(models::list)
        .service(models::get)
        .service(chat::complete)
        .service(audit::list);
}
