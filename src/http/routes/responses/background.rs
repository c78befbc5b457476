//! Responses that are generated in the background.

use std::sync::Arc;

use actix_web::HttpResponse;
use actix_web::web::Data;
use futures_util::future::LocalBoxFuture;
use serde_json::{Map, Value, json};

use super::conversation_field::with_field_names;
use super::follow;
use super::input_items;
use super::live::LiveEnd;
use super::request::{Checked, ResponsesRequest};
use super::response::{Failure, ResponseBody};
use super::running::RunningResponse;
use super::shared_steps;
use super::validation::validate_resolved;
use crate::calls::background_responses::ResponseRunner;
use crate::error::{Code, Error, Result};
use crate::http::Api;
use crate::http::authentication::Caller;
use crate::http::extractors;
use crate::http::header_list::with_lists;
use crate::http::response::{ApiResult, Mount};
use crate::http::response_budget::Room;
use crate::ids::ResponseId;
use crate::service::responses::{BackgroundRequest, ChainLink, EndedResponse, StartedResponse, StoredResponse};
use crate::service::usage::{Outcome, UsageRecorder};

/// Stores a response that is to be generated. `body`: the JSON of its request.
pub async fn create(caller: &Caller, checked: Checked, link: ChainLink, body: &[u8], api: &Data<Api>) -> ApiResult {
    let Checked { call, settings, is_streamed, input, ignored, .. } = checked;
    let model = api.models.resolve(&caller.access, &call.model.unwrap_or_default()).await?;
    caller.access.require_model(&model)?;
    api.models.get(&caller.access, &model).await?;
    caller.recorder.check_budget(1).await?;
    let (id, created_at) = (ResponseId::generate(&*api.clock_rng), api.clock_rng.now());
    let queued = to_json(&ResponseBody::new(id, created_at, model, settings, "queued"))?;
    let stored = StoredResponse { id, input: input_items::stored(id, &input), response: queued.clone() };
    let request = BackgroundRequest { json: request_json(body, call.seed, api)?, keeps_steps: is_streamed };
    // It is followed from its beginning.
    let live = api.live_responses.get_or_create(id);
    let responses = &api.services.responses;
    responses.create_in_background(&caller.access, stored.clone(), link, created_at, request).await?;
    let response = match is_streamed {
        true => follow::respond(api.clone(), caller.access.clone(), stored, live, None),
        false => json_body(queued),
    };
    Ok(with_lists(response, &ignored, &[]))
}

/// The JSON of a request without its input, which is stored on its own. It has a seed, so that a response that is generated
/// again is the same: that of the request, that of the model's settings or a random one.
fn request_json(body: &[u8], known_seed: Option<u64>, api: &Api) -> Result<String> {
    let mut fields: Map<String, Value> = serde_json::from_slice(body).map_err(Error::internal)?;
    for name in ["input", "stream", "stream_options"] {
        fields.shift_remove(name);
    }
    let seed = fields.entry("seed").or_insert(Value::Null);
    if let Some(known) = known_seed {
        *seed = json!(known.cast_signed());
    } else {
        let mut bytes = [0; 4];
        api.clock_rng.fill(&mut bytes);
        *seed = json!(u32::from_le_bytes(bytes));
    }
    to_json(&fields)
}

fn random_number(api: &Api) -> u64 {
    let mut bytes = [0; 8];
    api.clock_rng.fill(&mut bytes);
    u64::from_le_bytes(bytes)
}

fn to_json(value: &impl serde::Serialize) -> Result<String> {
    serde_json::to_string(value).map_err(Error::internal)
}

/// A body that is JSON already.
pub fn json_body(json: String) -> HttpResponse {
    HttpResponse::Ok().content_type("application/json").body(json)
}

/// The JSON of a response with another status.
pub fn with_status(response: &str, status: &str) -> Result<String> {
    changed(response, |fields| {
        fields.insert("status".to_owned(), json!(status));
    })
}

fn changed(response: &str, change: impl FnOnce(&mut Map<String, Value>)) -> Result<String> {
    let mut fields: Map<String, Value> = serde_json::from_str(response).map_err(Error::internal)?;
    change(&mut fields);
    to_json(&fields)
}

/// Generates responses with the code of `POST /responses`.
pub struct BackgroundResponseRunner(pub Data<Api>);

impl ResponseRunner for BackgroundResponseRunner {
    fn run(
        &self,
        started: StartedResponse,
        recorder: Arc<UsageRecorder>,
    ) -> LocalBoxFuture<'static, Result<EndedResponse>> {
        let api = self.0.clone();
        Box::pin(async move { generate(&api, started, recorder).await })
    }

    fn failed(&self, started: &StartedResponse, error: &Error) -> Result<EndedResponse> {
        let failure = Failure::of(error);
        let response = changed(&started.stored.response, |fields| {
            fields.insert("status".to_owned(), json!("failed"));
            fields.insert("error".to_owned(), json!(failure));
        })?;
        let steps = started.request.keeps_steps.then(String::new);
        Ok(EndedResponse { response, steps, outcome: Outcome::of_status(error.code().status()) })
    }

    fn ended(&self, id: ResponseId, is_stored_here: bool) {
        let end = if is_stored_here { LiveEnd::Stored } else { LiveEnd::Closed };
        self.0.live_responses.close(id, end);
    }

    fn stopped(&self) {
        self.0.live_responses.close_all();
    }
}

async fn generate(api: &Api, started: StartedResponse, recorder: Arc<UsageRecorder>) -> Result<EndedResponse> {
    let StartedResponse { stored, created_at, request, access } = started;
    let live = api.live_responses.keep(stored.id);
    let caller = Caller { access, mount: Mount::OpenAi, recorder, room: Room::unlimited() };
    if request.keeps_steps {
        // Streams follow it.
        caller.recorder.defer();
    }
    let items = input_items::parsed(&stored)?;
    let body: ResponsesRequest = extractors::from_json(request.json.as_bytes())?;
    let (Checked { call, settings, reasoning, .. }, _) = validate_resolved(body, items, None, &caller, api).await?;
    let chat = api.chat.start(&caller.access, call, caller.recorder.clone()).await.map_err(with_field_names)?;
    let running = RunningResponse::new(chat, settings, reasoning, None, api.clock_rng.clone());
    let mut running = running.with_identity(stored.id, created_at);
    // On a shared store, a response that is generated again has another number.
    let number = api.services.responses.is_shared().then(|| random_number(api));
    live.start(number, running.encoder());
    let observe = |steps| {
        if request.keeps_steps {
            live.extend(steps);
        }
    };
    let publish = shared_steps::publish(api, stored.id, number, request.keeps_steps.then_some(&*live));
    let generated = tokio::select! {
        generated = running.generate(observe) => generated,
        never = publish => match never {},
    };
    let (body, outcome) = match generated.err() {
        None => (running.complete(), Outcome::Succeeded),
        Some(error) if error.code() == Code::ShuttingDown => return Err(error),
        Some(error) => (running.failed(Failure::of(&error)), Outcome::of_status(error.code().status())),
    };
    let steps = match request.keeps_steps {
        true => Some(live.with_output(to_json)?),
        false => None,
    };
    Ok(EndedResponse { response: to_json(&body)?, steps, outcome })
}
