//! Runs the requests of batches through the handlers of their endpoints, so that a result has the body that a client would
//! have received on `/openai/v1`.

use std::sync::Arc;

use actix_web::HttpResponse;
use actix_web::body::MessageBody;
use actix_web::web::Data;
use futures_util::future::LocalBoxFuture;

use super::api_format::OPENAI;
use super::authentication::Caller;
use super::response::Mount;
use super::response_budget::Room;
use super::routes::{chat, completions, embeddings, moderations, responses};
use super::{Api, error, extractors};
use crate::calls::batches::RequestRunner;
use crate::error::{Error, Result};
use crate::ids::RequestId;
use crate::service::access::Access;
use crate::service::batches::BatchEndpoint;
use crate::service::usage::UsageRecorder;

/// Runs requests of batches.
pub struct BatchRequests(pub Data<Api>);

impl RequestRunner for BatchRequests {
    fn run(
        &self,
        access: Access,
        endpoint: BatchEndpoint,
        body: Arc<str>,
        recorder: Arc<UsageRecorder>,
    ) -> LocalBoxFuture<'static, Result<String>> {
        let api = self.0.clone();
        let caller = Caller { access, mount: Mount::OpenAi, recorder, room: Room::unlimited() };
        Box::pin(async move {
            let response = match endpoint {
                BatchEndpoint::ChatCompletions => {
                    chat::complete_for_batch(&caller, extractors::from_json(body.as_bytes())?, &api).await
                }
                BatchEndpoint::Responses => {
                    responses::create_for_batch(&caller, extractors::from_json(body.as_bytes())?, &api).await
                }
                BatchEndpoint::Completions => {
                    completions::complete_for_batch(&caller, extractors::from_json(body.as_bytes())?, &api).await
                }
                BatchEndpoint::Embeddings => {
                    embeddings::embed(&caller, extractors::from_json(body.as_bytes())?, &api).await
                }
                BatchEndpoint::Moderations => {
                    moderations::moderate(&caller, extractors::from_json(body.as_bytes())?, &api).await
                }
            };
            text(response?)
        })
    }

    fn error_body(&self, error: &Error, request_id: RequestId) -> Result<String> {
        text(error::render(error, request_id, &OPENAI))
    }
}

/// The body of a response that is complete.
fn text(response: HttpResponse) -> Result<String> {
    let bytes = response.into_body().try_into_bytes().map_err(|_| Error::internal("a response is a stream"))?;
    String::from_utf8(bytes.into()).map_err(Error::internal)
}
