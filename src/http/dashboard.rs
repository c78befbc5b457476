//! The dashboard: files embedded in the binary, and their security headers.
//!
//! It is an ordinary API client that uses the key its user signed in with. No cookie is set, so there is no CSRF.
//!
//! The dashboard has no endpoint of its own. Where it needs something new, the public API is extended, so access is
//! decided in one place.

use std::collections::BTreeMap;
use std::io::Write;
use std::sync::LazyLock;

use actix_web::http::header::{self, HeaderMap, HeaderValue};
use actix_web::web::{Bytes, Data, ServiceConfig};
use actix_web::{HttpRequest, HttpResponse, web};
use flate2::{Compression, write::GzEncoder};
use rust_embed::Embed;

use super::openapi;
use crate::display::hex;

#[derive(Embed)]
#[folder = "assets/"]
struct Files;

/// Content security policy: scripts, styles and connections only from this server, audio only from the page's memory, nothing
/// inline, no framing.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data: blob:; \
    media-src blob:; connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

/// A file and its headers.
struct Asset {
    kind: &'static str,
    tag: String,
    plain: Bytes,
    gzip: Option<Bytes>,
}

/// All files by path; built on first use.
static ASSETS: LazyLock<BTreeMap<String, Asset>> = LazyLock::new(|| {
    let file = |path: std::borrow::Cow<'static, str>| {
        let embedded = Files::get(&path)?;
        let hash = hex(&embedded.metadata.sha256_hash()[..16]);
        let plain = Bytes::from(embedded.data.into_owned());
        let gzip = compress(&plain).ok().map(Bytes::from);
        // A weak tag, because it is the same for all encodings of the file.
        let tag = format!("W/\"{hash}\"");
        Some((path.to_string(), Asset { kind: kind(&path), tag, plain, gzip }))
    };
    Files::iter().filter_map(file).collect()
});

fn compress(bytes: &[u8]) -> std::io::Result<Vec<u8>> {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::best());
    encoder.write_all(bytes)?;
    encoder.finish()
}

fn kind(path: &str) -> &'static str {
    match path.rsplit('.').next() {
        Some("html") => "text/html; charset=utf-8",
        Some("js") => "text/javascript; charset=utf-8",
        Some("css") => "text/css; charset=utf-8",
        Some("svg") => "image/svg+xml",
        _ => "text/plain; charset=utf-8",
    }
}

/// Serves the page at `/` and the files below `/assets`.
pub fn routes(config: &mut ServiceConfig) {
    let files = |resource: actix_web::Resource| resource.route(web::get().to(serve)).default_service(web::to(refuse));
    config.service(files(web::resource("/"))).service(files(web::resource("/assets/{path:.+}")));
}

/// The file of a path.
fn path(request: &HttpRequest) -> &str {
    request.match_info().get("path").unwrap_or("index.html")
}

/// The error for methods that files do not support.
async fn refuse(request: HttpRequest, document: Data<openapi::Document>) -> HttpResponse {
    match ASSETS.contains_key(path(&request)) {
        true => openapi::not_allowed(&request, "GET, HEAD"),
        false => openapi::fallback(request, document).await,
    }
}

async fn serve(request: HttpRequest, document: Data<openapi::Document>) -> HttpResponse {
    let Some(asset) = ASSETS.get(path(&request)) else { return openapi::fallback(request, document).await };
    let same = unchanged(request.headers(), &asset.tag);
    let mut answer = if same { HttpResponse::NotModified() } else { HttpResponse::Ok() };
    answer
        .insert_header((header::ETAG, asset.tag.as_str()))
        // Cached but revalidated, because another version of the server may have different files with the same names.
        .insert_header((header::CACHE_CONTROL, "no-cache"))
        .insert_header((header::VARY, "accept-encoding"))
        .insert_header((header::CONTENT_SECURITY_POLICY, POLICY))
        .insert_header((header::X_CONTENT_TYPE_OPTIONS, "nosniff"))
        .insert_header((header::REFERRER_POLICY, "no-referrer"))
        .insert_header(("cross-origin-opener-policy", "same-origin"))
        .insert_header(("cross-origin-resource-policy", "same-origin"));
    if same {
        return answer.finish();
    }
    answer.content_type(asset.kind);
    match asset.gzip.as_ref().filter(|_| takes_gzip(request.headers())) {
        Some(gzip) => answer.insert_header((header::CONTENT_ENCODING, "gzip")).body(gzip.clone()),
        None => answer.body(asset.plain.clone()),
    }
}

/// True if the client's cached copy is current, so that a 304 suffices.
fn unchanged(headers: &HeaderMap, tag: &str) -> bool {
    let given = headers.get(header::IF_NONE_MATCH).and_then(|value: &HeaderValue| value.to_str().ok());
    given.is_some_and(|tags| tags.split(',').any(|one| one.trim() == tag))
}

fn takes_gzip(headers: &HeaderMap) -> bool {
    let given = headers.get(header::ACCEPT_ENCODING).and_then(|value| value.to_str().ok()).unwrap_or_default();
    given.split(',').any(|one| {
        let (name, more) = one.split_once(';').unwrap_or((one, ""));
        name.trim() == "gzip" && !matches!(more.trim(), "q=0" | "q=0.0")
    })
}

#[cfg(test)]
mod tests {
    use super::{ASSETS, POLICY};

    #[test]
    fn every_file_has_a_type_and_is_small() {
        assert!(ASSETS.contains_key("index.html"));
        let packed = |asset: &super::Asset| asset.gzip.as_ref().unwrap().len();
        let sent: usize = ASSETS.values().map(packed).sum();
        assert!(sent < 200 * 1024, "{sent} bytes");
        for (path, asset) in ASSETS.iter() {
            let known =
                ["html", "js", "css", "svg", "md", "txt"].iter().any(|ending| path.ends_with(&format!(".{ending}")));
            assert!(known, "{path}");
            assert!(packed(asset) < asset.plain.len(), "{path}");
        }
    }

    #[test]
    fn the_page_has_no_inline_or_external_resources() {
        let page = std::str::from_utf8(&ASSETS["index.html"].plain).unwrap();
        assert!(!page.contains("<script>") && !page.contains("style=") && !page.contains("<style"), "{page}");
        assert!(!POLICY.contains("unsafe") && !POLICY.contains('*'));
        for (path, asset) in ASSETS.iter().filter(|(path, _)| path.starts_with("js/")) {
            let text = std::str::from_utf8(&asset.plain).unwrap();
            for banned in [
                "innerHTML",
                "outerHTML",
                "insertAdjacentHTML",
                "dangerouslySetInnerHTML",
                "eval(",
                "document.write",
                "style=\"",
            ] {
                assert!(!text.contains(banned), "{banned} in {path}");
            }
        }
    }
}
