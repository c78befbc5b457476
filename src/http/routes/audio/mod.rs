//! Audio endpoints: transcriptions, translations and speech, in OpenAI's format.

mod form;
mod request;
mod response;
mod speech;
mod stream;
mod subtitles;

use actix_web::web::{Data, Payload};
use actix_web::{HttpRequest, post};
use utoipa_actix_web::service_config::ServiceConfig;

use crate::engine::TranscriptionTask;
use crate::http::header_list::with_lists;
use crate::http::response::ApiResult;
use crate::http::{Api, authentication::Caller, request_logging};

pub fn routes(config: &mut ServiceConfig) {
    config.service(transcribe).service(translate).configure(speech::routes);
}

/// Transcribe speech in the spoken language; with `stream: true` as server-sent events. `text`, `srt` and `vtt` are
/// sent as plain text.
#[utoipa::path(tag = "audio", request_body(content = form::TranscriptionForm, content_type = "multipart/form-data"),
    responses((status = 200, content(
        (response::TranscriptionResponse = "application/json"), (String = "text/plain"), (String = "text/event-stream"),
    ))))]
#[post("/audio/transcriptions")]
async fn transcribe(caller: Caller, payload: Payload, request: HttpRequest, api: Data<Api>) -> ApiResult {
    run(caller, payload, TranscriptionTask::Transcribe, &request, &api).await
}

/// Translate speech to English.
#[utoipa::path(tag = "audio", request_body(content = form::TranscriptionForm, content_type = "multipart/form-data"),
    responses((status = 200, content(
        (response::TranscriptionResponse = "application/json"), (String = "text/plain"), (String = "text/event-stream"),
    ))))]
#[post("/audio/translations")]
async fn translate(caller: Caller, payload: Payload, request: HttpRequest, api: Data<Api>) -> ApiResult {
    run(caller, payload, TranscriptionTask::Translate, &request, &api).await
}

async fn run(
    caller: Caller,
    payload: Payload,
    task: TranscriptionTask,
    request: &HttpRequest,
    api: &Data<Api>,
) -> ApiResult {
    let upload = api.transcriptions.receive(&caller.access, api.proxies.client(request))?;
    let (checked, audio) = form::read(request, payload, upload, task, api.unknown_fields).await?;
    let (output, ignored) = (checked.output, checked.ignored);
    let mut running = api.transcriptions.start(&caller.access, checked.call, audio, caller.recorder.clone()).await?;
    let response = match checked.stream {
        true => {
            caller.recorder.defer();
            let request_id = request_logging::request_id(request);
            stream::respond(running, stream::Streaming { output, mount: caller.mount, request_id })
        }
        false => {
            let transcript = running.transcript().await?;
            response::respond(&running, transcript, output, caller.mount)
        }
    };
    Ok(with_lists(response, &ignored, &[]))
}
