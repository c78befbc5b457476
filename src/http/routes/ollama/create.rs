//! `POST /api/create` and `/api/copy`: derived models, which are other names for models, with settings of their own.

use actix_web::web::Bytes;
use actix_web::{HttpResponse, post, web};
use futures_util::stream;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use utoipa_actix_web::service_config::ServiceConfig;

use super::body::OllamaJson;
use super::delivery::unknown;
use super::model_name::model_id;
use super::modelfile::{self, Modelfile};
use super::models::NamedModel;
use super::options::{self, Options};
use crate::calls::models::derived::NewDerivedModel;
use crate::engine::GenerationDefaults;
use crate::error::{Error, Result};
use crate::http::header_list::with_lists;
use crate::http::response::ApiResult;
use crate::http::{Api, authentication::Caller, ndjson};
use crate::service::validation::json_fields::invalid_field;

pub fn routes(config: &mut ServiceConfig) {
    config.service(create).service(copy);
}

/// The statuses of a model that is created, in order.
const STATUSES: [&str; 2] = ["writing manifest", "success"];

/// A derived model to be created.
#[derive(Deserialize, utoipa::ToSchema)]
#[schema(as = OllamaCreateRequest)]
struct CreateRequest {
    /// The name of the new model. A derived model of that name is replaced.
    model: Option<String>,
    /// The older name of `model`.
    name: Option<String>,
    /// Id of the model, or the name of the derived model, on which it is based.
    from: Option<String>,
    /// The system prompt of chats that have none.
    system: Option<String>,
    /// Default parameters, with the names of `options`.
    #[schema(value_type = Option<options::OptionsSchema>)]
    #[serde(default, deserialize_with = "crate::json_input::with_nearest_numbers")]
    parameters: Option<Value>,
    /// A text, or several.
    #[schema(value_type = Option<Value>)]
    license: Option<License>,
    /// The name of one adapter of the model. Its value is ignored.
    #[schema(value_type = Option<Object>)]
    adapters: Option<Map<String, Value>>,
    /// The same settings as a Modelfile, which older clients send: `FROM`, `SYSTEM`, `PARAMETER`, `ADAPTER`, `LICENSE`.
    modelfile: Option<String>,
    /// True if absent.
    stream: Option<bool>,
    /// Must be empty: the chat template is that of the model.
    template: Option<String>,
    /// Must be empty.
    #[schema(value_type = Option<Vec<Object>>)]
    messages: Option<Vec<Value>>,
    /// Must be empty: files cannot be uploaded.
    #[schema(value_type = Option<Object>)]
    files: Option<Map<String, Value>>,
    /// Must be empty.
    quantize: Option<String>,
    /// Must be empty.
    path: Option<String>,
    #[serde(flatten)]
    #[schema(ignore)]
    rest: Map<String, Value>,
}

#[derive(Deserialize)]
#[serde(untagged, expecting = "must be a string or an array of strings")]
enum License {
    One(String),
    Many(Vec<String>),
}

/// A model to be given another name.
#[derive(Deserialize, utoipa::ToSchema)]
#[schema(as = OllamaCopyRequest)]
struct CopyRequest {
    /// Id of a model, or the name of a derived model.
    source: String,
    /// The new name.
    destination: String,
}

#[derive(Serialize, utoipa::ToSchema)]
#[schema(as = OllamaStatus)]
struct StatusLine {
    /// `success` at the end.
    status: &'static str,
}

impl CreateRequest {
    /// The model, and the names of the fields without effect.
    fn check(self) -> Result<(NewDerivedModel, Vec<String>)> {
        self.refuse_unsupported()?;
        let mut ignored = unknown(&self.rest);
        let file = self.modelfile.as_deref().map_or_else(|| Ok(Modelfile::default()), modelfile::read)?;
        refuse_unsupported(&file)?;
        ignored.extend(file.ignored.iter().map(|name| format!("modelfile.{name}")));
        let Some(from) = given(self.from).or_else(|| given(file.from)) else {
            return invalid_field("from", "is missing. Name a model of GET /api/tags: files cannot be uploaded");
        };
        let adapters: Vec<String> =
            self.adapters.unwrap_or_default().into_iter().map(|(name, _)| name).chain(file.adapters).collect();
        if adapters.len() > 1 {
            return invalid_field("adapters", "has several adapters, but a model can have one. Name one");
        }
        let license = match self.license {
            None => file.license,
            Some(License::One(one)) => vec![one],
            Some(License::Many(many)) => many,
        };
        let new = NewDerivedModel {
            name: model_id(&NamedModel { model: self.model, name: self.name }.into_name()?).to_owned(),
            from: model_id(&from).to_owned(),
            adapter: adapters.first().map(|name| model_id(name).to_owned()),
            system: given(self.system).or_else(|| given(file.system)),
            license: given(Some(license.join("\n"))),
            defaults: defaults(self.parameters, file.parameters, &mut ignored)?,
        };
        Ok((new, ignored))
    }

