//! LoRA adapters of a model, found by name in the pipeline's folder or in the shared one.
//!
//! A request's adapters are checked before it is queued. Loaded adapters stay in memory until others need it.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::SystemTime;

use crate::model_info::LORAS;
use crate::runtime::Runtime;
use crate::runtime::memory_budget::Lease;
use outpost_common::display::format_bytes;
use outpost_models::ModelError;
use outpost_models::backend::{Convolutions, Recurrent};
use outpost_models::diffusion::pipeline::{AdaptableLayers, Adapter, LoraDeltas, LoraFile};
use outpost_models::model_files::{FolderListing, is_safetensors};
use outpost_models::safetensors::is_file_name;

/// Maximum adapters of a request.
const MAX_ADAPTERS: usize = 8;
/// Files whose headers are cached.
const CACHE_SIZE: usize = 2 * MAX_ADAPTERS;
const MAX_FILE_BYTES: u64 = 2 << 30;
/// Maximum names in an error message.
const MAX_NAMES: usize = 50;
const EXTENSION: &str = ".safetensors";

pub struct Adapters<B: Convolutions + Recurrent> {
    /// Searched in order.
    folders: [PathBuf; 2],
    /// Least recently used first.
    cache: Mutex<Vec<CachedAdapter<B>>>,
}

/// A file that was requested.
struct CachedAdapter<B: Convolutions + Recurrent> {
    path: PathBuf,
    fingerprint: Fingerprint,
    file: Arc<LoraFile>,
    /// The loaded adapter and its memory lease.
    adapter: Option<(Arc<Adapter<B>>, Lease)>,
}

/// Size and modification time of a file.
type Fingerprint = (u64, SystemTime);

impl<B: Convolutions + Recurrent> Adapters<B> {
    /// For the pipeline in this subfolder of the models folder.
    pub fn new(pipeline: &Path) -> Self {
        let shared = pipeline.parent().unwrap_or(pipeline).join(LORAS);
        Self { folders: [pipeline.join(LORAS), shared], cache: Mutex::default() }
    }

    fn lock(&self) -> MutexGuard<'_, Vec<CachedAdapter<B>>> {
        self.cache.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Checks the adapters; returns the bytes of memory that they take. May read file headers.
    pub fn check(&self, layers: &AdaptableLayers, requested: &[(String, f32)], backend: &B) -> Result<u64, String> {
        if requested.len() > MAX_ADAPTERS {
            return Err(format!("{} adapters; at most {MAX_ADAPTERS} are allowed", requested.len()));
        }
        if let Some((name, _)) = requested.iter().find(|(_, weight)| !weight.is_finite()) {
            return Err(format!("the weight of the adapter {name} is not finite"));
        }
        let mut paths = Vec::with_capacity(requested.len());
        let mut bytes = 0;
        for (name, _) in requested {
            let (path, file) = self.file(layers, name)?;
            if !paths.contains(&path) {
                bytes += file.bytes(backend);
                paths.push(path);
            }
        }
        Ok(bytes)
    }

    /// The file of this name and its parsed header.
    fn file(&self, layers: &AdaptableLayers, name: &str) -> Result<(PathBuf, Arc<LoraFile>), String> {
        let path = self.find(name)?;
        let unusable =
            |problem: &dyn std::fmt::Display| format!("the adapter {name} cannot be used with this model: {problem}");
        let metadata = fs::metadata(&path).map_err(|error| unusable(&error))?;
        let fingerprint = (metadata.len(), metadata.modified().unwrap_or(SystemTime::UNIX_EPOCH));
        if let Some(known) = self.lookup(&path, fingerprint) {
            return Ok((path, known));
        }
        if fingerprint.0 > MAX_FILE_BYTES {
            let problem = format!(
                "its file has {}; at most {} are allowed",
                format_bytes(fingerprint.0),
                format_bytes(MAX_FILE_BYTES)
            );
            return Err(unusable(&problem));
        }
        let file = Arc::new(LoraFile::open(&path, layers).map_err(|error| unusable(&error))?);
        let mut cache = self.lock();
        cache.retain(|cached| cached.path != path);
        if cache.len() >= CACHE_SIZE {
            cache.remove(0);
        }
        cache.push(CachedAdapter { path: path.clone(), fingerprint, file: Arc::clone(&file), adapter: None });
        Ok((path, file))
    }

