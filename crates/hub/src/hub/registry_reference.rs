//! Names of models in registries that speak the OCI distribution API, of which Ollama's is one.

use std::fmt;

use crate::catalog::is_sha256;
use crate::download::Location;

/// The namespace of Ollama's own models, and of Docker's own repositories.
const LIBRARY: &str = "library/";
/// The tag if there is none.
const LATEST: &str = "latest";
/// What users call Docker's registry, and the host of its API.
pub(super) const DOCKER: (&str, &str) = ("docker.io", "registry-1.docker.io");
const MAX_REPOSITORY_BYTES: usize = 255;
const MAX_TAG_BYTES: usize = 128;

/// A model in a registry.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RegistryModel {
    /// `HOST[:PORT]`; `None`: Ollama's registry.
    pub host: Option<String>,
    /// Such as `library/llama3.2`.
    pub repository: String,
    /// A tag, or `sha256:` and a digest.
    pub version: String,
}

impl RegistryModel {
    /// Parses `NAME[:TAG]`, `USER/NAME[:TAG]` or `HOST[:PORT]/USER/NAME[:TAG]`.
    pub(super) fn parse_ollama(text: &str) -> Result<Self, &'static str> {
        let (path, version) = split_tag(text);
        let (host, repository) = match *path.split('/').collect::<Vec<_>>() {
            [name] => (None, format!("{LIBRARY}{name}")),
            [_, _] => (None, path.to_owned()),
            [host, user, name] => (Some(host), format!("{user}/{name}")),
            _ => return Err("is not [[HOST/]USER/]NAME"),
        };
        // Ollama allows upper-case letters.
        let is_name = |name: &str| is_component(&name.to_ascii_lowercase());
        if !repository.split('/').all(is_name) || repository.len() > MAX_REPOSITORY_BYTES {
            return Err("has a name with other characters than letters, digits, '.', '_' and '-'");
        }
        Self::new(host, repository, version)
    }

    /// Parses `HOST[:PORT]/REPOSITORY[:TAG|@DIGEST]`.
    pub(super) fn parse_oci(text: &str) -> Result<Self, &'static str> {
        let (path, version) = match text.split_once('@') {
            Some((path, digest)) => (path, digest),
            None => split_tag(text),
        };
        let (host, repository) = path.split_once('/').ok_or("has no host")?;
        let repository = match (host == DOCKER.0, repository.contains('/')) {
            (true, false) => format!("{LIBRARY}{repository}"),
            _ => repository.to_owned(),
        };
        if !repository.split('/').all(is_component) || repository.len() > MAX_REPOSITORY_BYTES {
            return Err(
                "has a repository with other characters than lower-case letters, digits, '.', '_', '-' and '/'",
            );
        }
        Self::new(Some(host), repository, version)
    }

    fn new(host: Option<&str>, repository: String, version: &str) -> Result<Self, &'static str> {
        let is_digest = version.strip_prefix("sha256:").is_some_and(is_sha256);
        if !is_digest && !is_tag(version) {
            return Err("has no valid tag or sha256 digest");
        }
        // A name without a dot or a port would be a user's as well.
        let is_host = |host: &str| host == "localhost" || host.contains(['.', ':']);
        let model = Self { host: host.map(str::to_owned), repository, version: version.to_owned() };
        match host.is_none_or(is_host) && (host.is_none() || model.location().is_some()) {
            true => Ok(model),
            false => Err("has no valid host before its first '/'"),
        }
    }

    /// The address of its host, unless that is Ollama's registry: with https, except for this machine.
    pub(super) fn location(&self) -> Option<Location> {
        let host = self.host.as_deref()?;
        let host = if host == DOCKER.0 { DOCKER.1 } else { host };
        if host.contains(['?', '#', '@']) {
            return None;
        }
        let secure = Location::parse(&format!("https://{host}")).ok()?;
        match secure.origin().is_loopback() {
            true => Location::parse(&format!("http://{host}")).ok(),
            false => Some(secure),
        }
    }

    /// A name for the model: the repository's last component, and the tag unless that is `latest`.
    pub(super) fn name(&self) -> String {
        let name = self.repository.rsplit('/').next().unwrap_or_default();
        match self.version.as_str() {
            LATEST => name.to_owned(),
            version if version.starts_with("sha256:") => name.to_owned(),
            tag => format!("{name}-{tag}"),
        }
    }

    pub(super) fn fmt_ollama(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (host, repository) = (&self.host, &self.repository);
        match host {
            Some(host) => write!(f, "ollama:{host}/{repository}:{}", self.version),
            None => write!(f, "ollama:{}:{}", repository.strip_prefix(LIBRARY).unwrap_or(repository), self.version),
        }
    }

    pub(super) fn fmt_oci(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let separator = if self.version.starts_with("sha256:") { '@' } else { ':' };
        write!(f, "oci:{}/{}{separator}{}", self.host.as_deref().unwrap_or_default(), self.repository, self.version)
    }
}

/// Splits at the last `:` if it belongs to the last component; otherwise it belongs to a port.
fn split_tag(text: &str) -> (&str, &str) {
    match text.rsplit_once(':') {
        Some((path, tag)) if !tag.contains('/') => (path, tag),
        _ => (text, LATEST),
    }
}

/// Whether a component of a repository has the form of the distribution specification.
fn is_component(text: &str) -> bool {
    let is_plain = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit();
    let ends_plain = |b: Option<&u8>| b.is_some_and(|b| is_plain(*b));
    let bytes = text.as_bytes();
    let separators_are_known = text
        .split(|c: char| is_plain(u8::try_from(c).unwrap_or(b'/')))
        .all(|run| matches!(run, "" | "." | "_" | "__") || run.bytes().all(|b| b == b'-'));
    ends_plain(bytes.first()) && ends_plain(bytes.last()) && separators_are_known
}

fn is_tag(text: &str) -> bool {
    let is_inner = |b: u8| b.is_ascii_alphanumeric() || b"._-".contains(&b);
    let starts = text.starts_with(|c: char| c.is_ascii_alphanumeric() || c == '_');
    starts && text.len() <= MAX_TAG_BYTES && text.bytes().all(is_inner)
}
