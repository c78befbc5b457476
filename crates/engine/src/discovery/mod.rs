//! Finds the models in the models folder, including those that cannot be served, with the reason.
//!
//! IDs come from file names on disk. Input from clients is never joined to a path.

mod adapter;
mod diffusers;
mod ggml;
mod gguf;
mod ldm_checkpoint;
mod model_card;
mod safetensors;
mod upstream;

use std::collections::BTreeMap;
use std::fs;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use crate::error::LoadError;
use crate::model_info::{LORAS, ModelInfo, ModelKind, UPSTREAM_FORMAT};
use crate::runtime::catch_panic::catch_load_panic;
use crate::speech::SpeechCheckpoint;
use crate::tokenizer::files::TOOL_USE_FILE;
pub use adapter::{AdapterFiles, AdapterOrigin, AdapterSource};
use outpost_common::clock_rng::Timestamp;
use outpost_models::diffusion::pipeline::{MODEL_INDEX, referenced_models, sidecar_files};
use outpost_models::model_files::{
    FolderListing, IgnoredFile, companion, file_model_name, gguf_files, has_extension, is_ggml, is_gguf, is_hidden,
    is_projector, is_safetensors,
};
use outpost_models::peft;
use outpost_models::safetensors::shards;
use outpost_upstream::{self as remote, UpstreamModel};

/// Describes an adapter that is not in the models folder, and whose base is not known yet.
pub fn adapter_info(id: &str, bytes: u64, created: Timestamp) -> ModelInfo {
    let parameters = bytes / size_of::<f32>() as u64;
    let quantization = Some("F32".to_owned());
    ModelInfo {
        kind: ModelKind::Text,
        format: "safetensors",
        bytes,
        parameters,
        quantization,
        ..empty_info(id, created)
    }
}

/// Describes the models in a models folder, sorted by ID. Reads their headers.
pub fn installed_models(folder: &Path) -> Vec<ModelInfo> {
    let found: BTreeMap<_, _> = candidates(folder).into_iter().map(|it| (it.id.clone(), it.inspect())).collect();
    let describe = |mut model: DiscoveredModel| {
        model.find_base(&found);
        model.info
    };
    found.values().cloned().map(describe).collect()
}

/// The entries of the models folder that are the model `id`: a folder, a file, or the parts of a split file.
pub fn model_entries(folder: &Path, id: &str) -> Vec<PathBuf> {
    let found = candidates(folder).into_iter().find(|candidate| candidate.id == id).map(|candidate| candidate.entry);
    match found {
        Some(entry) if entry.is_dir() => vec![entry],
        found => found.map_or_else(Vec::new, |entry| gguf_files(&entry)),
    }
}

/// The files in a models folder that look like those of models, but are not used.
pub fn ignored_files(folder: &Path) -> Vec<IgnoredFile> {
    let FolderListing { folders, files, ignored } = FolderListing::read(folder);
    let projectors = files.into_iter().filter(|path| is_projector(path));
    let projectors = projectors.map(|path| IgnoredFile { why: companion(&path).unwrap_or_default().to_owned(), path });
    let inside = folders.iter().flat_map(|folder| match candidate(folder) {
        Some(model) => model.ignored(),
        None => FolderListing::read(folder).ignored,
    });
    ignored.into_iter().chain(projectors).chain(inside).collect()
}

/// Describes the model that a file or a folder would be in the models folder. Reads headers.
pub fn inspect(path: &Path) -> Option<DiscoveredModel> {
    Some(candidate(path)?.inspect())
}

/// A model in the models folder.
#[derive(Clone, Debug)]
pub struct DiscoveredModel {
    pub info: ModelInfo,
    /// The model's entry in the models folder.
    entry: PathBuf,
    /// The model's main file.
    pub path: PathBuf,
    /// The state of the model's own files.
    files: Fingerprint,
    /// The state of its files, and of those of its base model.
    pub fingerprint: Fingerprint,
    /// The adapter, if it is one.
    pub adapter: Option<DiscoveredAdapter>,
    /// Its targets, if it is an upstream model that can be used.
    pub upstream: Option<Arc<UpstreamModel>>,
}

