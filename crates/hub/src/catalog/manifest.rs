//! The manifest: the first entry of an exported model. It lists all other entries.

use std::collections::HashSet;

use serde::{Deserialize, Serialize};

use super::name_validation::{check_file_path, is_model_name, is_sha256};

pub const MANIFEST: &str = "manifest.json";
/// Folder of the files in the archive, so that none of them can be mistaken for the manifest.
pub const FILES: &str = "files/";
/// Max bytes of a manifest; far above that of the largest models.
pub const MAX_MANIFEST_BYTES: u64 = 4 << 20;
const FORMAT: &str = "outpost-model";
const VERSION: u32 = 1;

#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Manifest {
    format: String,
    version: u32,
    pub name: String,
    pub files: Vec<ManifestFile>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ManifestFile {
    pub name: String,
    pub bytes: u64,
    pub sha256: String,
}

impl Manifest {
    pub fn new(name: &str, files: Vec<ManifestFile>) -> Self {
        Self { format: FORMAT.into(), version: VERSION, name: name.into(), files }
    }

    /// Parses an untrusted manifest.
    pub fn parse(bytes: &[u8]) -> Result<Self, String> {
        let manifest: Self = serde_json::from_slice(bytes).map_err(|e| format!("cannot be read: {e}"))?;
        manifest.check()?;
        Ok(manifest)
    }

    /// Size of all files; [`Self::parse`] has checked that the sum fits.
    pub fn bytes(&self) -> u64 {
        self.files.iter().map(|file| file.bytes).sum()
    }

    fn check(&self) -> Result<(), String> {
        if self.format != FORMAT || self.version != VERSION {
            return Err(format!("is of format '{}' {}, not '{FORMAT}' {VERSION}", self.format, self.version));
        }
        if !is_model_name(&self.name) {
            return Err(format!("names the model '{}', which is not a valid model name", self.name));
        }
        let mut seen = HashSet::new();
        let mut sum: u64 = 0;
        for file in &self.files {
            let refuse = |why: &str| format!("lists '{}', which {why}", file.name);
            check_file_path(&file.name).map_err(refuse)?;
            // Names that differ only in case are one file on some systems.
            if !seen.insert(file.name.to_lowercase()) {
                return Err(refuse("appears twice"));
            }
            if !is_sha256(&file.sha256) {
                return Err(refuse("has no well-formed sha256"));
            }
            sum = sum.checked_add(file.bytes).filter(|sum| *sum < 1 << 50).ok_or_else(|| refuse("is too large"))?;
        }
        if self.files.is_empty() { Err("lists no files".into()) } else { Ok(()) }
    }
}
