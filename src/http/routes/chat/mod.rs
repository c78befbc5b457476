//! Chat completions: endpoint 5.

mod answer;
mod form;
mod recall;
mod request;
mod stream;

pub use request::refuse_unknown;

use actix_web::{HttpRequest, post, web};

use crate::http::input::ApiJson;
use crate::http::reply::{Head, Reply};
use crate::http::version::Matching;
use crate::http::{Api, caller::Caller, frame};

/// Generate an assistant message; with `stream: true` as server-sent events.
#[utoipa::path(tag = "chat", request_body = request::ChatRequest, params(("If-Match" = Option<String>, Header,
    description = "The version that the conversation of `conversation_id` must have.")), responses((
    status = 200,
    description = "With `stream: true` events: OpenAI's chunks, then `data: [DONE]`.",
    content((answer::Completion = "application/json"), (String = "text/event-stream")),
)))]
#[post("/chat/completions")]
pub async fn complete(
    caller: Caller,
    body: ApiJson<request::ChatRequest>,
    matching: Matching,
    request: HttpRequest,
    api: web::Data<Api>,
) -> Reply {
    let asked = body.0.check(matching.0)?;
    let mut running = api.chat.start(&caller.access, asked.call, caller.recorder.clone()).await?;
    if let Some(options) = asked.stream {
        caller.recorder.defer();
        let truncated = running.truncated;
        return Ok(recall::marked(stream::respond(running, options, frame::request_id(&request)), truncated));
    }
    let choices = running.whole().await?;
    let head = Head { id: running.id, object: "chat.completion", state: None };
    let reply = caller.reply(head, answer::completion(&running, choices))?;
    Ok(recall::marked(reply, running.truncated))
}
