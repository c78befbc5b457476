//! Decides what a pull will download, from the list of files and from headers.

use std::path::Path;

use super::client::Hub;
use super::error::HubError;
use super::folder_selection::folder_kind;
use super::quantization::{Candidate, candidates};
use super::reference::ModelReference;
use super::remote_file::PlannedFile;
use super::repository::{HubFile, Repository};
use crate::catalog::{is_model_name, is_reserved};
use crate::download::Checksum;
use outpost_common::display::{format_bytes, one_line, shorten};
use outpost_common::progress::Progress;
use outpost_engine::{MemoryNeed, ModelInfo, Settings};
use outpost_models::model_files::{SplitPart, is_ggml, is_weights};

/// Limits of the choice.
#[derive(Clone, Debug)]
pub struct PlanOptions {
    /// The model's name in the models folder; else that of the file or the repository.
    pub name: Option<String>,
    /// The expected hash of the only file, in lower-case hex.
    pub sha256: Option<String>,
    /// Threads and memory for models.
    pub settings: Settings,
}

/// The chosen files, and what is known of them.
#[derive(Clone, Debug)]
pub struct Plan {
    pub reference: ModelReference,
    pub repository: Repository,
    /// The GGUF files of the repository; empty for a model of another format.
    pub candidates: Vec<Candidate>,
    /// The index of the chosen one.
    pub chosen: Option<usize>,
    pub files: Vec<PlannedFile>,
    pub info: ModelInfo,
    pub need: MemoryNeed,
    /// Threads and memory for models.
    pub settings: Settings,
    /// The name that the model gets.
    pub name: String,
}

impl Plan {
    /// The memory for models, in bytes.
    pub fn limit(&self) -> u64 {
        self.settings.memory_bytes
    }

    /// True if the hash of each file is known before the download.
    pub fn is_verifiable(&self) -> bool {
        self.files.iter().all(|file| file.checksum != Checksum::None)
    }

    /// The size of all files.
    pub fn bytes(&self) -> u64 {
        self.files.iter().fold(0, |sum, file| sum.saturating_add(file.bytes))
    }

    /// The memory that another candidate needs, in bytes: that of the chosen one, with the weights in proportion to the file.
    pub fn estimate(&self, candidate: &Candidate) -> u64 {
        let others = self.need.total().saturating_sub(self.need.weights);
        let scaled = u128::from(self.need.weights) * u128::from(candidate.bytes) / u128::from(self.bytes().max(1));
        others.saturating_add(u64::try_from(scaled).unwrap_or(u64::MAX))
    }

    /// # Errors
    /// If the model would not fit into the memory for models.
    pub fn check_memory(&self) -> Result<(), HubError> {
        if self.need.total() <= self.limit() {
            return Ok(());
        }
        let fits = |it: &&Candidate| it.is_possible() && self.estimate(it) <= self.limit();
        let smaller = self.candidates.iter().find(fits);
        let smaller = smaller.map(|it| format!("{} needs about {}", it.label(), format_bytes(self.estimate(it))));
        let (name, need, limit) = (self.name.clone(), Box::new(self.need), self.limit());
        let device = self.settings.devices.usual.in_sentence();
        Err(HubError::TooLarge { name, need, limit, device, smaller })
    }
}

