//! The HTTP layer: decodes requests, calls the services and encodes the responses.
//!
//! One set of handlers is mounted twice: `/v1` uses the spec's envelope, `/openai/v1` OpenAI's exact bodies. Ollama's API
//! is below `/api`, and Cohere's below `/v2`. Every request passes `request_logging` (id, log line, error body); inside the mounts it passes authentication before
//! anything else is read.

pub mod allowed_hosts;
mod api_format;
pub mod authentication;
pub mod batch_requests;
pub mod client_address;
pub mod connections;
pub mod content_negotiation;
mod cors;
mod dashboard;
pub mod error;
pub mod etag;
pub mod extractors;
mod header_list;
mod http1;
mod http2;
pub mod idempotent_body;
mod keyless;
pub mod metering_middleware;
pub mod multipart;
mod ndjson;
mod normalize;
pub mod openapi;
pub mod page_params;
pub mod request_logging;
mod resource_ids;
pub mod response;
mod response_body;
pub mod response_budget;
pub mod routes;
pub mod server;
pub mod sse;
pub mod tls;
mod transport;
pub mod unknown_fields;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use actix_web::web::Data;
use arc_swap::ArcSwap;

use self::allowed_hosts::AllowedHosts;
use self::client_address::TrustedProxies;
use self::response_budget::ResponseBudget;
use crate::calls::{
    embeddings::Embeddings,
    fine_tuning::FineTuning,
    images::Images,
    model_pulls::ModelPulls,
    models::Models,
    responses::live::LiveResponses,
    speech::Speeches,
    text::{chat::Chat, completions::Completions, tokenization::Tokenization},
    transcriptions::Transcriptions,
};
use crate::clock_rng::ClockRng;
use crate::disk_space::DiskReserve;
use crate::ids::{KeyId, ListId};
use crate::origin::Origin;
use crate::service::Services;
use crate::storage::Store;

/// The state of all handlers.
pub struct Api {
    pub clock_rng: Arc<dyn ClockRng>,
    pub store: Store,
    /// The reserve of the disk with the data folder.
    pub disk: DiskReserve,
    /// The bytes of responses that are built and not yet sent.
    pub response_budget: Arc<ResponseBudget>,
    pub services: Services,
    pub fine_tuning: FineTuning,
    pub models: Models,
    pub pulls: ModelPulls,
    pub chat: Arc<Chat>,
    pub completions: Completions,
    pub tokenization: Tokenization,
    pub embeddings: Embeddings,
    pub images: Images,
    pub transcriptions: Transcriptions,
    pub speeches: Speeches,
    /// Responses that are generated in the background.
    pub live_responses: Arc<LiveResponses>,
    /// The host names that this server accepts.
    pub hosts: Data<AllowedHosts>,
    /// The origins whose pages may call the API from a browser.
    pub origins: ArcSwap<Vec<Origin>>,
    /// The key of local requests without one.
    pub keyless: Option<KeyId>,
    /// The proxies in front of this server.
    pub proxies: TrustedProxies,
    /// Public base URL of this server; if not set, the request's host is used.
    pub public_url: Option<String>,
    /// The policy of model calls for unknown fields.
    pub unknown_fields: unknown_fields::UnknownFields,
    /// Sends the envelope to OpenAI's SDKs on `/v1`, too.
    pub strict_envelope: bool,
    /// Serves `/metrics` without a key.
    pub open_metrics: bool,
    pub draining: AtomicBool,
}

impl Api {
    /// True once the server is shutting down, or about to.
    pub fn draining(&self) -> bool {
        self.draining.load(Ordering::Relaxed)
    }

    /// An id for the response to a listing.
    pub fn list_id(&self) -> ListId {
        ListId::generate(&*self.clock_rng)
    }
}
