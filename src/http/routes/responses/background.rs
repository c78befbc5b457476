//! Responses that are generated in the background.

use actix_web::HttpResponse;
use actix_web::web::Data;
use futures_util::future::LocalBoxFuture;
use serde_json::{Map, Value, json};

use super::request::{Checked, ResponsesRequest};
use super::response::{Failure, ResponseBody, ResponseEncoder};
use super::validation::validate_resolved;
use super::{custom_tools, follow, input_items};
use crate::calls::responses::background::{DecodedResponse, ResponseCodec};
use crate::calls::turn::Turn;
use crate::calls::turn::output::OutputItems;
use crate::error::{Error, Result};
use crate::http::Api;
use crate::http::authentication::Caller;
use crate::http::extractors;
use crate::http::header_list::with_lists;
use crate::http::response::ApiResult;
use crate::ids::ResponseId;
use crate::service::responses::{BackgroundRequest, ChainLink, StartedResponse, StoredResponse};

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

/// Decodes and encodes responses as `POST /responses` does.
pub struct BackgroundResponseCodec(pub Data<Api>);

impl ResponseCodec for BackgroundResponseCodec {
    fn decode(&self, started: &StartedResponse) -> LocalBoxFuture<'static, Result<DecodedResponse>> {
        let (api, started) = (self.0.clone(), started.clone());
        Box::pin(async move { decode(&api, started).await })
    }

    fn failed(&self, response: &str, error: &Error) -> Result<String> {
        let failure = Failure::of(error, None, Ok(()));
        changed(response, |fields| {
            fields.insert("status".to_owned(), json!("failed"));
            fields.insert("error".to_owned(), json!(failure));
        })
    }
}

async fn decode(api: &Api, started: StartedResponse) -> Result<DecodedResponse> {
    let StartedResponse { stored, created_at, request, access } = started;
    let items = input_items::parsed(&stored)?;
    let body: ResponsesRequest = extractors::from_json(request.json.as_bytes())?;
    let (Checked { call, settings, reasoning, .. }, _) = validate_resolved(body, items, None, &access, api).await?;
    let output = OutputItems::new(custom_tools::names(&settings.tools));
    let encoder = ResponseEncoder { id: stored.id, created_at, settings, reasoning };
    let encode = Box::new(move |turn: &Turn| to_json(&encoder.complete(turn)));
    Ok(DecodedResponse { call, output, reasoning, encode })
}
