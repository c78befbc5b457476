//! Parses and validates `models/catalog.toml`.

use std::collections::HashSet;
use std::sync::LazyLock;

use outpost_engine::ModelKind;
use serde::Deserialize;

use super::name_validation::{check_file_path, is_model_name, is_reserved, is_sha256};
use super::sources::{MAX_FILE_BYTES, ModelFiles, Source};

const BUILTIN: &str = include_str!("../../../../models/catalog.toml");

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
    pub task: Option<ModelKind>,
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

    /// The first model of a kind.
    pub fn first_of(&self, kind: ModelKind) -> Option<&CatalogModel> {
        self.models.iter().find(|model| model.task == Some(kind))
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
    /// True for models that are embedded in the binary and need no download.
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
        let files = self.files.iter().map(|file| (file.name.as_str(), file.bytes)).collect();
        let files = ModelFiles { files };
        self.sources.iter().try_for_each(|source| source.check(&files))
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
