//! Speech: texts to audio, and the list of voices.

mod request;
mod stream;
mod voice_field;
mod voices;

use actix_web::web::Data;
use actix_web::{HttpRequest, post};
use utoipa_actix_web::service_config::ServiceConfig;

use self::request::{SpeechRequest, StreamFormat};
use crate::http::extractors::ApiJson;
use crate::http::header_list::with_lists;
use crate::http::response::ApiResult;
use crate::http::{Api, authentication::Caller, request_logging};

pub fn routes(config: &mut ServiceConfig) {
    config.service(speak).configure(voices::routes);
}

/// Speak a text. The audio is sent part by part as it is spoken; with `stream_format: "sse"` as server-sent events.
#[utoipa::path(tag = "audio", request_body = SpeechRequest, responses((status = 200, content(
    (String = "audio/mpeg"), (String = "audio/ogg"), (String = "audio/flac"), (String = "audio/wav"),
    (String = "audio/pcm"), (String = "text/event-stream"),
))))]
#[post("/audio/speech")]
async fn speak(caller: Caller, body: ApiJson<SpeechRequest>, request: HttpRequest, api: Data<Api>) -> ApiResult {
    let checked = body.0.check(api.unknown_fields)?;
    let format = checked.call.format;
    let mut running = api.speeches.start(&caller.access, checked.call, caller.recorder.clone()).await?;
    // Whatever fails before the first part is an ordinary error.
    let first = running.next().await?;
    caller.recorder.defer();
    let started = stream::Started { running, first, request_id: request_logging::request_id(&request) };
    let response = match checked.stream_format {
        StreamFormat::Audio => stream::audio(started, format),
        StreamFormat::Sse => stream::events(started, caller.mount),
    };
    Ok(with_lists(response, &checked.ignored, &[]))
}
