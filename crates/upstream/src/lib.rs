//! Upstream models: models whose work is done by other servers with OpenAI's API.
//!
//! A folder of the models folder that holds an `upstream.toml` is such a model. The file names one or more targets.
//! [`UpstreamClient`] sends each request to the target with the fewest running requests, tries another one as long as
//! nothing of the response has arrived, and leaves targets alone that fail. Only the file sets addresses: nothing that
//! a client of the API sends can make the server call anything else.
//!
//! This module knows HTTP, but not what the requests mean. The module `calls` builds and reads them.
//!
//! A request that could name an address would let a tenant reach whatever the server reaches. For the same reason
//! redirects are not followed, proxies of the environment are not used, and a target's error message is passed on only
//! if it has no URL and no name of the target.

mod address;
mod attempt;
mod breaker;
mod client;
mod config;
mod connector;
mod event_stream;
mod failure;
mod file_format;
mod key;
mod metrics;
mod payload;
mod pool;
mod refusal;
mod response;
mod sse;

pub use client::{Task, UpstreamClient};
pub use config::{UpstreamModel, dependencies};
pub use event_stream::EventStream;
pub use failure::Failure;
pub use file_format::{Api, FILE, Kind};
pub use payload::{Payload, UpstreamCall};
pub use refusal::Refusal;
pub use response::{Response, ShutdownPhase};
