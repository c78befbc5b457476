//! `/api/pull`: the progress of a pull in the statuses of Ollama's API.

use std::collections::VecDeque;

use actix_web::web::Bytes;
use actix_web::{HttpResponse, post, web};
use futures_util::{Stream, stream};
use serde::{Deserialize, Serialize};
use utoipa_actix_web::service_config::ServiceConfig;

use super::api_format::in_stream;
use super::body::OllamaJson;
use super::model_name::model_id;
use super::models::NamedModel;
use crate::calls::model_pulls::{Pull, PullFailure, PullRequest, PullState, PullStatus, PullWatch};
use crate::error::{Code, Error, Result};
use crate::http::response::ApiResult;
use crate::http::{Api, authentication::Caller, ndjson, sse};
use crate::service::audit::pull_log::PullEnd;

pub fn routes(config: &mut ServiceConfig) {
    config.service(pull_model);
}

const MANIFEST: &str = "pulling manifest";
const VERIFYING: &str = "verifying sha256 digest";
const WRITING: &str = "writing manifest";
const SUCCESS: &str = "success";

#[derive(Deserialize, utoipa::ToSchema)]
#[schema(as = OllamaPullRequest)]
pub struct PullRequestBody {
    /// Id of a model, a name of the catalog, `hf.co/USER/REPO:QUANT`, or a name of Ollama's registry.
    model: Option<String>,
    /// The older name of `model`.
    name: Option<String>,
    /// True if absent.
    stream: Option<bool>,
}

/// The status of a pull.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, utoipa::ToSchema)]
#[schema(as = OllamaPull)]
struct PullLine {
    /// `success` at the end.
    status: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    digest: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    total: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    completed: Option<u64>,
}

impl From<&str> for PullLine {
    fn from(status: &str) -> Self {
        Self { status: status.to_owned(), ..Self::default() }
    }
}

/// Install a model, if this key is an admin's and the server was started with `--allow-pull`. For other keys: check that a model
/// is installed.
#[utoipa::path(tag = "ollama", operation_id = "pull", request_body = PullRequestBody, responses((
    status = 200,
    description = "The model is installed.",
    content((PullLine = "application/json"), (String = "application/x-ndjson")),
)))]
#[post("/pull")]
async fn pull_model(caller: Caller, body: OllamaJson<PullRequestBody>, api: web::Data<Api>) -> ApiResult {
    let PullRequestBody { model, name, stream } = body.0;
    let (name, is_streamed) = (NamedModel { model, name }.into_name()?, stream.unwrap_or(true));
    let name = model_id(&name);
    let watch = match api.models.get(&caller.access, name).await {
        Ok(_) => None,
        Err(error) if error.code() != Code::ModelNotFound => return Err(error),
        Err(_) => match start(&caller, name, &api).await {
            Ok(watch) => Some(watch),
            Err(refused) => return Err(refused),
        },
    };
    match (watch, is_streamed) {
        (None, true) => Ok(ndjson::response(stream::iter([ndjson::line(&PullLine::from(SUCCESS))]))),
        (Some(watch), true) => Ok(ndjson::response(lines(watch))),
        (None, false) => Ok(HttpResponse::Ok().json(PullLine::from(SUCCESS))),
        (Some(mut watch), false) => match error_of(&watch.ended().await.status) {
            Some(error) => Err(error),
            None => Ok(HttpResponse::Ok().json(PullLine::from(SUCCESS))),
        },
    }
}

async fn start(caller: &Caller, model: &str, api: &Api) -> Result<PullWatch> {
    caller.access.require_admin()?;
    api.pulls.start(&caller.access, PullRequest::of_ollama_name(model)?).await
}

/// The error of a pull that has ended without success.
fn error_of(status: &PullStatus) -> Option<Error> {
    status.error.clone().map(|PullFailure { code, message }| Error::new(code, message))
}

/// The lines of a pull until its end. Clients read every line as a status, so the last one is repeated while nothing happens.
fn lines(watch: PullWatch) -> impl Stream<Item = Bytes> + 'static {
    let state = Lines { watch, report: Report::default(), waiting: VecDeque::new(), has_ended: false };
    stream::unfold(state, |mut state| async move {
        loop {
            if let Some(line) = state.waiting.pop_front() {
                return Some((line, state));
            }
            if state.has_ended {
                return None;
            }
            state.wait().await;
        }
    })
}