impl DiscoveredModel {
    /// The base model, if it is an adapter.
    pub fn base(&self) -> Option<&Self> {
        self.adapter.as_ref()?.base.as_deref()
    }

    /// True while the files are unchanged. Reads only their metadata, so every request can call it.
    pub fn is_current(&self) -> bool {
        // A folder takes precedence over a file with the same ID.
        let hidden = self.entry.is_file() && self.entry.with_file_name(&self.info.id).is_dir();
        let own_files = !hidden && candidate(&self.entry).is_some_and(|now| self.matches(&now));
        own_files && self.base().is_none_or(Self::is_current)
    }

    /// True if this model was read from the candidate's files in their current state, so it need not be read again.
    pub fn matches(&self, candidate: &Candidate) -> bool {
        (self.info.id == candidate.id) && (self.path == candidate.path) && (self.files == candidate.fingerprint)
    }

    /// The error for a model that is not of the `expected` kind.
    pub fn wrong_kind(&self, expected: ModelKind) -> LoadError {
        let ModelInfo { id, architecture, .. } = &self.info;
        LoadError::WrongKind { id: id.clone(), architecture: architecture.clone(), expected }
    }
}

/// Facts about an adapter besides its [`ModelInfo`].
#[derive(Clone, Debug)]
pub struct DiscoveredAdapter {
    pub origin: AdapterOrigin,
    /// The project that may use it; `None`: all.
    pub owner: Option<u128>,
    /// The name or path of the base model, as in its configuration.
    base_name: Option<String>,
    /// The base model; `None` if it is not in the models folder.
    base: Option<Arc<DiscoveredModel>>,
    /// Why the adapter itself cannot be used.
    problem: Option<String>,
}

impl DiscoveredModel {
    /// An adapter that is not in the models folder. `number` identifies the registration.
    pub fn registered(id: &str, created: Timestamp, number: u64, adapter: (AdapterOrigin, u128)) -> Self {
        let (origin, owner) = adapter;
        let mut info = ModelInfo { format: "safetensors", ..empty_info(id, created) };
        adapter::describe(&origin, &mut info);
        let files = Fingerprint { bytes: info.bytes, modified: 0, hash: number };
        let problem = info.problem.clone();
        let adapter = DiscoveredAdapter { origin, owner: Some(owner), base_name: None, base: None, problem };
        let (entry, path) = Default::default();
        Self { info, entry, path, files, fingerprint: files, adapter: Some(adapter), upstream: None }
    }

    /// True for an adapter whose base model is unknown.
    pub fn lacks_base(&self) -> bool {
        self.adapter.is_some() && self.base().is_none()
    }

    /// Sets the base model of an adapter, and describes the adapter accordingly. `models` are all models of the folder.
    pub fn find_base(&mut self, models: &BTreeMap<String, Self>) {
        let Some(DiscoveredAdapter { base_name, .. }) = &self.adapter else { return };
        let networks = models.values().filter(|model| model.adapter.is_none());
        let ids = networks.map(|model| model.info.id.as_str());
        let id = base_name.as_deref().and_then(|name| adapter::find_base(name, ids));
        let problem = match (base_name, id) {
            (_, Some(_)) => None,
            (Some(name), None) => Some(format!(
                "its base model {name} is not in the models folder: add it, or set base_model_name_or_path in {} to the ID \
                 of a model in the folder",
                peft::CONFIG_FILE
            )),
            (None, None) => Some(format!(
                "base_model_name_or_path is missing in {}: set it to the ID of a model in the models folder",
                peft::CONFIG_FILE
            )),
        };
        self.set_base(id.and_then(|id| models.get(id)), problem);
    }

