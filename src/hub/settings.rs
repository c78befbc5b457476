//! Where the hub is, and with which token it is asked.

use std::env;
use std::fs;
use std::path::PathBuf;

use super::error::HubError;
use crate::download::{AllowedHost, Authorization, Location};

const DEFAULT_ENDPOINT: &str = "https://huggingface.co";
/// Max bytes of a token.
const MAX_TOKEN_BYTES: u64 = 4096;

/// Settings of pulls from hubs.
#[derive(Clone, Debug)]
pub struct HubSettings {
    /// The hub's address, without a slash at the end.
    pub endpoint: String,
    /// Sent only to the endpoint.
    pub token: Option<Authorization>,
    /// Hosts that may have addresses that are not public, besides the endpoint.
    pub allowed_hosts: Vec<AllowedHost>,
    /// Connections of a file.
    pub connections: usize,
}

impl HubSettings {
    /// Reads the variables of Hugging Face's own tools: `HF_ENDPOINT`, and `HF_TOKEN` or the file of `HF_TOKEN_PATH`,
    /// `HF_HOME/token` or `~/.cache/huggingface/token`.
    ///
    /// # Errors
    /// If a variable has a bad value, or `HF_HUB_OFFLINE` forbids connections.
    pub fn from_env(allowed_hosts: Vec<AllowedHost>, connections: usize) -> Result<Self, HubError> {
        if text("HF_HUB_OFFLINE")
            .is_some_and(|value| matches!(value.to_ascii_lowercase().as_str(), "1" | "true" | "yes" | "on"))
        {
            return Err(HubError::Setting("HF_HUB_OFFLINE is set, so nothing is downloaded".to_owned()));
        }
        let endpoint = text("HF_ENDPOINT").unwrap_or_else(|| DEFAULT_ENDPOINT.to_owned());
        let endpoint = endpoint.trim_end_matches('/').to_owned();
        let bad = |why: &str| HubError::Setting(format!("HF_ENDPOINT {why}"));
        if endpoint.contains(['?', '#']) {
            return Err(bad("must not have a query or a fragment"));
        }
        let location = Location::parse(&endpoint).map_err(bad)?;
        let is_safe = location.origin().is_https || location.origin().is_loopback();
        // A token must not travel unencrypted.
        let token = if is_safe { token()? } else { None };
        Ok(Self { endpoint, token, allowed_hosts, connections })
    }
}

fn text(name: &str) -> Option<String> {
    env::var(name).ok().map(|value| value.trim().to_owned()).filter(|value| !value.is_empty())
}

fn token() -> Result<Option<Authorization>, HubError> {
    let bad = |place: &str| HubError::Setting(format!("the token of {place} has characters that no token has"));
    if let Some(token) = text("HF_TOKEN") {
        return Authorization::bearer(&token).ok_or_else(|| bad("HF_TOKEN")).map(Some);
    }
    let in_home = || {
        let cache = text("XDG_CACHE_HOME").map(PathBuf::from);
        let cache = cache.or_else(|| Some(PathBuf::from(text("HOME")?).join(".cache")))?;
        Some(cache.join("huggingface/token"))
    };
    let named = text("HF_TOKEN_PATH").map(PathBuf::from);
    let file = named.or_else(|| Some(PathBuf::from(text("HF_HOME")?).join("token"))).or_else(in_home);
    let Some(file) = file.filter(|file| fs::metadata(file).is_ok_and(|it| it.is_file() && it.len() <= MAX_TOKEN_BYTES))
    else {
        return Ok(None);
    };
    let Ok(token) = fs::read_to_string(&file) else { return Ok(None) };
    match token.trim() {
        "" => Ok(None),
        token => Authorization::bearer(token).ok_or_else(|| bad(&file.display().to_string())).map(Some),
    }
}