impl Hub {
    /// Chooses files of a source and reads their headers. GGUF files are preferred.
    pub fn plan(
        &self,
        reference: &ModelReference,
        options: &PlanOptions,
        progress: &mut dyn Progress,
    ) -> Result<Plan, HubError> {
        let repository = self.repository(reference, progress)?;
        let (found, selector) = (candidates(&repository.files), reference.selector());
        let no_gguf = found.is_empty() && selector.is_none_or(|selector| selector == "fp16");
        let (candidates, chosen, mut files, info, need) = match folder_kind(&repository.files).filter(|_| no_gguf) {
            Some(kind) => {
                let (files, info, need) =
                    self.plan_folder(reference, &repository, kind, &options.settings, progress)?;
                (found, None, files, info, need)
            }
            None => {
                let choice = self.plan_gguf(reference, &repository, found, &options.settings, progress)?;
                (choice.candidates, Some(choice.chosen), choice.files, choice.info, choice.need)
            }
        };
        match files.as_mut_slice() {
            [only] => options.sha256.iter().try_for_each(|sha256| expect_hash(only, sha256))?,
            several if options.sha256.is_some() => {
                let count = several.len();
                return Err(HubError::NotOneFile { reference: reference.to_string(), count });
            }
            _ => {}
        }
        let chosen_candidate = chosen.and_then(|index| candidates.get(index));
        let default = match chosen_candidate {
            Some(candidate) => file_stem(&candidate.file.path),
            None => reference.default_name(),
        };
        let name = name(options.name.as_deref(), &default)?;
        if chosen_candidate.is_some() {
            files.iter_mut().for_each(|file| file.local = local_name(&name, &file.path));
            files.extend(licenses(reference, &repository));
        }
        let (reference, settings) = (reference.clone(), options.settings.clone());
        Ok(Plan { reference, repository, candidates, chosen, files, info, need, settings, name })
    }

    fn repository(&self, reference: &ModelReference, progress: &mut dyn Progress) -> Result<Repository, HubError> {
        match reference {
            ModelReference::HuggingFace(model) => self.hugging_face_repository(model, progress),
            ModelReference::Ollama(model) | ModelReference::Oci(model) => {
                self.registry_repository(reference, model, progress)
            }
            ModelReference::Url(file) => self.url_repository(reference, file, progress),
            ModelReference::Catalog(name) => {
                Err(HubError::Setting(format!("'{name}' is a name of the catalog, not of a hub")))
            }
        }
    }
}

/// The licenses that an artifact of a registry has beside a GGUF file.
fn licenses(reference: &ModelReference, repository: &Repository) -> Vec<PlannedFile> {
    let is_license = |file: &&HubFile| file.path.starts_with("LICENSE") && !file.path.contains('/');
    let files = match reference {
        ModelReference::Ollama(_) | ModelReference::Oci(_) => repository.files.as_slice(),
        _ => &[],
    };
    let planned = |file: &HubFile| Some(PlannedFile::new(file, file.size?, file.checksum.clone()));
    files.iter().filter(is_license).filter_map(planned).collect()
}

/// The name that a chosen file gets in the folder of the model `name`.
fn local_name(name: &str, path: &str) -> String {
    match SplitPart::of(path) {
        _ if is_ggml(Path::new(path)) => path.rsplit('/').next().unwrap_or_default().to_owned(),
        Some(part) => SplitPart { stem: name, extension: "gguf", ..part }.path(part.number),
        // A name such as m-00001-of-00002 would make it a part.
        None if SplitPart::of(&format!("{name}.gguf")).is_some() => "model.gguf".to_owned(),
        None => format!("{name}.gguf"),
    }
}

/// The name of a file without its folder and ending, and of a split file without its number.
fn file_stem(path: &str) -> String {
    let name = path.rsplit('/').next().unwrap_or_default();
    if let Some(part) = SplitPart::of(name) {
        return part.stem.to_owned();
    }
    let stem = Path::new(name).file_stem().and_then(|stem| stem.to_str());
    stem.filter(|_| is_weights(Path::new(name))).unwrap_or(name).to_owned()
}

/// Checks a file's hash against the one that the user gave, and sets it.
fn expect_hash(file: &mut PlannedFile, expected: &str) -> Result<(), HubError> {
    if let Checksum::Sha256(found) = &file.checksum
        && found != expected
    {
        let (file, expected, found) = (file.path.clone(), expected.to_owned(), found.clone());
        return Err(HubError::OtherHash { file, expected, found });
    }
    file.checksum = Checksum::Sha256(expected.to_owned());
    Ok(())
}

/// The name of the model: the wanted one, or the default in lower case.
fn name(wanted: Option<&str>, default: &str) -> Result<String, HubError> {
    let name = wanted.map_or_else(|| default.to_ascii_lowercase(), str::to_owned);
    match is_model_name(&name) && !is_reserved(&name) {
        true => Ok(name),
        false => Err(HubError::BadName(shorten(&one_line(&name)))),
    }
}
