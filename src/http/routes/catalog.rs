//! The catalog of models that `outpost models pull` can download.

use actix_web::{get, web};
use serde::Serialize;
use utoipa_actix_web::service_config::ServiceConfig;

use crate::calls::models::CatalogEntry;
use crate::http::extractors::ApiParams;
use crate::http::response::{ApiResult, Head, List};
use crate::http::{Api, authentication::Caller, idempotent_body::Nothing};

pub fn routes(config: &mut ServiceConfig) {
    config.service(list);
}

#[derive(Serialize, utoipa::ToSchema)]
pub struct OfferBody {
    description: String,
    /// Size on disk.
    bytes: u64,
    /// SPDX id of the license of the weights, lower case.
    license: String,
    /// Whether a model of that name is in the models folder.
    installed: bool,
    /// The shell command that installs the model on the server. For admins, it includes `--models` with the models folder.
    command: String,
}

/// List the models that can be pulled.
#[utoipa::path(tag = "catalog", responses((status = 200, body = [OfferBody])))]
#[get("/catalog")]
async fn list(caller: Caller, _: ApiParams<Nothing>, api: web::Data<Api>) -> ApiResult {
    let item = |CatalogEntry { name, description, bytes, license, installed, command }: CatalogEntry| {
        let head = Head { id: name, object: "catalog.model", state: None };
        caller.mount.item(head, OfferBody { description, bytes, license, installed, command })
    };
    let catalog_entries = api.models.catalog_entries(&caller.access).await?;
    caller.list(api.list_id(), List::new(catalog_entries.into_iter().map(item).collect(), None))
}
