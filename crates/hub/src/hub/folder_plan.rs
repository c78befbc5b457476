//! Plans the installation of a model of several files: transformers, sentence-transformers, adapters, diffusers.

use std::path::Path;

use serde_json::Value;

use super::client::Hub;
use super::error::HubError;
use super::folder_selection::{FolderKind, components, module_folders, select_folder};
use super::header_folder::HeaderFolder;
use super::reference::ModelReference;
use super::remote_file::{PlannedFile, bad_answer, check_known};
use super::repository::{HubFile, Repository};
use outpost_common::progress::Progress;
use outpost_engine::{MemoryNeed, ModelInfo, Settings};
use outpost_models::model_files::is_safetensors;

/// Max bytes of a file that is not weights.
const MAX_SMALL_BYTES: u64 = 64 << 20;
/// Max bytes of all of them.
const MAX_SMALL_SUM: u64 = 256 << 20;
/// The first read of a header of safetensors.
const FIRST_READ_BYTES: u64 = 256 << 10;
const MAX_HEADER_BYTES: u64 = 64 << 20;
const MODEL_INDEX: &str = "model_index.json";
/// The modules of a sentence-transformers model.
const MODULES_FILE: &str = "modules.json";

/// A folder to install, and what its headers say.
pub(super) type FolderPlan = (Vec<PlannedFile>, ModelInfo, MemoryNeed);

impl Hub {
    /// Chooses the files of a folder, and reads the small ones and the headers of the others.
    pub(super) fn plan_folder(
        &self,
        reference: &ModelReference,
        repository: &Repository,
        kind: FolderKind,
        settings: &Settings,
        progress: &mut dyn Progress,
    ) -> Result<FolderPlan, HubError> {
        let no_model = |why: String| HubError::NoModel { reference: reference.to_string(), why };
        let used = match kind {
            FolderKind::Diffusers => match self.optional_json(MODEL_INDEX, reference, repository, progress)? {
                Some(index) => components(&index),
                None => return Err(bad_answer(reference, "it has no model_index.json")),
            },
            FolderKind::Transformers | FolderKind::Adapter => {
                let modules = self.optional_json(MODULES_FILE, reference, repository, progress)?;
                modules.map_or_else(Vec::new, |modules| module_folders(&modules))
            }
        };
        let variant = reference.selector();
        let chosen = select_folder(&repository.files, kind, &used, variant).map_err(no_model)?;
        let too_large = |file: &PlannedFile| no_model(format!("{} is larger than such a file can be", file.path));
        let (mut files, mut read_sum) = (Vec::new(), 0);
        let headers = HeaderFolder::new()?;
        progress.note(&format!("reading small files and the headers of weights: {} files", chosen.len()));
        for file in &chosen {
            let planned = self.plan_file(reference, file, progress)?;
            let start = match is_weights(&planned.path) {
                true => self.tensor_header(reference, &planned, progress)?,
                false if planned.bytes > MAX_SMALL_BYTES => return Err(too_large(&planned)),
                false => self.whole(reference, &planned, progress)?,
            };
            read_sum += start.len() as u64;
            if read_sum > MAX_SMALL_SUM {
                return Err(too_large(&planned));
            }
            headers.add(&planned.local, &start, planned.bytes)?;
            files.push(planned);
        }
        let examined = headers.examine(settings);
        let (info, need) = examined.map_err(|why| HubError::Unsupported { file: reference.to_string(), why })?;
        Ok((files, info, need))
    }

    /// Trusts the list for small files; asks for what it leaves open.
    fn plan_file(
        &self,
        reference: &ModelReference,
        file: &HubFile,
        progress: &mut dyn Progress,
    ) -> Result<PlannedFile, HubError> {
        match file.size {
            Some(bytes) if !is_weights(&file.path) => {
                check_known(reference, &file.path, &file.checksum)?;
                Ok(PlannedFile::new(file, bytes, file.checksum.clone()))
            }
            _ => self.describe_file(reference, file, progress),
        }
    }

    /// The content of a JSON file of the repository; `None` if there is no such file.
    fn optional_json(
        &self,
        name: &str,
        reference: &ModelReference,
        repository: &Repository,
        progress: &mut dyn Progress,
    ) -> Result<Option<Value>, HubError> {
        let Some(file) = repository.files.iter().find(|file| file.path == name) else { return Ok(None) };
        let planned = self.plan_file(reference, file, progress)?;
        let text = self.whole(reference, &planned, progress)?;
        let parsed = serde_json::from_slice(&text);
        parsed.map(Some).map_err(|error| bad_answer(reference, &format!("{name}: {error}")))
    }

    fn whole(
        &self,
        reference: &ModelReference,
        file: &PlannedFile,
        progress: &mut dyn Progress,
    ) -> Result<Vec<u8>, HubError> {
        let limit = file.bytes.min(MAX_SMALL_BYTES);
        let (_, content) =
            self.downloader.get(&file.request, limit, progress).map_err(|error| self.explain(error, reference))?;
        Ok(content)
    }

    /// The header of a file of safetensors: its length in eight bytes, and then JSON.
    fn tensor_header(
        &self,
        reference: &ModelReference,
        file: &PlannedFile,
        progress: &mut dyn Progress,
    ) -> Result<Vec<u8>, HubError> {
        let start = self.first_bytes(reference, file, file.bytes.min(FIRST_READ_BYTES), progress)?;
        let length = start.first_chunk().map_or(0, |bytes| u64::from_le_bytes(*bytes)).saturating_add(8);
        match length <= start.len() as u64 || length > file.bytes.min(MAX_HEADER_BYTES) {
            // What is too long is refused by the reader of the header, with a better message.
            true => Ok(start),
            false => self.first_bytes(reference, file, length, progress),
        }
    }
}

fn is_weights(path: &str) -> bool {
    is_safetensors(Path::new(path))
}
