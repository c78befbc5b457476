//! The HTTP face: decodes requests into calls, encodes what comes back.
//!
//! One set of handlers is mounted twice: `/v1` answers in the spec's envelope, `/openai/v1` in
//! OpenAI's exact bodies. Every request passes `frame` (id, log line, error body); inside the
//! mounts it passes `authenticate` before anything else is looked at.

pub mod accept;
pub mod caller;
mod channel;
pub mod client_address;
pub mod connections;
mod dashboard;
pub mod error;
pub mod frame;
pub mod host;
mod http1;
mod http2;
pub mod input;
pub mod metering;
pub mod multipart;
mod objects;
pub mod openapi;
pub mod paging;
pub mod reply;
pub mod routes;
mod sending;
pub mod server;
pub mod sse;
pub mod submission;
pub mod tls;
pub mod version;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use self::client_address::TrustedProxies;
use self::host::Hosts;
use crate::calls::{chat::Chat, embeddings::Embeddings, fine_tuning::FineTuning, images::Images, models::Models};
use crate::clock_rng::ClockRng;
use crate::ids::ListId;
use crate::service::limits::Limits;
use crate::service::usage::{Meter, Usage};
use crate::service::{
    agents::Agents, audit::Audit, conversations::Conversations, files::Files, keys::Keys, pictures::Pictures,
    projects::Projects,
};
use crate::storage::Store;

/// What the handlers call.
pub struct Api {
    pub clock_rng: Arc<dyn ClockRng>,
    pub store: Store,
    pub keys: Keys,
    pub projects: Projects,
    pub audit: Audit,
    pub limits: Limits,
    pub meter: Meter,
    pub usage: Usage,
    pub files: Files,
    pub fine_tuning: FineTuning,
    pub conversations: Conversations,
    pub agents: Agents,
    pub models: Models,
    pub chat: Chat,
    pub embeddings: Embeddings,
    pub images: Images,
    pub pictures: Pictures,
    /// The names that this server answers to.
    pub hosts: Hosts,
    /// The proxies in front of this server.
    pub proxies: TrustedProxies,
    /// What links to this server begin with; where it is not set, what the request came by.
    pub public_url: Option<String>,
    /// Whether the figures can be read without a key.
    pub open_metrics: bool,
    pub draining: AtomicBool,
}

impl Api {
    /// Whether the server is on its way out.
    pub fn draining(&self) -> bool {
        self.draining.load(Ordering::Relaxed)
    }

    /// An id for the answer to one listing.
    pub fn list_id(&self) -> ListId {
        ListId::generate(&*self.clock_rng)
    }
}