    /// Refuses what would change the model and is not supported.
    fn refuse_unsupported(&self) -> Result<()> {
        let is_text = |text: &Option<String>| text.as_ref().is_some_and(|text| !text.is_empty());
        let unsupported = [
            ("template", is_text(&self.template), TEMPLATE),
            ("messages", self.messages.as_ref().is_some_and(|list| !list.is_empty()), MESSAGES),
            ("files", self.files.as_ref().is_some_and(|files| !files.is_empty()), FILES),
            ("quantize", is_text(&self.quantize), "models are not converted here. Pull one that is quantized"),
            ("path", is_text(&self.path), "files of the server cannot be named. Send the text as 'modelfile'"),
        ];
        match unsupported.into_iter().find(|(_, is_given, _)| *is_given) {
            Some((field, _, why)) => invalid_field(field, &format!("is not supported: {why}")),
            None => Ok(()),
        }
    }
}

const TEMPLATE: &str = "the chat template is that of the model. Leave it out";
const MESSAGES: &str =
    "chats begin with the messages of the request. Leave them out, or describe them in the system prompt";
const FILES: &str = "files cannot be uploaded. The operator installs models with 'outpost models pull' or 'outpost models \
                     import'; name one as 'from'";

/// Refuses the instructions of a Modelfile that would change the model and are not supported.
fn refuse_unsupported(file: &Modelfile) -> Result<()> {
    let unsupported = [
        ("TEMPLATE", file.template.as_ref().is_some_and(|text| !text.is_empty()), TEMPLATE),
        ("MESSAGE", file.has_messages, MESSAGES),
    ];
    match unsupported.into_iter().find(|(_, is_given, _)| *is_given) {
        Some((name, _, why)) => invalid_field("modelfile", &format!("has {name}, which is not supported: {why}")),
        None => Ok(()),
    }
}

fn given(text: Option<String>) -> Option<String> {
    text.filter(|text| !text.trim().is_empty())
}

/// The parameters of the request, and those of its Modelfile that it does not set.
fn defaults(
    parameters: Option<Value>,
    mut of_file: Map<String, Value>,
    ignored: &mut Vec<String>,
) -> Result<GenerationDefaults> {
    let parameters = match parameters {
        Some(Value::Object(parameters)) => {
            of_file.extend(parameters);
            Some(Value::Object(of_file))
        }
        None | Some(Value::Null) => Some(Value::Object(of_file)),
        other => other,
    };
    let mut names = Vec::new();
    let Options { sampling, seed, stop, max_tokens, context } =
        options::check(parameters.as_ref(), &mut names).map_err(in_parameters)?;
    names.extend(context.map(|_| options::NUM_CTX.to_owned()));
    ignored.extend(names.iter().map(|name| name.replacen("options", "parameters", 1)));
    Ok(GenerationDefaults {
        sampling: sampling.parameters,
        max_tokens: max_tokens.map(|(count, _)| count),
        seed,
        stop: stop.filter(|stop| !stop.is_empty()),
    })
}

/// The error about a parameter, under the name of its field here.
fn in_parameters(error: Error) -> Error {
    let Some(field) = error.param_name() else { return error };
    let (text, field) =
        (error.message().replacen("'options", "'parameters", 1), field.replacen("options", "parameters", 1));
    Error::invalid(field, text)
}

/// Create a derived model: another name for a model, with a system prompt and default parameters of its own. Needs the scope
/// `admin`.
///
/// It takes no memory of its own, and everybody who may use the model may use it. Fields without effect are named in the header
/// `x-outpost-ignored`.
#[utoipa::path(tag = "ollama", request_body = CreateRequest, responses((
    status = 200,
    description = "The model is created.",
    content((StatusLine = "application/json"), (String = "application/x-ndjson")),
)))]
#[post("/create")]
async fn create(caller: Caller, body: OllamaJson<CreateRequest>, api: web::Data<Api>) -> ApiResult {
    caller.access.require_admin()?;
    let is_streamed = body.0.stream.unwrap_or(true);
    let (new, ignored) = body.0.check()?;
    api.models.derive(&caller.access, new).await?;
    let lines = STATUSES.map(|status| StatusLine { status });
    let response = match is_streamed {
        true => ndjson::response(stream::iter(lines.map(|line| -> Bytes { ndjson::line(&line) }))),
        false => HttpResponse::Ok().json(lines.last()),
    };
    Ok(with_lists(response, &ignored, &[]))
}

/// Give a model another name. Needs the scope `admin`.
#[utoipa::path(tag = "ollama", request_body = CopyRequest, responses((status = 200, description = "The model has the name.")))]
#[post("/copy")]
async fn copy(caller: Caller, body: OllamaJson<CopyRequest>, api: web::Data<Api>) -> ApiResult {
    let CopyRequest { source, destination } = body.0;
    api.models.copy(&caller.access, model_id(&source), model_id(&destination).to_owned()).await?;
    Ok(HttpResponse::Ok().finish())
}
