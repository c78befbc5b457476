//! What an admin asks to pull.

use crate::catalog::{Catalog, CatalogModel, is_sha256};
use crate::display::{one_line, shorten};
use crate::error::{Code, Error, Result};
use crate::hub::{BadReference, HuggingFaceModel, ModelReference};

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
    Hub(HuggingFaceModel),
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
            ModelReference::HuggingFace(model) => PullSource::Hub(model),
        };
        let given = [("name", name.is_some()), ("sha256", sha256.is_some())];
        if let (PullSource::Catalog(_), Some((field, _))) = (&source, given.iter().find(|one| one.1)) {
            let text = format!("'{field}' is only for models of hubs, such as hf:USER/REPO. Leave it out.");
            return Err(Error::invalid(*field, text));
        }
        let sha256 = sha256.map(|digits| digits.to_ascii_lowercase());
        if sha256.as_deref().is_some_and(|digits| !is_sha256(digits)) {
            return Err(Error::invalid("sha256", "'sha256' must be the 64 hexadecimal digits of a sha256."));
        }
        Ok(Self { source, name, force, sha256 })
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
            "The catalog has no model '{}'. It has: {}. Write hf:USER/REPO for a model of a hub.",
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
    fn what_cannot_be_right_is_refused() {
        let refused = |model: &str, name: Option<&str>, sha256: Option<&str>| {
            let error = PullRequest::new(model, name.map(str::to_owned), false, sha256.map(str::to_owned)).unwrap_err();
            (error.code(), error.param_name().unwrap().to_owned())
        };
        assert_eq!(refused("no-such-model", None, None), (Code::NotFound, "model".to_owned()));
        assert_eq!(refused("ftp://a/b", None, None), (Code::InvalidParameter, "model".to_owned()));
        assert_eq!(refused("hf:u/r", None, Some("12")), (Code::InvalidParameter, "sha256".to_owned()));
        assert_eq!(refused("all-minilm-l6-v2", Some("n"), None), (Code::InvalidParameter, "name".to_owned()));
    }
}
