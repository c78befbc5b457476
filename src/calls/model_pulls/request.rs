//! The request for a pull.

use crate::catalog::{Catalog, CatalogModel, is_sha256};
use crate::display::{one_line, shorten};
use crate::error::{Code, Error, Result};
use crate::hub::{BadReference, ModelReference};

/// A request to pull a model. Equal requests share one pull.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PullRequest {
    pub(super) source: PullSource,
    /// The name in the models folder; else that of the file or the repository.
    pub(super) name: Option<String>,
    /// Replace a model of that name, and install one that does not fit into memory.
    pub(super) force: bool,
    /// The sha256 that the only file must have, in lower case.
    pub(super) sha256: Option<String>,
}

/// Where a model comes from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum PullSource {
    /// The name of a model of the catalog.
    Catalog(&'static str),
    /// A model of a hub, of a registry or of an address.
    Hub(ModelReference),
}

impl PullRequest {
    /// # Errors
    /// If the model's name or an option cannot be right.
    pub fn new(model: &str, name: Option<String>, force: bool, sha256: Option<String>) -> Result<Self> {
        let reference: ModelReference = model.parse().map_err(|bad: BadReference| {
            let text = format!("'model' cannot be pulled: {bad}. Or write a name of GET /v1/catalog.");
            Error::invalid("model", text)
        })?;
        let source = match reference {
            ModelReference::Catalog(name) => PullSource::Catalog(&in_catalog(&name)?.name),
            reference => PullSource::Hub(reference),
        };
        let given = [("name", name.is_some()), ("force", force), ("sha256", sha256.is_some())];
        if let (PullSource::Catalog(_), Some((field, _))) = (&source, given.iter().find(|one| one.1)) {
            let text = format!("'{field}' is not for models of the catalog. Leave it out.");
            return Err(Error::invalid(*field, text));
        }
        let sha256 = sha256.map(|digits| digits.to_ascii_lowercase());
        if sha256.as_deref().is_some_and(|digits| !is_sha256(digits)) {
            return Err(Error::invalid("sha256", "'sha256' must be the 64 hexadecimal digits of a sha256."));
        }
        Ok(Self { source, name, force, sha256 })
    }

    /// The request of a client of Ollama, which names models of Ollama's registry without a source.
    ///
    /// # Errors
    /// If the name cannot be right.
    pub fn of_ollama_name(model: &str) -> Result<Self> {
        let has_source = model.parse().is_ok_and(|reference| !matches!(reference, ModelReference::Catalog(_)));
        let is_known = has_source || Catalog::builtin().find(model).is_some();
        let reference = if is_known { model.to_owned() } else { format!("ollama:{model}") };
        Self::new(&reference, None, false, None)
    }

    /// The model in its usual notation.
    pub fn model(&self) -> String {
        match &self.source {
            PullSource::Catalog(name) => (*name).to_owned(),
            PullSource::Hub(model) => model.to_string(),
        }
    }
}

/// A model of the catalog.
fn in_catalog(name: &str) -> Result<&'static CatalogModel> {
    let catalog = Catalog::builtin();
    catalog.find(name).ok_or_else(|| {
        let known: Vec<&str> = catalog.models().iter().map(|model| model.name.as_str()).collect();
        let text = format!(
            "The catalog has no model '{}'. It has: {}. Write hf:USER/REPO, ollama:NAME, oci:HOST/REPOSITORY or https://… for other models.",
            shorten(&one_line(name)),
            known.join(", ")
        );
        Error::new(Code::NotFound, text).param("model")
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_has_one_notation() {
        let new = |model: &str| PullRequest::new(model, None, false, None).unwrap();
        assert_eq!(new("hf.co/u/r:Q8_0"), new("hf:u/r:Q8_0"));
        assert_eq!(new("https://huggingface.co/u/r").model(), "hf:u/r");
        assert_eq!(new("all-minilm-l6-v2").model(), "all-minilm-l6-v2");
    }

    #[test]
    fn names_of_ollama_clients_are_those_of_its_registry_unless_they_have_a_source() {
        let model = |name: &str| PullRequest::of_ollama_name(name).unwrap().model();
        assert_eq!(model("qwen2.5:0.5b"), "ollama:qwen2.5:0.5b");
        assert_eq!(model("user/model"), model("ollama:user/model:latest"));
        assert_eq!(model("hf.co/u/r:Q8_0"), "hf:u/r:Q8_0");
        assert_eq!(model("all-minilm-l6-v2"), "all-minilm-l6-v2");
        assert!(PullRequest::of_ollama_name("a b").is_err());
    }

    #[test]
    fn what_cannot_be_right_is_refused() {
        let refused = |model: &str, name: Option<&str>, force: bool, sha256: Option<&str>| {
            let error = PullRequest::new(model, name.map(str::to_owned), force, sha256.map(str::to_owned)).unwrap_err();
            (error.code(), error.param_name().unwrap().to_owned())
        };
        assert_eq!(refused("no-such-model", None, false, None), (Code::NotFound, "model".to_owned()));
        assert_eq!(refused("ftp://a/b", None, false, None), (Code::InvalidParameter, "model".to_owned()));
        assert_eq!(refused("hf:u/r", None, false, Some("12")), (Code::InvalidParameter, "sha256".to_owned()));
        let of_catalog =
            [(Some("n"), false, None, "name"), (None, true, None, "force"), (None, false, Some("12"), "sha256")];
        for (name, force, sha256, field) in of_catalog {
            let expected = (Code::InvalidParameter, field.to_owned());
            assert_eq!(refused("all-minilm-l6-v2", name, force, sha256), expected);
        }
    }
}
