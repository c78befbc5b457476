//! Finds the models in the models folder, including those that cannot be served, with the reason.
//!
//! IDs come from file names on disk. Input from clients is never joined to a path.

mod diffusers;
mod folder_listing;
mod gguf;
mod ldm_checkpoint;
mod safetensors;

use crate::engine::model_info::ModelInfo;
use crate::engine::model_info::ModelKind;
use std::fs;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use crate::clock_rng::Timestamp;
use crate::engine::error::LoadError;
use crate::engine::model_info::LORAS;
use crate::engine::tokenizer::files::TOOL_USE_FILE;
use crate::models::diffusion::pipeline::{MODEL_INDEX, referenced_models, sidecar_files};
use folder_listing::entries;

/// A model in the models folder.
#[derive(Clone, Debug)]
pub struct DiscoveredModel {
    pub info: ModelInfo,
    /// The model's entry in the models folder.
    entry: PathBuf,
    /// The model's main file.
    pub path: PathBuf,
    pub fingerprint: Fingerprint,
}

impl DiscoveredModel {
    pub fn is_encoder(&self) -> bool {
        matches!(self.info.kind, ModelKind::Embedding | ModelKind::Reranker)
    }

    /// Whether the files are unchanged. Reads only their metadata.
    pub fn is_current(&self) -> bool {
        // A folder takes precedence over a file with the same ID.
        let hidden = self.path == self.entry && self.entry.with_extension("").is_dir();
        !hidden && candidate(&self.entry).is_some_and(|now| self.matches(&now))
    }

    /// Whether this model was read from the candidate's files in their current state.
    pub fn matches(&self, candidate: &Candidate) -> bool {
        (self.info.id == candidate.id) && (self.path == candidate.path) && (self.fingerprint == candidate.fingerprint)
    }

    /// The error for a model that is not of the `expected` kind.
    pub fn wrong_kind(&self, expected: ModelKind) -> LoadError {
        let ModelInfo { id, architecture, .. } = &self.info;
        LoadError::WrongKind { id: id.clone(), architecture: architecture.clone(), expected }
    }
}

/// Identifies the state of a model's files, to detect changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fingerprint {
    /// The size of all files.
    bytes: u64,
    /// When the newest file was written; milliseconds since 1970.
    modified: u128,
    /// A hash of names, sizes and modification times.
    hash: u64,
}

impl Fingerprint {
    /// Also covers `files`, which the model uses although they are not part of it.
    fn with_dependencies(self, files: &[PathBuf]) -> Option<Self> {
        Some(Self { hash: self.hash ^ fingerprint(files)?.hash, ..self })
    }
}

/// An entry of the models folder that may be a model. None of its files has been read.
pub struct Candidate {
    pub id: String,
    layout: Layout,
    entry: PathBuf,
    path: PathBuf,
    fingerprint: Fingerprint,
}

enum Layout {
    Gguf,
    Safetensors,
    /// A pipeline of several components, each in its own folder.
    Diffusers,
    /// A pipeline in a single file.
    SingleFile,
    /// The model file is ambiguous; the text states the reason.
    Ambiguous(String),
}

/// The entries of the folder that may be models, sorted by ID. Opens no file.
pub fn candidates(folder: &Path) -> Vec<Candidate> {
    let mut found: Vec<_> = entries(folder).into_iter().filter_map(|path| candidate(&path)).collect();
    // `entries` lists folders first, so a folder wins over a file with the same ID.
    found.sort_by(|one, other| one.id.cmp(&other.id));
    found.dedup_by(|later, earlier| later.id == earlier.id);
    found
}

fn candidate(path: &Path) -> Option<Candidate> {
    let name = path.file_name()?.to_str()?;
    if name == LORAS || name.starts_with('.') || name.len() > 255 || name.chars().any(char::is_control) {
        return None;
    }
    if path.is_dir() {
        return folder(name, path);
    }
    if let Some(id) = name.strip_suffix(".safetensors").filter(|id| !id.is_empty() && path.is_file()) {
        return single_file(id, path, path);
    }
    let id = name.strip_suffix(".gguf").filter(|id| !id.is_empty() && path.is_file())?;
    let (id, layout, path) = (id.to_owned(), Layout::Gguf, path.to_owned());
    Some(Candidate { fingerprint: fingerprint([&path])?, id, layout, entry: path.clone(), path })
}

