//! Names of models: of the catalog, or of a source on the network.

use std::fmt;
use std::str::FromStr;

use super::hugging_face_reference::HuggingFaceModel;
use super::registry_reference::RegistryModel;
use super::url_reference::UrlFile;
use outpost_common::display::{one_line, shorten};

/// Max bytes of a reference. Signed URLs are long.
const MAX_BYTES: usize = 4096;

/// What a user asks to pull.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ModelReference {
    /// A name of the catalog.
    Catalog(String),
    /// `hf:USER/REPO[@REVISION][:QUANT|:FILE]`.
    HuggingFace(HuggingFaceModel),
    /// `ollama:[[HOST/]USER/]NAME[:TAG]`.
    Ollama(RegistryModel),
    /// `oci:HOST[:PORT]/REPOSITORY[:TAG|@DIGEST]`.
    Oci(RegistryModel),
    /// `https://HOST/PATH/FILE.gguf`.
    Url(UrlFile),
}

/// The text is not the name of a model.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "'{text}' {why}; write a name of the catalog, hf:USER/REPO[@REVISION][:QUANT|:FILE], ollama:[USER/]NAME[:TAG], oci:HOST/REPOSITORY[:TAG|@DIGEST] or https://HOST/PATH/FILE.gguf"
)]
pub struct BadReference {
    text: String,
    why: &'static str,
}

impl FromStr for ModelReference {
    type Err = BadReference;

    /// Names without a scheme are names of the catalog. `hf.co/USER/REPO` and addresses of huggingface.co are understood, too.
    fn from_str(text: &str) -> Result<Self, BadReference> {
        parse(text).map_err(|why| BadReference { text: shorten(&one_line(text)), why })
    }
}

fn parse(text: &str) -> Result<ModelReference, &'static str> {
    if text.len() > MAX_BYTES {
        return Err("is longer than 4096 bytes");
    }
    let after = |prefixes: &[&str]| prefixes.iter().find_map(|prefix| text.strip_prefix(prefix));
    if let Some(rest) = after(&["https://huggingface.co/", "https://hf.co/"]) {
        return HuggingFaceModel::parse_page(rest).map(ModelReference::HuggingFace);
    }
    if let Some(rest) = after(&["hf:", "hf.co/", "huggingface.co/"]) {
        return HuggingFaceModel::parse(rest).map(ModelReference::HuggingFace);
    }
    if let Some(rest) = after(&["ollama:"]) {
        return RegistryModel::parse_ollama(rest).map(ModelReference::Ollama);
    }
    if let Some(rest) = after(&["oci:"]) {
        return RegistryModel::parse_oci(rest).map(ModelReference::Oci);
    }
    if after(&["https://", "http://"]).is_some() {
        return UrlFile::parse(text).map(ModelReference::Url);
    }
    match text.contains([':', '/']) {
        true => Err("is neither a name of the catalog nor of a source that is supported"),
        false => Ok(ModelReference::Catalog(text.to_owned())),
    }
}

impl ModelReference {
    /// The quantisation, file or variant that the user named.
    pub(super) fn selector(&self) -> Option<&str> {
        match self {
            Self::HuggingFace(model) => model.selector.as_deref(),
            _ => None,
        }
    }

    /// The name of a model of several files.
    pub(super) fn default_name(&self) -> String {
        match self {
            Self::Catalog(name) => name.clone(),
            Self::HuggingFace(model) => model.name().to_owned(),
            Self::Ollama(model) | Self::Oci(model) => model.name(),
            Self::Url(file) => file.name.clone(),
        }
    }

    /// The host and port that the reference names, if it is this machine. A user who names it may mean it.
    pub fn loopback_host(&self) -> Option<(String, u16)> {
        let origin = match self {
            Self::Catalog(_) | Self::HuggingFace(_) => None,
            Self::Ollama(model) | Self::Oci(model) => model.location().map(|location| location.origin().clone()),
            Self::Url(file) => Some(file.location.origin().clone()),
        };
        origin.filter(|origin| origin.is_loopback()).map(|origin| (origin.host, origin.port))
    }
}

