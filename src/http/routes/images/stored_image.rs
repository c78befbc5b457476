//! Signed URLs of images. They need no key, because a page that shows the image has none.
//!
//! The URL contains an ID, an expiry time and a MAC over both, which is checked before anything is read, so the route
//! needs no rate limit. It is registered before the mount that contains its path. The path is under `/v1`, because
//! proxies often forward nothing else.

use actix_web::http::header;
use actix_web::web::{Bytes, Data};
use actix_web::{HttpRequest, HttpResponse, body::SizedStream, get};
use futures_util::{TryStreamExt, stream};
use serde::Deserialize;

use crate::error::Error;
use crate::http::Api;
use crate::http::connections::Connection;
use crate::http::extractors::{ApiParams, ApiPath};
use crate::http::response::ApiResult;
use crate::http::response_budget::{Client, Held};
use crate::ids::StoredImageId;
use crate::service::stored_images::{SignedUrl, StoredImage};
use crate::storage::content_chunks::CHUNK_BYTES;

/// Signature of the URL.
#[derive(Deserialize, utoipa::IntoParams)]
#[into_params(parameter_in = Query)]
pub struct Signed {
    /// Expiry of the URL, Unix seconds.
    #[serde(default)]
    expires: String,
    #[serde(default)]
    signature: String,
}

/// Fetch an image that was requested with `response_format: "url"`, by its signed URL. Needs no key.
#[utoipa::path(tag = "images", security(()), params(("image_id" = String, Path), Signed), responses(
    (status = 200, content((String = "image/png"), (String = "image/jpeg"), (String = "image/webp"))),
))]
#[get("/v1/images/files/{image_id}")]
pub async fn fetch(
    request: HttpRequest,
    id: ApiPath<StoredImageId>,
    signed: ApiParams<Signed>,
    api: Data<Api>,
) -> ApiResult {
    let Signed { expires, signature } = signed.0;
    let image = api.services.stored_images.open(id.0, &expires, &signature).await?;
    let (format, bytes, seconds_left) = (image.format, image.bytes, image.left.as_secs());
    let client = Client { key: None, connection: Connection::of(&request).map(|connection| connection.number()) };
    let held = api.response_budget.take(client, bytes.min(CHUNK_BYTES as u64)).await?;
    let chunks = stream::try_unfold((image, held), |(mut image, held): (StoredImage, Held)| async move {
        let chunk = image.next().await?;
        Ok::<_, Error>(chunk.map(|chunk| (Bytes::from(chunk), (image, held))))
    });
    let chunks = chunks.inspect_err(|error| tracing::warn!(%error, "sending a stored image failed"));
    Ok(HttpResponse::Ok()
        .content_type(format.media_type())
        .insert_header((header::CACHE_CONTROL, format!("private, max-age={seconds_left}")))
        .insert_header((header::CONTENT_DISPOSITION, format!("inline; filename=\"{}.{}\"", id.0, format.as_str())))
        .insert_header((header::X_CONTENT_TYPE_OPTIONS, "nosniff"))
        .body(SizedStream::new(bytes, Box::pin(chunks))))
}

/// The absolute URL, based on the configured public URL or on this request's host.
pub fn url(request: &HttpRequest, api: &Api, signed_url: &SignedUrl) -> String {
    let base = api.public_url.clone().unwrap_or_else(|| {
        let connection = request.connection_info();
        format!("{}://{}", connection.scheme(), connection.host())
    });
    let SignedUrl { id, expires, signature } = signed_url;
    format!("{base}/v1/images/files/{id}?expires={expires}&signature={signature}")
}