    /// Sets the base model of an adapter. `problem`: why there is none.
    pub fn set_base(&mut self, base: Option<&Self>, problem: Option<String>) {
        let Some(adapter) = &mut self.adapter else { return };
        let of_base = base.and_then(|base| {
            let ModelInfo { id, kind, problem, .. } = &base.info;
            match problem {
                Some(problem) => Some(format!("its base model {id} cannot be used: {problem}")),
                None if !matches!(kind, ModelKind::Text | ModelKind::Embedding) => {
                    Some(format!("its base model {id} is not a chat or embedding model"))
                }
                None => None,
            }
        });
        self.info.problem = adapter.problem.clone().or(problem).or(of_base);
        match base {
            Some(base) => self.info.set_base(&base.info),
            None => {
                let (architecture, kind) = ("unknown".to_owned(), ModelKind::Text);
                let (context_window, embedding_dimensions, base) = (None, None, None);
                let info = self.info.clone();
                self.info = ModelInfo { architecture, kind, context_window, embedding_dimensions, base, ..info };
            }
        }
        self.fingerprint = base.map_or(self.files, |base| self.files.combine(base.fingerprint));
        adapter.base = base.cloned().map(Arc::new);
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
        Some(self.combine(fingerprint(files)?))
    }

    /// Also covers the files of `other`.
    fn combine(self, other: Self) -> Self {
        Self { hash: self.hash ^ other.hash, ..self }
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
    /// A Whisper model of whisper.cpp.
    Ggml,
    Safetensors,
    /// A pipeline of several components, each in its own folder.
    Diffusers,
    /// A pipeline in a single file.
    SingleFile,
    /// A LoRA adapter of a chat or embedding model.
    Adapter,
    /// A model of another server.
    Upstream,
    /// Which file is the model is not clear, or none can be; the text states the reason.
    Unusable(String),
}

/// The entries of the folder that may be models, sorted by ID. Opens no file.
pub fn candidates(folder: &Path) -> Vec<Candidate> {
    let FolderListing { folders, files, .. } = FolderListing::read(folder);
    // Folders come first, so a folder wins over a file with the same ID.
    let mut found: Vec<_> = folders.into_iter().chain(files).filter_map(|path| candidate(&path)).collect();
    found.sort_by(|one, other| one.id.cmp(&other.id));
    found.dedup_by(|later, earlier| later.id == earlier.id);
    found
}

fn candidate(path: &Path) -> Option<Candidate> {
    let name = path.file_name()?.to_str()?;
    if name == LORAS || is_hidden(name) || name.len() > 255 || name.chars().any(char::is_control) {
        return None;
    }
    if path.is_dir() {
        return folder(name, path);
    }
    let id = file_model_name(path)?;
    match () {
        () if !path.is_file() => None,
        () if is_safetensors(path) => single_file(id, path, path),
        () if is_ggml(path) => one_file(id, path, path.to_owned(), Layout::Ggml),
        () if is_gguf(path) && !is_projector(path) => one_file(id, path, path.to_owned(), Layout::Gguf),
        () => None,
    }
}

/// A model in `entry` whose only file is `path`, or whose split file has it as its first part.
fn one_file(id: &str, entry: &Path, path: PathBuf, layout: Layout) -> Option<Candidate> {
    let fingerprint = fingerprint(&gguf_files(&path))?;
    Some(Candidate { fingerprint, id: id.to_owned(), layout, entry: entry.to_owned(), path })
}

fn folder(id: &str, folder: &Path) -> Option<Candidate> {
    let description = folder.join(remote::FILE);
    if description.is_file() {
        let fingerprint = fingerprint([&description])?.with_dependencies(&remote::dependencies(&description))?;
        let (id, entry) = (id.to_owned(), folder.to_owned());
        return Some(Candidate { id, layout: Layout::Upstream, fingerprint, entry, path: description });
    }
    let listing = FolderListing::read(folder);
    let index = folder.join(MODEL_INDEX);
    if index.is_file() {
        let parts = files_of(&listing.folders);
        let fingerprint = fingerprint(std::iter::once(&index).chain(&parts))?
            .with_dependencies(&files_of(&referenced_models(folder)))?;
        let entry = folder.to_owned();
        return Some(Candidate { id: id.to_owned(), layout: Layout::Diffusers, fingerprint, entry, path: index });
    }
    let tensors = listing.safetensors();
    let has_config = folder.join("config.json").is_file();
    match (listing.gguf(), tensors.as_slice()) {
        (Ok(Some(path)), _) => one_file(id, folder, path.clone(), Layout::Gguf),
        (Err(problem), _) => unusable(id, folder, &listing, problem),
        (Ok(None), _) if is_adapter(folder, &tensors, has_config) => {
            let fingerprint = fingerprint(listing.files.iter().filter(|path| is_model_file(path)))?;
            let (id, entry, path) = (id.to_owned(), folder.to_owned(), folder.join(peft::WEIGHTS_FILE));
            Some(Candidate { id, layout: Layout::Adapter, fingerprint, entry, path })
        }
        (Ok(None), [first, ..]) if has_config => {
            let fingerprint = hugging_face_fingerprint(folder, &listing)?;
            let (id, entry, path) = (id.to_owned(), folder.to_owned(), (*first).clone());
            Some(Candidate { id, layout: Layout::Safetensors, fingerprint, entry, path })
        }
        (Ok(None), [only]) => single_file(id, folder, only),
        (Ok(None), []) => match (listing.files.iter().find(|path| is_ggml(path)), listing.projector()) {
            (Some(path), _) => one_file(id, folder, path.clone(), Layout::Ggml),
            (None, Some(path)) => {
                let name = path.file_name().unwrap_or_default().to_string_lossy();
                let problem = format!("{name} is a vision projector, and there is no model beside it");
                unusable(id, folder, &listing, problem)
            }
            (None, None) => None,
        },
        _ => None,
    }
}

/// A folder whose GGUF files are no model, or not a single one.
fn unusable(id: &str, folder: &Path, listing: &FolderListing, problem: String) -> Option<Candidate> {
    let ggufs = || listing.files.iter().filter(|path| is_gguf(path));
    let (id, entry, path) = (id.to_owned(), folder.to_owned(), ggufs().next()?.clone());
    Some(Candidate { id, layout: Layout::Unusable(problem), fingerprint: fingerprint(ggufs())?, entry, path })
}

/// The files directly in these folders.
fn files_of(folders: &[PathBuf]) -> Vec<PathBuf> {
    folders.iter().flat_map(|folder| FolderListing::read(folder).files).collect()
}

/// The state of a Hugging Face folder: its files, its tool template, its sentence-transformers modules, its voices and lexicons.
fn hugging_face_fingerprint(folder: &Path, listing: &FolderListing) -> Option<Fingerprint> {
    let tool_use = folder.join(TOOL_USE_FILE);
    let inside = |folders: &[PathBuf]| {
        let mut files = files_of(folders);
        files.retain(|path| fs::metadata(path).is_ok_and(|file| file.len() > 0));
        files
    };
    let speech = inside(&[SpeechCheckpoint::VOICES, SpeechCheckpoint::LEXICONS].map(|name| folder.join(name)));
    let modules: Vec<PathBuf> = listing.folders.iter().filter(|folder| is_module(folder)).cloned().collect();
    let modules = inside(&modules);
    let own = listing.files.iter().chain([&tool_use]).chain(&modules).filter(|path| is_model_file(path));
    fingerprint(own.chain(&speech))
}

/// True for the name of the folder of a sentence-transformers module, which begins with a number: `1_Pooling`, `2_Dense`.
fn is_module(folder: &Path) -> bool {
    let name = folder.file_name().unwrap_or_default().to_string_lossy();
    name.starts_with(|first: char| first.is_ascii_digit())
}

/// Detects an adapter: a folder with its configuration and its weights. Some tools add a `config.json`. With that and
/// further weights, the folder is a model.
fn is_adapter(folder: &Path, tensors: &[&PathBuf], has_config: bool) -> bool {
    let own = |path: &&PathBuf| path.file_name().is_some_and(|name| name == peft::WEIGHTS_FILE);
    folder.join(peft::CONFIG_FILE).is_file() && (tensors.iter().all(own) || (!has_config && tensors.iter().any(own)))
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

/// True for a file of a safetensors folder that is part of the model.
fn is_model_file(path: &Path) -> bool {
    (is_safetensors(path) || ["json", "jinja"].iter().any(|one| has_extension(path, one))) && path.is_file()
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
    /// The files in the model's folder that look like those of a model, but are not used. May read an index of shards.
    fn ignored(&self) -> Vec<IgnoredFile> {
        let listing = FolderListing::read(&self.entry);
        let used = match self.layout {
            Layout::Upstream => return Vec::new(),
            Layout::Diffusers => {
                let parts = listing.folders.iter().filter(|folder| !folder.ends_with(LORAS));
                let ignored = parts.flat_map(|part| {
                    let listing = FolderListing::read(part);
                    let used = diffusers::weight_files(part).unwrap_or_else(|| listing.files.clone());
                    listing.unused(&used)
                });
                let ignored: Vec<IgnoredFile> = ignored.collect();
                return listing.unused(std::slice::from_ref(&self.path)).into_iter().chain(ignored).collect();
            }
            Layout::Safetensors => shards(&self.entry).unwrap_or_else(|_| listing.files.clone()),
            Layout::SingleFile | Layout::Unusable(_) => listing.files.clone(),
            Layout::Gguf => gguf_files(&self.path),
            Layout::Ggml | Layout::Adapter => vec![self.path.clone()],
        };
        listing.unused(&used)
    }

    /// Reads the headers and describes the model.
    pub fn inspect(self) -> DiscoveredModel {
        for IgnoredFile { path, why } in self.ignored() {
            tracing::info!(model = self.id, file = %path.display(), why, "a file of the model's folder is not used");
        }
        tracing::debug!(model = self.id, file = %self.path.display(), "found a model");
        let mut info = self.empty_info();
        // One damaged model must not hide the others.
        let described = catch_load_panic(|| Ok(self.describe(&mut info)));
        let adapter = described.unwrap_or_else(|problem| {
            info.problem = Some(problem);
            None
        });
        let upstream = match self.layout {
            Layout::Upstream => upstream::describe(&self.path, &mut info),
            _ => None,
        };
        let Self { entry, path, fingerprint, .. } = self;
        DiscoveredModel { info, entry, path, files: fingerprint, fingerprint, adapter, upstream }
    }

    /// Fills in the description. Returns what is known of an adapter.
    fn describe(&self, info: &mut ModelInfo) -> Option<DiscoveredAdapter> {
        match &self.layout {
            Layout::Gguf => gguf::describe(&self.path, info),
            Layout::Safetensors => safetensors::describe(&self.path, info),
            Layout::Ggml => ggml::describe(&self.path, info),
            Layout::SingleFile => ldm_checkpoint::describe(&self.path, info),
            Layout::Diffusers => diffusers::describe(&self.path, info),
            Layout::Unusable(problem) => info.problem = Some(problem.clone()),
            Layout::Upstream => {}
            Layout::Adapter => {
                let origin = AdapterOrigin::Folder(self.entry.clone());
                let base_name = adapter::describe(&origin, info);
                let problem = info.problem.clone();
                return Some(DiscoveredAdapter { origin, owner: None, base_name, base: None, problem });
            }
        }
        None
    }

    fn empty_info(&self) -> ModelInfo {
        let created = Timestamp::from_millis(i64::try_from(self.fingerprint.modified).unwrap_or(i64::MAX));
        let format = match self.layout {
            Layout::Safetensors | Layout::Diffusers | Layout::SingleFile | Layout::Adapter => "safetensors",
            Layout::Gguf | Layout::Unusable(_) => "gguf",
            Layout::Ggml => "ggml",
            Layout::Upstream => UPSTREAM_FORMAT,
        };
        ModelInfo { format, bytes: self.fingerprint.bytes, ..empty_info(&self.id, created) }
    }
}

/// The description of a model of which nothing is known yet.
fn empty_info(id: &str, created: Timestamp) -> ModelInfo {
    ModelInfo {
        id: id.to_owned(),
        created,
        owned_by: "local".to_owned(),
        architecture: "unknown".to_owned(),
        base: None,
        kind: ModelKind::Unknown,
        format: "gguf",
        quantization: None,
        parameters: 0,
        bytes: 0,
        context_window: None,
        embedding_dimensions: None,
        labels: Vec::new(),
        moderates: false,
        width: None,
        has_chat_template: false,
        infills: false,
        image_sizes: Vec::new(),
        loaded: false,
        pinned: false,
        unloads_at: None,
        alias_of: None,
        device: None,
        dequantized: false,
        problem: None,
        license: None,
    }
}
