//! Requests that are ready to be queued.

use std::sync::Arc;

use super::window_decoder::DecodingOptions;
use crate::ids::Tenant;

/// A request whose prompt is tokenized.
#[derive(Clone, Debug)]
pub struct PreparedRequest {
    pub tenant: Tenant,
    pub options: Arc<DecodingOptions>,
    /// Requests the times of words.
    pub words: bool,
    pub language: Language,
}

/// The language of a request, as far as it is known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Language {
    /// Its token; `None` in models that know only English.
    Known(Option<u32>),
    /// The first window is to detect it.
    Unknown,
}
