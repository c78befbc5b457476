//! Image endpoints: generations (endpoint 12), edits and variations.

mod multipart_form;
mod request;
mod response;
mod stored_image;
mod stream;

pub use stored_image::{__path_fetch, fetch};

use actix_web::http::header::{HeaderName, HeaderValue};
use actix_web::web::{Data, Payload};
use actix_web::{HttpRequest, HttpResponse, post};

use self::request::{CheckedRequest, Delivery, ImageRequest};
use utoipa_actix_web::service_config::ServiceConfig;

use crate::calls::images::{EditKind, RunningImages};
use crate::error::{Error, Result};
use crate::http::extractors::ApiJson;
use crate::http::header_list::with_lists;
use crate::http::response::ApiResult;
use crate::http::{Api, authentication::Caller, content_negotiation, request_logging};
use crate::service::stored_images::Format;

pub fn routes(config: &mut ServiceConfig) {
    config.service(create).service(edit).service(vary);
}

/// The seed of a single image that is sent as bytes.
const SEED: HeaderName = HeaderName::from_static("x-outpost-seed");

const JSON: &str = "application/json";

/// Generate images from a prompt; with `stream: true` as server-sent events. A single image is sent as bytes if
/// `Accept` names `image/png`, `image/jpeg` or `image/webp`.
#[utoipa::path(tag = "images", request_body = ImageRequest, responses((status = 200, content(
    (response::ImagesBody = "application/json"), (String = "text/event-stream"), (String = "image/png"),
    (String = "image/jpeg"), (String = "image/webp"),
))))]
#[post("/images/generations")]
async fn create(caller: Caller, body: ApiJson<ImageRequest>, request: HttpRequest, api: Data<Api>) -> ApiResult {
    let checked = body.0.check(true, api.unknown_fields)?;
    generate(caller, checked, "image_generation", &request, &api).await
}

/// Regenerate an image, or the part marked by a mask or by its own transparency.
#[utoipa::path(tag = "images", request_body(content = multipart_form::EditForm, content_type = "multipart/form-data"),
    responses((status = 200, content(
        (response::ImagesBody = "application/json"), (String = "text/event-stream"), (String = "image/png"),
        (String = "image/jpeg"), (String = "image/webp"),
    ))))]
#[post("/images/edits")]
async fn edit(caller: Caller, payload: Payload, request: HttpRequest, api: Data<Api>) -> ApiResult {
    let slot = api.images.receive(&caller.access, api.proxies.client(&request))?;
    let checked = multipart_form::read(&request, payload, EditKind::Edit, slot, api.unknown_fields).await?;
    generate(caller, checked, "image_edit", &request, &api).await
}

/// Generate variations of an image.
#[utoipa::path(tag = "images", request_body(content = multipart_form::VariationForm, content_type = "multipart/form-data"),
    responses((status = 200, content(
        (response::ImagesBody = "application/json"), (String = "text/event-stream"), (String = "image/png"),
        (String = "image/jpeg"), (String = "image/webp"),
    ))))]
#[post("/images/variations")]
async fn vary(caller: Caller, payload: Payload, request: HttpRequest, api: Data<Api>) -> ApiResult {
    let slot = api.images.receive(&caller.access, api.proxies.client(&request))?;
    let checked = multipart_form::read(&request, payload, EditKind::Variation, slot, api.unknown_fields).await?;
    generate(caller, checked, "image_variation", &request, &api).await
}

/// Generates the images and sends them as requested: as events, bytes, URLs or JSON.
async fn generate(
    caller: Caller,
    mut checked: CheckedRequest,
    name: &'static str,
    request: &HttpRequest,
    api: &Data<Api>,
) -> ApiResult {
    let ignored = std::mem::take(&mut checked.ignored);
    Ok(with_lists(respond(caller, checked, name, request, api).await?, &ignored, &[]))
}

async fn respond(
    caller: Caller,
    mut checked: CheckedRequest,
    name: &'static str,
    request: &HttpRequest,
    api: &Data<Api>,
) -> ApiResult {
    let bytes = as_bytes(request, &mut checked)?;
    let CheckedRequest { call, output, response_format, stream, .. } = checked;
    if response_format == Delivery::Url {
        api.services.stored_images.admit(&caller.access).await?;
    }
    let mut running = api.images.start(&caller.access, call, caller.recorder.clone()).await?;
    if stream {
        caller.recorder.defer();
        let request_id = request_logging::request_id(request);
        return Ok(stream::respond(running, stream::Streaming { name, mount: caller.mount, output, request_id }));
    }
    let files = running.all_files(output).await?;
    if bytes {
        return Ok(file(&running, files, output.format));
    }
    let data = match response_format {
        Delivery::B64Json => response::inline(files, running.seeds.clone()).await?,
        Delivery::Url => {
            let mut items = Vec::new();
            for (file, seed) in files.into_iter().zip(&running.seeds) {
                let signed = api.services.stored_images.store(&caller.access, output.format, file).await?;
                let url = Some(stored_image::url(request, api, &signed));
                items.push(response::ImageItem { b64_json: None, url, seed: *seed });
            }
            response::items(items)?
        }
    };
    Ok(caller.mount.bare(running.id, response::body(&running, output.format, data)))
}

/// Whether the client wants the bytes of a single image; sets the output format accordingly.
fn as_bytes(request: &HttpRequest, checked: &mut CheckedRequest) -> Result<bool> {
    if checked.stream || checked.call.count != 1 || checked.response_format == Delivery::Url {
        return Ok(false);
    }
    // The requested format comes first, for clients that accept any.
    let requested = checked.output.format;
    let others = Format::ALL.into_iter().filter(|format| *format != requested);
    let formats: Vec<Format> = [requested].into_iter().chain(others).collect();
    let offered: Vec<_> = [JSON].into_iter().chain(formats.iter().map(|format| format.media_type())).collect();
    let preferred = content_negotiation::preferred(request, &offered);
    let Some(format) = formats.into_iter().find(|format| format.media_type() == preferred) else { return Ok(false) };
    if checked.format_named && format != requested {
        let text = format!(
            "'output_format' is '{}', but the header 'Accept' asks for {preferred}. Send the same format in both.",
            requested.as_str()
        );
        return Err(Error::invalid("output_format", text));
    }
    checked.output.format = format;
    Ok(true)
}

fn file(running: &RunningImages, files: Vec<Vec<u8>>, format: Format) -> HttpResponse {
    let mut response = HttpResponse::Ok().content_type(format.media_type()).body(files.concat());
    if let Some(seed) = running.seeds.first().copied().flatten() {
        response.headers_mut().insert(SEED, HeaderValue::from(seed));
    }
    response
}