struct Lines {
    watch: PullWatch,
    report: Report,
    waiting: VecDeque<Bytes>,
    has_ended: bool,
}

impl Lines {
    /// Waits for the next lines.
    async fn wait(&mut self) {
        match tokio::time::timeout(sse::KEEP_ALIVE, self.watch.next()).await {
            Err(_) => self.waiting.extend(self.report.last.iter().map(ndjson::line)),
            Ok(None) => self.has_ended = true,
            Ok(Some(pull)) => {
                self.waiting.extend(self.report.lines(&pull).iter().map(ndjson::line));
                let error = error_of(&pull.status);
                self.waiting.extend(error.map(|error| in_stream(&error, None, Ok(()))));
            }
        }
    }
}

/// What was reported last. Steps that a client would miss are added, because clients show each of them.
#[derive(Default)]
struct Report {
    last: Option<PullLine>,
}

impl Report {
    fn lines(&mut self, pull: &Pull) -> Vec<PullLine> {
        let PullStatus { state, completed_bytes, total_bytes, digest, .. } = &pull.status;
        let layer = |completed: u64| match (digest, total_bytes) {
            (Some(digest), Some(total)) => Some(PullLine {
                status: format!("pulling {}", digest.get(..12).unwrap_or(digest)),
                digest: Some(format!("sha256:{digest}")),
                total: Some(*total),
                completed: Some(completed.min(*total)),
            }),
            _ => None,
        };
        let is_first = self.last.is_none();
        let manifest = is_first.then(|| PullLine::from(MANIFEST));
        let whole = total_bytes.and_then(layer);
        let lines: Vec<Option<PullLine>> = match state {
            PullState::Queued | PullState::Resolving => vec![manifest],
            PullState::Downloading => vec![manifest, layer(*completed_bytes)],
            PullState::Verifying | PullState::Installing => {
                vec![manifest, layer(*completed_bytes), Some(PullLine::from(VERIFYING))]
            }
            PullState::Ended(PullEnd::Succeeded) => {
                let steps = [VERIFYING, WRITING, SUCCESS].map(|status| Some(PullLine::from(status)));
                [manifest, whole].into_iter().chain(steps).collect()
            }
            PullState::Ended(_) => vec![manifest],
        };
        let mut new: Vec<PullLine> = lines.into_iter().flatten().collect();
        new.dedup();
        // What was said last is not said again.
        if let Some(at) = new.iter().position(|line| Some(line) == self.last.as_ref()) {
            new.drain(..=at);
        }
        self.last = new.last().cloned().or(self.last.take());
        new
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock_rng::Timestamp;
    use crate::ids::PullId;

    fn pull(state: PullState, completed: u64) -> Pull {
        let status = PullStatus {
            state,
            name: None,
            revision: None,
            license: None,
            file: None,
            digest: Some("ab".repeat(32)),
            total_bytes: Some(100),
            completed_bytes: completed,
            bytes_per_second: None,
            message: None,
            error: None,
            ended_at: None,
        };
        Pull { id: PullId::from_bytes([1; 16]), model: "m".to_owned(), created_at: Timestamp::ORIGIN, status }
    }

    fn statuses(report: &mut Report, state: PullState, completed: u64) -> Vec<String> {
        report.lines(&pull(state, completed)).into_iter().map(|line| line.status).collect()
    }

    #[test]
    fn every_step_is_reported_once() {
        let (mut report, layer) = (Report::default(), "pulling abababababab");
        assert_eq!(statuses(&mut report, PullState::Queued, 0), [MANIFEST]);
        assert!(statuses(&mut report, PullState::Resolving, 0).is_empty());
        assert_eq!(statuses(&mut report, PullState::Downloading, 10), [layer]);
        assert!(statuses(&mut report, PullState::Downloading, 10).is_empty());
        assert_eq!(statuses(&mut report, PullState::Verifying, 100), [layer, VERIFYING]);
        assert!(statuses(&mut report, PullState::Installing, 100).is_empty());
        let end = PullState::Ended(PullEnd::Succeeded);
        assert_eq!(statuses(&mut report, end, 100), [WRITING, SUCCESS]);
        assert_eq!(statuses(&mut Report::default(), end, 100), [MANIFEST, layer, VERIFYING, WRITING, SUCCESS]);
    }
}
