//! The OpenAPI document, and the responses that follow from it: 404 for unknown paths, 405 with `Allow` for unknown
//! methods.
//!
//! The document is generated from the route registrations that actix itself uses, so `Allow` always matches what is
//! served.

mod path_suggestion;
mod responses;
mod unserved;

use actix_web::http::header::{self, HeaderValue};
use actix_web::web::{self, Bytes};
use actix_web::{HttpRequest, HttpResponse, get};
use utoipa::openapi::path::PathItem;
use utoipa::openapi::security::{HttpAuthScheme, HttpBuilder, SecurityScheme};
use utoipa::openapi::{Components, InfoBuilder, OpenApi, OpenApiBuilder, SecurityRequirement};

use crate::display::shorten;
use crate::error::{Code, Error};

/// The finished document: its text, and the routes in it.
pub struct Document {
    text: Bytes,
    routes: Vec<Route>,
}

struct Route {
    segments: Vec<String>,
    allow: String,
}

/// The document without the routes.
pub fn base() -> OpenApi {
    let info = InfoBuilder::new()
        .title("Outpost")
        .version(env!("CARGO_PKG_VERSION"))
        .description(Some(
            "Projects, keys and local models. `/v1` answers in the service envelope, `/openai/v1` in OpenAI's bodies.",
        ))
        .build();
    let mut components = Components::new();
    let bearer = SecurityScheme::Http(HttpBuilder::new().scheme(HttpAuthScheme::Bearer).build());
    components.add_security_scheme("api_key", bearer);
    OpenApiBuilder::new()
        .info(info)
        .components(Some(components))
        .security(Some([SecurityRequirement::new("api_key", [] as [&str; 0])]))
        .build()
}

impl Document {
    pub fn new(document: OpenApi) -> Self {
        let routes = document.paths.paths.iter().map(|(path, item)| Route::new(path, item)).collect();
        let mut document = serde_json::to_value(document).unwrap_or_default();
        responses::complete(&mut document);
        Self { text: document.to_string().into(), routes }
    }

    /// The methods of the route that matches `path`.
    fn allowed(&self, path: &str) -> Option<&str> {
        let requested: Vec<&str> = path.split('/').collect();
        self.routes.iter().find(|route| route.matches(&requested)).map(|route| route.allow.as_str())
    }

    /// The path that was probably meant by `path`.
    fn suggest(&self, path: &str) -> Option<String> {
        let below = self.routes.iter().filter_map(|route| match route.segments.as_slice() {
            [_, mount, below @ ..] if mount == "v1" => Some(below),
            _ => None,
        });
        path_suggestion::suggest(below, path)
    }
}

impl Route {
    fn new(path: &str, item: &PathItem) -> Self {
        let methods = [
            ("GET", item.get.is_some()),
            ("HEAD", item.get.is_some()),
            ("POST", item.post.is_some()),
            ("PUT", item.put.is_some()),
            ("PATCH", item.patch.is_some()),
            ("DELETE", item.delete.is_some()),
        ];
        let allow: Vec<&str> = methods.into_iter().filter(|(_, has)| *has).map(|(name, _)| name).collect();
        Self { segments: path.split('/').map(str::to_owned).collect(), allow: allow.join(", ") }
    }

    fn matches(&self, requested: &[&str]) -> bool {
        let same =
            |(pattern, given): (&String, &&str)| pattern == given || (pattern.starts_with('{') && !given.is_empty());
        self.segments.len() == requested.len() && self.segments.iter().zip(requested).all(same)
    }
}

/// Serves the document. It needs no key, because it contains no secrets.
#[get("/openapi.json")]
pub async fn serve(document: web::Data<Document>) -> HttpResponse {
    HttpResponse::Ok().content_type("application/json").body(document.text.clone())
}

/// Fallback for requests that match no route.
pub async fn fallback(request: HttpRequest, document: web::Data<Document>) -> HttpResponse {
    let path = shorten(request.path());
    let Some(allow) = document.allowed(request.path()) else {
        let hint = || match document.suggest(request.path()) {
            Some(meant) => format!("Did you mean '{}'?", shorten(&meant)),
            None => "/openapi.json lists every path.".to_owned(),
        };
        let message =
            unserved::explain(request.path()).unwrap_or_else(|| format!("There is nothing at '{path}'. {}", hint()));
        return HttpResponse::from_error(Error::new(Code::NotFound, message));
    };
    not_allowed(&request, allow)
}

/// 405 for a path that supports only the methods `allow`.
pub fn not_allowed(request: &HttpRequest, allow: &str) -> HttpResponse {
    let path = shorten(request.path());
    let method = shorten(request.method().as_str());
    let message = format!("'{path}' does not support {method}. It supports {allow}.");
    let mut response = HttpResponse::from_error(Error::new(Code::MethodNotAllowed, message));
    if let Ok(value) = HeaderValue::from_str(allow) {
        response.headers_mut().insert(header::ALLOW, value);
    }
    response
}
