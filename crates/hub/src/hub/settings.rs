//! The addresses of hubs and registries, and the secrets that are sent to them.

use std::env;
use std::fs::{self, File};
use std::io::Read;
use std::path::{Path, PathBuf};

use super::error::HubError;
use super::registry_reference::DOCKER;
use crate::download::{AllowedHost, Authorization, Location};

const DEFAULT_OLLAMA_REGISTRY: &str = "https://registry.ollama.ai";
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
    /// The address of Ollama's registry, without a slash at the end.
    pub ollama_registry: String,
    /// The user and password for `oci:` registries.
    pub oci_credentials: Option<Authorization>,
    /// The only registry that gets them; `None`: the registry of the requested model.
    pub oci_credentials_host: Option<AllowedHost>,
    /// Hosts that may have addresses that are not public, besides the endpoint.
    pub allowed_hosts: Vec<AllowedHost>,
    /// Connections of a file.
    pub connections: usize,
}

impl HubSettings {
    /// Reads the variables of Hugging Face's own tools: `HF_ENDPOINT`, and `HF_TOKEN` or the file of `HF_TOKEN_PATH`,
    /// `HF_HOME/token` or `~/.cache/huggingface/token`; and for registries `OUTPOST_OLLAMA_REGISTRY`, `OUTPOST_OCI_USERNAME`,
    /// `OUTPOST_OCI_PASSWORD` and `OUTPOST_OCI_REGISTRY`.
    ///
    /// # Errors
    /// If a variable has a bad value, or `HF_HUB_OFFLINE` forbids connections.
    pub fn from_env(allowed_hosts: Vec<AllowedHost>, connections: usize) -> Result<Self, HubError> {
        if text("HF_HUB_OFFLINE")
            .is_some_and(|value| matches!(value.to_ascii_lowercase().as_str(), "1" | "true" | "yes" | "on"))
        {
            return Err(HubError::Setting("HF_HUB_OFFLINE is set, so nothing is downloaded".to_owned()));
        }
        let endpoint = address("HF_ENDPOINT", DEFAULT_ENDPOINT)?;
        let ollama_registry = address("OUTPOST_OLLAMA_REGISTRY", DEFAULT_OLLAMA_REGISTRY)?;
        let token = if is_safe(&endpoint) { token()? } else { None };
        let (oci_credentials, oci_credentials_host) = oci_credentials()?;
        Ok(Self { endpoint, token, ollama_registry, oci_credentials, oci_credentials_host, allowed_hosts, connections })
    }

    /// Uses the token in a file instead of that of the environment.
    ///
    /// # Errors
    /// If the file has no token.
    pub fn with_token_file(self, file: &Path) -> Result<Self, HubError> {
        let bad = |why: String| HubError::Setting(format!("--token-file {}: {why}", file.display()));
        let read = File::open(file).and_then(|file| {
            let mut text = String::new();
            file.take(MAX_TOKEN_BYTES).read_to_string(&mut text).map(|_| text)
        });
        let text = read.map_err(|error| bad(error.to_string()))?;
        let token = Some(text.trim()).filter(|token| !token.is_empty()).and_then(Authorization::bearer);
        let token = token.ok_or_else(|| bad("it has no token".to_owned()))?;
        Ok(Self { token: is_safe(&self.endpoint).then_some(token), ..self })
    }

    /// The settings for a server that pulls what its admins ask for. A request may name any registry, so only the registry
    /// in `OUTPOST_OCI_REGISTRY` gets credentials.
    #[must_use]
    pub fn for_server(self) -> Self {
        let oci_credentials = self.oci_credentials.filter(|_| self.oci_credentials_host.is_some());
        Self { oci_credentials, ..self }
    }

    /// The credentials for a registry.
    pub(super) fn credentials_for(&self, registry: &Location) -> Option<Authorization> {
        let origin = registry.origin();
        let is_meant = |meant: &AllowedHost| {
            let host = if meant.host == DOCKER.0 { DOCKER.1 } else { &meant.host };
            host == origin.host && meant.port.is_none_or(|port| port == origin.port)
        };
        self.oci_credentials.clone().filter(|_| self.oci_credentials_host.as_ref().is_none_or(is_meant))
    }
}

/// A token must not travel unencrypted.
fn is_safe(endpoint: &str) -> bool {
    Location::parse(endpoint).is_ok_and(|location| location.origin().is_https || location.origin().is_loopback())
}

/// The address in a variable.
fn address(variable: &str, default: &str) -> Result<String, HubError> {
    let address = text(variable).unwrap_or_else(|| default.to_owned()).trim_end_matches('/').to_owned();
    let bad = |why: &str| HubError::Setting(format!("{variable} {why}"));
    match Location::parse(&address) {
        _ if address.contains(['?', '#']) => Err(bad("must not have a query or a fragment")),
        Ok(_) => Ok(address),
        Err(why) => Err(bad(why)),
    }
}

fn oci_credentials() -> Result<(Option<Authorization>, Option<AllowedHost>), HubError> {
    let bad = |why: &str| HubError::Setting(why.to_owned());
    let credentials = match (text("OUTPOST_OCI_USERNAME"), text("OUTPOST_OCI_PASSWORD")) {
        (None, None) => None,
        (Some(user), Some(password)) => {
            let credentials = Authorization::basic(&user, &password);
            Some(credentials.ok_or_else(|| bad("OUTPOST_OCI_USERNAME must not have a colon"))?)
        }
        _ => return Err(bad("OUTPOST_OCI_USERNAME and OUTPOST_OCI_PASSWORD must be set together")),
    };
    let host = text("OUTPOST_OCI_REGISTRY").map(|host| host.parse()).transpose();
    Ok((credentials, host.map_err(|why| HubError::Setting(format!("OUTPOST_OCI_REGISTRY: {why}")))?))
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
