//! Names of models: of the catalog, or of a hub.

use std::fmt;
use std::str::FromStr;

use crate::catalog::check_file_path;

/// Max bytes of a reference.
const MAX_BYTES: usize = 512;

/// What a user asks to pull.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ModelReference {
    /// A name of the catalog.
    Catalog(String),
    /// `hf:USER/REPO[@REVISION][:QUANT|:FILE]`.
    HuggingFace(HuggingFaceModel),
}

/// A model of a repository on a Hugging Face hub.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HuggingFaceModel {
    /// `USER/REPO`.
    pub repository: String,
    /// A branch, tag or commit; `None`: the main branch.
    pub revision: Option<String>,
    /// A quantisation such as `Q4_K_M`, the path of a file that ends with `.gguf`, or `fp16` for such weights of a pipeline.
    pub selector: Option<String>,
}

/// The text is not the name of a model.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "'{text}' {why}; write hf:USER/REPO, hf:USER/REPO:QUANT or hf:USER/REPO:FILE.gguf, with @REVISION after REPO if needed"
)]
pub struct BadReference {
    text: String,
    why: &'static str,
}

impl FromStr for ModelReference {
    type Err = BadReference;

    /// Names without a scheme are names of the catalog. `hf.co/USER/REPO` and `huggingface.co/USER/REPO` are understood, too.
    fn from_str(text: &str) -> Result<Self, BadReference> {
        let bad = |why| BadReference { text: crate::display::shorten(&crate::display::one_line(text)), why };
        if text.len() > MAX_BYTES {
            return Err(bad("is longer than 512 bytes"));
        }
        let hub = ["hf:", "hf.co/", "huggingface.co/", "https://huggingface.co/", "https://hf.co/"];
        match hub.iter().find_map(|prefix| text.strip_prefix(prefix)) {
            Some(rest) => HuggingFaceModel::parse(rest).map(Self::HuggingFace).map_err(bad),
            None if text.contains([':', '/']) => {
                Err(bad("is neither a name of the catalog nor of a hub that is supported"))
            }
            None => Ok(Self::Catalog(text.to_owned())),
        }
    }
}

impl HuggingFaceModel {
    fn parse(text: &str) -> Result<Self, &'static str> {
        let (place, selector) = match text.split_once(':') {
            Some((place, selector)) => (place, Some(selector)),
            None => (text, None),
        };
        let (repository, revision) = match place.split_once('@') {
            Some((repository, revision)) => (repository, Some(revision)),
            None => (place, None),
        };
        let (user, name) = repository.split_once('/').ok_or("has no user")?;
        if !is_name(user) || !is_name(name) {
            return Err("is not USER/REPO: letters, digits, '.', '_' and '-', at most 96 each");
        }
        if revision.is_some_and(|revision| check_file_path(revision).is_err() || !is_plain(revision)) {
            return Err("has a revision that is not a branch, a tag or a commit");
        }
        if selector.is_some_and(|selector| check_file_path(selector).is_err()) {
            return Err("has an empty or impossible quantisation or file after ':'");
        }
        let owned = |text: Option<&str>| text.map(str::to_owned);
        Ok(Self { repository: repository.to_owned(), revision: owned(revision), selector: owned(selector) })
    }

    /// The name of the repository, without the user.
    pub fn name(&self) -> &str {
        self.repository.split_once('/').map_or(&self.repository, |(_, name)| name)
    }
}

impl fmt::Display for HuggingFaceModel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "hf:{}", self.repository)?;
        if let Some(revision) = &self.revision {
            write!(f, "@{revision}")?;
        }
        match &self.selector {
            Some(selector) => write!(f, ":{selector}"),
            None => Ok(()),
        }
    }
}

fn is_name(text: &str) -> bool {
    let is_inner = |b: u8| b.is_ascii_alphanumeric() || b"._-".contains(&b);
    text.len() <= 96 && text.bytes().all(is_inner) && text.starts_with(|c: char| c.is_ascii_alphanumeric() || c == '_')
}

fn is_plain(text: &str) -> bool {
    text.bytes().all(|b| b.is_ascii_alphanumeric() || b"._-/+".contains(&b))
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

    #[test]
    fn references_are_parsed() {
        for (text, expected) in [
            ("smollm2-135m-instruct", ModelReference::Catalog("smollm2-135m-instruct".to_owned())),
            ("hf:a/b", hf("a/b", None, None)),
            ("hf.co/a/b-GGUF:q4_k_m", hf("a/b-GGUF", None, Some("q4_k_m"))),
            ("https://huggingface.co/a/b", hf("a/b", None, None)),
            ("hf:a/b@refs/pr/3:sub/c.gguf", hf("a/b", Some("refs/pr/3"), Some("sub/c.gguf"))),
        ] {
            assert_eq!(text.parse(), Ok(expected), "{text}");
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
            "ftp://a/b",
            "a/b",
            "x:y",
            &"x/".repeat(300),
        ] {
            let error = bad.parse::<ModelReference>().unwrap_err().to_string();
            assert!(error.contains("hf:USER/REPO"), "{bad}: {error}");
        }
    }

    proptest! {
        #[test]
        fn parsing_never_panics_and_display_is_its_inverse(text in "(hf:)?[a-z@:/._ é-]{0,40}") {
            if let Ok(ModelReference::HuggingFace(model)) = text.parse::<ModelReference>() {
                prop_assert_eq!(model.to_string().parse(), Ok(ModelReference::HuggingFace(model)));
            }
        }
    }
}
