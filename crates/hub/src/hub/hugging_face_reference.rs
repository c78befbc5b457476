//! Names of models on a Hugging Face hub.

use std::fmt;

use percent_encoding::percent_decode_str;

use crate::catalog::check_file_path;

/// A model of a repository on a Hugging Face hub.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HuggingFaceModel {
    /// `USER/REPO`.
    pub repository: String,
    /// A branch, tag or commit; `None`: the main branch.
    pub revision: Option<String>,
    /// A quantisation such as `Q4_K_M`, the path of a `.gguf` or `ggml-*.bin` file, or `fp16` for such weights of a pipeline.
    pub selector: Option<String>,
}

impl HuggingFaceModel {
    /// Parses `USER/REPO[@REVISION][:QUANT|:FILE]`.
    pub(super) fn parse(text: &str) -> Result<Self, &'static str> {
        let (place, selector) = match text.split_once(':') {
            Some((place, selector)) => (place, Some(selector)),
            None => (text, None),
        };
        let (repository, revision) = match place.split_once('@') {
            Some((repository, revision)) => (repository, Some(revision)),
            None => (place, None),
        };
        Self::new(repository, revision, selector)
    }

    /// Parses the rest of an address of the hub's website: of a repository, a revision or a file.
    pub(super) fn parse_page(text: &str) -> Result<Self, &'static str> {
        let path = text.split(['?', '#']).next().unwrap_or_default();
        if path.contains(':') {
            return Self::parse(path);
        }
        let mut parts = path.splitn(5, '/');
        let (Some(user), Some(name)) = (parts.next(), parts.next()) else { return Err("has no repository") };
        let repository = format!("{user}/{name}");
        let decode = |part: &str| percent_decode_str(part).decode_utf8().map(|text| text.into_owned());
        let decode = |part| decode(part).map_err(|_| "is not UTF-8");
        match (parts.next(), parts.next(), parts.next()) {
            (None | Some(""), None, None) => Self::parse(repository.trim_end_matches('/')),
            (Some("resolve" | "blob"), Some(revision), Some(file)) => {
                Self::new(&repository, Some(&decode(revision)?), Some(&decode(file)?))
            }
            (Some("tree"), Some(revision), None) => Self::new(&repository, Some(&decode(revision)?), None),
            _ => Err("is not the address of a repository or a file"),
        }
    }

    fn new(repository: &str, revision: Option<&str>, selector: Option<&str>) -> Result<Self, &'static str> {
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