fn folder(id: &str, folder: &Path) -> Option<Candidate> {
    let files = entries(folder);
    let of = |ending: &str| -> Vec<&PathBuf> {
        files.iter().filter(|path| path.extension().is_some_and(|one| one == ending) && path.is_file()).collect()
    };
    let (ggufs, tensors) = (of("gguf"), of("safetensors"));
    let index = folder.join(MODEL_INDEX);
    if index.is_file() {
        let inside = |folders: &[PathBuf]| -> Vec<PathBuf> {
            folders.iter().flat_map(|folder| entries(folder)).filter(|path| path.is_file()).collect()
        };
        let parts = inside(&files);
        let fingerprint = fingerprint(std::iter::once(&index).chain(&parts))?
            .with_dependencies(&inside(&referenced_models(folder)))?;
        let entry = folder.to_owned();
        return Some(Candidate { id: id.to_owned(), layout: Layout::Diffusers, fingerprint, entry, path: index });
    }
    let (layout, path) = match (ggufs.as_slice(), tensors.as_slice()) {
        ([one], _) => (Layout::Gguf, (*one).clone()),
        ([first, ..], _) => (
            Layout::Ambiguous(format!(
                "the folder has {} .gguf files; a model's folder must have exactly one",
                ggufs.len()
            )),
            (*first).clone(),
        ),
        ([], [first, ..]) if folder.join("config.json").is_file() => (Layout::Safetensors, (*first).clone()),
        ([], [only]) => return single_file(id, folder, only),
        _ => return None,
    };
    let tool_use = folder.join(TOOL_USE_FILE);
    let fingerprint = match layout {
        Layout::Safetensors => fingerprint(files.iter().chain([&tool_use]).filter(|path| is_model_file(path))),
        Layout::Ambiguous(_) => fingerprint(ggufs),
        _ => fingerprint([&path]),
    };
    Some(Candidate { id: id.to_owned(), layout, fingerprint: fingerprint?, entry: folder.to_owned(), path })
}

/// A pipeline in a single `file`. `path` is the file or its folder.
fn single_file(id: &str, path: &Path, file: &Path) -> Option<Candidate> {
    let fingerprint = fingerprint([&file.to_owned()])?.with_dependencies(&sidecar_files(path))?;
    Some(Candidate {
        id: id.to_owned(),
        layout: Layout::SingleFile,
        fingerprint,
        entry: path.to_owned(),
        path: path.to_owned(),
    })
}

/// Whether a file in a safetensors folder is part of the model.
fn is_model_file(path: &Path) -> bool {
    path.extension().is_some_and(|one| one == "safetensors" || one == "json" || one == "jinja") && path.is_file()
}

fn fingerprint<'a>(files: impl IntoIterator<Item = &'a PathBuf>) -> Option<Fingerprint> {
    let (mut fingerprint, mut hasher) = (Fingerprint { bytes: 0, modified: 0, hash: 0 }, DefaultHasher::new());
    for path in files {
        let metadata = fs::metadata(path).ok()?;
        let modified = metadata.modified().unwrap_or(SystemTime::UNIX_EPOCH);
        let modified = modified.duration_since(UNIX_EPOCH).unwrap_or_default();
        (path, metadata.len(), modified).hash(&mut hasher);
        fingerprint.bytes += metadata.len();
        fingerprint.modified = fingerprint.modified.max(modified.as_millis());
    }
    Some(Fingerprint { hash: hasher.finish(), ..fingerprint })
}

impl Candidate {
    /// Reads the headers and describes the model.
    pub fn inspect(self) -> DiscoveredModel {
        let mut info = self.empty_info();
        match &self.layout {
            Layout::Gguf => gguf::describe(&self.path, &mut info),
            Layout::Safetensors => safetensors::describe(&self.path, &mut info),
            Layout::SingleFile => ldm_checkpoint::describe(&self.path, &mut info),
            Layout::Diffusers => diffusers::describe(&self.path, &mut info),
            Layout::Ambiguous(problem) => info.problem = Some(problem.clone()),
        }
        DiscoveredModel { info, entry: self.entry, path: self.path, fingerprint: self.fingerprint }
    }

    fn empty_info(&self) -> ModelInfo {
        ModelInfo {
            id: self.id.clone(),
            created: Timestamp::from_millis(i64::try_from(self.fingerprint.modified).unwrap_or(i64::MAX)),
            owned_by: "local".to_owned(),
            architecture: "unknown".to_owned(),
            kind: ModelKind::Unknown,
            format: match self.layout {
                Layout::Safetensors | Layout::Diffusers | Layout::SingleFile => "safetensors",
                Layout::Gguf | Layout::Ambiguous(_) => "gguf",
            },
            quantization: None,
            parameters: 0,
            bytes: self.fingerprint.bytes,
            context_window: None,
            embedding_dimensions: None,
            image_sizes: Vec::new(),
            loaded: false,
            device: None,
            dequantized: false,
            problem: None,
            license: None,
        }
    }
}
