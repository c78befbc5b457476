//! The list of voices.

use actix_web::web::Data;
use actix_web::{HttpResponse, get};
use serde::{Deserialize, Serialize};
use utoipa_actix_web::service_config::ServiceConfig;

use crate::calls::speech::ListedVoice;
use crate::http::extractors::ApiParams;
use crate::http::response::{ApiResult, Head, List, Mount};
use crate::http::{Api, authentication::Caller};

pub fn routes(config: &mut ServiceConfig) {
    config.service(list);
}

#[derive(Deserialize, utoipa::IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
pub struct ListVoices {
    /// Only voices of this model.
    model: Option<String>,
}

/// A voice. Its id is what `voice` of a request for speech takes.
#[derive(Clone, Serialize, utoipa::ToSchema)]
pub struct VoiceBody {
    name: String,
    /// The tag of its language, such as `en-US`; null if the server cannot pronounce it.
    language: Option<&'static str>,
    model: String,
}

/// The list as other servers have it.
#[derive(Serialize, utoipa::ToSchema)]
pub struct VoicesBody {
    voices: Vec<NamedVoice>,
}

#[derive(Serialize, utoipa::ToSchema)]
struct NamedVoice {
    id: String,
    #[serde(flatten)]
    body: VoiceBody,
}

/// A page of the listing, and the same voices as other servers have them.
#[derive(Serialize)]
struct Listing {
    #[serde(flatten)]
    list: List<VoiceBody>,
    #[serde(flatten)]
    voices: VoicesBody,
}

/// List the voices of the speech models that the key may use.
#[utoipa::path(tag = "audio", params(ListVoices), responses((status = 200, body = VoicesBody)))]
#[get("/audio/voices")]
async fn list(caller: Caller, params: ApiParams<ListVoices>, api: Data<Api>) -> ApiResult {
    let found = api.speeches.voices(&caller.access, params.0.model).await?;
    let bodies: Vec<VoiceBody> = found.into_iter().map(body).collect();
    let named = |body: &VoiceBody| NamedVoice { id: body.name.clone(), body: body.clone() };
    let voices = VoicesBody { voices: bodies.iter().map(named).collect() };
    match caller.mount {
        Mount::OpenAi => Ok(HttpResponse::Ok().json(voices)),
        Mount::Spec => {
            let head = |id| Head { id, object: "voice", state: None };
            let item = |body: VoiceBody| caller.mount.item(head(body.name.clone()), body);
            let list = List::new(bodies.into_iter().map(item).collect(), None);
            Ok(caller.mount.result(api.list_id(), "list", Listing { list, voices }))
        }
    }
}

fn body(ListedVoice { voice, model }: ListedVoice) -> VoiceBody {
    VoiceBody { name: voice.name, language: voice.language, model }
}
