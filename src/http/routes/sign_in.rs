//! Exchanges the token of a sign-in link for an API key. Only the dashboard uses this, so it is not part of the API.

use actix_web::http::header::{CACHE_CONTROL, HeaderMap, HeaderName};
use actix_web::web::{self, Data, ServiceConfig};
use actix_web::{HttpRequest, HttpResponse};
use serde::Deserialize;
use serde_json::json;

use crate::error::{Code, Error, Result};
use crate::http::extractors::read_small_json;
use crate::http::{Api, openapi, response::ApiResult};

const SEC_FETCH_SITE: HeaderName = HeaderName::from_static("sec-fetch-site");
const MAX_BODY_BYTES: usize = 1024;

pub fn routes(config: &mut ServiceConfig) {
    let others = |request: HttpRequest| async move { openapi::not_allowed(&request, "POST") };
    config.service(web::resource("/sign-in").route(web::post().to(sign_in)).default_service(web::to(others)));
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct SignInBody {
    token: String,
}

async fn sign_in(request: HttpRequest, payload: web::Payload, api: Data<Api>) -> ApiResult {
    require_own_page(request.headers())?;
    let body: SignInBody = read_small_json(&request, payload.into_inner(), MAX_BODY_BYTES).await?;
    let services = &api.services;
    let secret = services.sign_in.redeem(&services.keys, api.proxies.client(&request), &body.token).await?;
    let reply = json!({ "secret": secret.expose() });
    Ok(HttpResponse::Ok().insert_header((CACHE_CONTROL, "no-store")).json(reply))
}

/// Refuses requests of other sites' pages. Programs and old browsers do not send the header.
fn require_own_page(headers: &HeaderMap) -> Result<()> {
    match headers.get_all(SEC_FETCH_SITE).all(|site| site == "same-origin") {
        true => Ok(()),
        false => {
            let text = "Sign-in links work only on the dashboard of this server. Open the link in a new tab.";
            Err(Error::new(Code::InvalidSignInLink, text))
        }
    }
}