impl fmt::Display for ModelReference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Catalog(name) => f.write_str(name),
            Self::HuggingFace(model) => model.fmt(f),
            Self::Ollama(model) => model.fmt_ollama(f),
            Self::Oci(model) => model.fmt_oci(f),
            Self::Url(file) => file.location.fmt(f),
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn hf(repository: &str, revision: Option<&str>, selector: Option<&str>) -> ModelReference {
        let owned = |text: Option<&str>| text.map(str::to_owned);
        let (repository, revision, selector) = (repository.to_owned(), owned(revision), owned(selector));
        ModelReference::HuggingFace(HuggingFaceModel { repository, revision, selector })
    }

    fn registry(host: Option<&str>, repository: &str, version: &str) -> RegistryModel {
        let (repository, version) = (repository.to_owned(), version.to_owned());
        RegistryModel { host: host.map(str::to_owned), repository, version }
    }

    #[test]
    fn references_are_parsed() {
        let file = "https://huggingface.co/a/b/resolve/refs%2Fpr%2F3/sub/c%20d.gguf?download=true";
        for (text, expected) in [
            ("smollm2-135m-instruct", ModelReference::Catalog("smollm2-135m-instruct".to_owned())),
            ("hf:a/b", hf("a/b", None, None)),
            ("hf.co/a/b-GGUF:q4_k_m", hf("a/b-GGUF", None, Some("q4_k_m"))),
            ("https://huggingface.co/a/b", hf("a/b", None, None)),
            ("https://huggingface.co/a/b:Q6_K", hf("a/b", None, Some("Q6_K"))),
            ("https://hf.co/a/b/blob/main/c.gguf", hf("a/b", Some("main"), Some("c.gguf"))),
            ("https://huggingface.co/a/b/tree/v1", hf("a/b", Some("v1"), None)),
            (file, hf("a/b", Some("refs/pr/3"), Some("sub/c d.gguf"))),
            ("hf:a/b@refs/pr/3:sub/c.gguf", hf("a/b", Some("refs/pr/3"), Some("sub/c.gguf"))),
            ("ollama:llama3.2", ModelReference::Ollama(registry(None, "library/llama3.2", "latest"))),
            ("ollama:qwen2.5:0.5b", ModelReference::Ollama(registry(None, "library/qwen2.5", "0.5b"))),
            ("ollama:u/m", ModelReference::Ollama(registry(None, "u/m", "latest"))),
            ("ollama:h.example:1/u/m:t", ModelReference::Ollama(registry(Some("h.example:1"), "u/m", "t"))),
            ("oci:ghcr.io/u/m", ModelReference::Oci(registry(Some("ghcr.io"), "u/m", "latest"))),
            ("oci:localhost:5000/m:1", ModelReference::Oci(registry(Some("localhost:5000"), "m", "1"))),
            ("oci:[::1]:5000/a/b/c:v_1", ModelReference::Oci(registry(Some("[::1]:5000"), "a/b/c", "v_1"))),
            ("oci:docker.io/smollm2", ModelReference::Oci(registry(Some("docker.io"), "library/smollm2", "latest"))),
        ] {
            assert_eq!(text.parse(), Ok(expected), "{text}");
        }
        let digest = format!("oci:r.example/m@sha256:{}", "0a".repeat(32));
        assert_eq!(digest.parse::<ModelReference>().unwrap().to_string(), digest);
        let url: ModelReference = "https://h.example/a/Tiny%20Q8_0.gguf?sig=s".parse().unwrap();
        assert_eq!(
            (url.default_name(), url.to_string().as_str()),
            ("Tiny Q8_0.gguf".to_owned(), "https://h.example/a/Tiny%20Q8_0.gguf")
        );
    }

    #[test]
    fn only_hosts_of_this_machine_are_meant_by_naming_them() {
        let host = |text: &str| text.parse::<ModelReference>().unwrap().loopback_host();
        assert_eq!(host("oci:localhost:5000/m"), Some(("localhost".to_owned(), 5000)));
        assert_eq!(host("http://127.0.0.1/m.gguf"), Some(("127.0.0.1".to_owned(), 80)));
        for other in ["oci:10.0.0.1/m", "https://h.example/m.gguf", "ollama:m", "hf:a/b", "m"] {
            assert_eq!(host(other), None, "{other}");
        }
    }

    #[test]
    fn what_is_no_reference_is_refused() {
        for bad in [
            "hf:",
            "hf:a",
            "hf:a/",
            "hf:/b",
            "hf:a/b/c",
            "hf:a/..",
            "hf:-a/b",
            "hf:a/b:",
            "hf:a/b:../c.gguf",
            "hf:a/b@",
            "hf:a/b@../x",
            "hf:a/b@x?y",
            "hf:a b/c",
            "https://huggingface.co/a",
            "https://huggingface.co/a/b/resolve/main",
            "https://huggingface.co/a/b/resolve/main/../c.gguf",
            "https://huggingface.co/a/b/discussions/1",
            "ftp://a/b",
            "a/b",
            "x:y",
            "ollama:",
            "ollama:a:",
            "ollama:a/b/c/d",
            "ollama:a/../b",
            "ollama:evil/u/m",
            "ollama:a:b:c",
            "oci:",
            "oci:m",
            "oci:u/m",
            "oci:r.example/",
            "oci:r.example/M",
            "oci:r.example/a//b",
            "oci:r.example/../a",
            "oci:r.example/a:",
            "oci:r.example/a@sha256:0",
            "oci:u@r.example/a",
            "oci:r.example:x/a",
            "https://h.example/",
            "https://h.example/a.bin",
            "https://h.example/.gguf",
            "https://u:p@h.example/a.gguf",
            "https://h.example/a%2Fb.gguf",
            &"x/".repeat(3000),
        ] {
            let error = bad.parse::<ModelReference>().unwrap_err().to_string();
            assert!(error.contains("hf:USER/REPO"), "{bad}: {error}");
        }
    }

    proptest! {
        #[test]
        fn parsing_never_panics_and_display_is_its_inverse(text in "(hf:|ollama:|oci:r.io/|https://h.io/|https://hf.co/)?[a-z@:/._ %é-]{0,40}(.gguf)?") {
            if let Ok(model) = text.parse::<ModelReference>() {
                prop_assert_eq!(model.to_string().parse(), Ok(model));
            }
        }
    }
}