    /// The cached header of an unchanged file, which becomes the most recently used.
    fn lookup(&self, path: &Path, fingerprint: Fingerprint) -> Option<Arc<LoraFile>> {
        let mut cache = self.lock();
        let at = cache.iter().position(|cached| cached.path == path && cached.fingerprint == fingerprint)?;
        let cached = cache.remove(at);
        let file = Arc::clone(&cached.file);
        cache.push(cached);
        Some(file)
    }

    fn find(&self, name: &str) -> Result<PathBuf, String> {
        let safe = is_file_name(name);
        let file = format!("{name}{EXTENSION}");
        let found = self.folders.iter().map(|folder| folder.join(&file)).find(|path| safe && path.is_file());
        // The name may have another case.
        let found = found.or_else(|| self.named_files().find(|(own, _)| own == name).map(|(_, path)| path));
        found.ok_or_else(|| self.missing(name))
    }

    /// All adapters and their names.
    fn named_files(&self) -> impl Iterator<Item = (String, PathBuf)> {
        let files = self.folders.iter().flat_map(|folder| FolderListing::read(folder).files);
        let files = files.filter(|path| is_safetensors(path));
        files.filter_map(|path| Some((path.file_stem()?.to_str()?.to_owned(), path)))
    }

    fn missing(&self, name: &str) -> String {
        let mut names: Vec<String> = self.named_files().map(|(name, _)| name).collect();
        names.sort();
        names.dedup();
        let more = if names.len() > MAX_NAMES { ", and others" } else { "" };
        names.truncate(MAX_NAMES);
        match names.is_empty() {
            true => {
                format!(
                    "there is no adapter {name}, and there are no others; adapters are files in {LORAS}/ of the models folder"
                )
            }
            false => format!("there is no adapter {name}; available: {}{more}", names.join(", ")),
        }
    }

    /// Loads adapters that are not in memory; `None` if there is not enough.
    pub fn load(
        &self,
        layers: &AdaptableLayers,
        requested: &[(String, f32)],
        backend: &B,
        runtime: &Runtime,
    ) -> Result<Option<LoraDeltas<B>>, ModelError> {
        let files = requested.iter().map(|(name, _)| self.file(layers, name)).collect::<Result<Vec<_>, _>>()?;
        let paths: Vec<&Path> = files.iter().map(|(path, _)| path.as_path()).collect();
        let mut lora_deltas = LoraDeltas::default();
        for ((path, file), (_, weight)) in files.iter().zip(requested) {
            let adapter = match self.loaded(path) {
                Some(adapter) => adapter,
                None => {
                    let bytes = file.bytes(backend);
                    let lease = runtime.lease(bytes, 0).or_else(|| {
                        self.evict_except(&paths);
                        runtime.lease_reclaiming(bytes)
                    });
                    let Some(lease) = lease else { return Ok(None) };
                    let adapter = Arc::new(file.read(backend)?);
                    self.insert(path, &adapter, lease);
                    adapter
                }
            };
            lora_deltas.push(&adapter, *weight);
        }
        Ok(Some(lora_deltas))
    }

    fn loaded(&self, path: &Path) -> Option<Arc<Adapter<B>>> {
        let cache = self.lock();
        let cached = cache.iter().find(|cached| cached.path == path)?;
        cached.adapter.as_ref().map(|(adapter, _)| Arc::clone(adapter))
    }

    fn insert(&self, path: &Path, adapter: &Arc<Adapter<B>>, lease: Lease) {
        if let Some(cached) = self.lock().iter_mut().find(|cached| cached.path == path) {
            cached.adapter = Some((Arc::clone(adapter), lease));
        }
    }

    /// Evicts all adapters except `needed`. `false` if there were none.
    pub fn evict_except(&self, needed: &[&Path]) -> bool {
        let mut cache = self.lock();
        let others = cache.iter_mut().filter(|cached| !needed.contains(&cached.path.as_path()));
        others.filter_map(|cached| cached.adapter.take()).count() > 0
    }
}
