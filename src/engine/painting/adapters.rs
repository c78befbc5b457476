//! The adapters that a model paints with: files of the pipeline's own folder and of one for all, asked for by name.
//!
//! They are checked before anybody waits for a picture, and stay in memory as long as others do not need it.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::SystemTime;

use crate::engine::budget::Lease;
use crate::engine::scan::LORAS;
use crate::models::diffusion::pipeline::{AdaptableLayers, Adapter, Interrupted, LoraDeltas, LoraFile, OpContext};
use crate::models::safetensors::is_file_name;
use crate::readable::size as readable;

/// Of a request.
const MOST: usize = 8;
/// Whose files are remembered.
const KEPT: usize = 2 * MOST;
const LARGEST: u64 = 2 << 30;
/// Names in an error.
const NAMED: usize = 50;
const ENDING: &str = ".safetensors";

pub(super) struct Adapters {
    /// The first that has a file of the name counts.
    folders: [PathBuf; 2],
    /// The longest unused first.
    shelf: Mutex<Vec<Kept>>,
}

/// A file that was asked for.
struct Kept {
    path: PathBuf,
    stamp: Stamp,
    plan: Arc<LoraFile>,
    /// What was read of it, and its memory.
    adapter: Option<(Arc<Adapter>, Lease)>,
}

/// Where memory comes from.
pub(in crate::engine) trait Lender {
    /// What is left.
    fn spare(&self, bytes: u64) -> Option<Lease>;

    /// The same where models that nobody uses go for it.
    fn lease(&self, bytes: u64) -> Option<Lease>;
}

/// Bytes of a file, and when it was last written.
type Stamp = (u64, SystemTime);

impl Adapters {
    /// Of the pipeline in this folder of a folder of models.
    pub fn new(pipeline: &Path) -> Self {
        let all = pipeline.parent().unwrap_or(pipeline).join(LORAS);
        Self { folders: [pipeline.join(LORAS), all], shelf: Mutex::default() }
    }

    fn lock(&self) -> MutexGuard<'_, Vec<Kept>> {
        self.shelf.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether these can be painted with, and the memory that they take; bytes. May read the files' headers.
    pub fn check(&self, layers: &AdaptableLayers, asked: &[(String, f32)]) -> Result<u64, String> {
        if asked.len() > MOST {
            return Err(format!("{} adapters, {MOST} at most are possible", asked.len()));
        }
        if let Some((name, _)) = asked.iter().find(|(_, weight)| !weight.is_finite()) {
            return Err(format!("the weight of the adapter {name} is no number"));
        }
        let mut paths = Vec::with_capacity(asked.len());
        let mut bytes = 0;
        for (name, _) in asked {
            let (path, plan) = self.plan(layers, name)?;
            if !paths.contains(&path) {
                bytes += plan.bytes;
                paths.push(path);
            }
        }
        Ok(bytes)
    }

    /// The file of this name, and what is to be read of it.
    fn plan(&self, layers: &AdaptableLayers, name: &str) -> Result<(PathBuf, Arc<LoraFile>), String> {
        let path = self.find(name)?;
        let unusable =
            |problem: &dyn std::fmt::Display| format!("the adapter {name} cannot be used with this model: {problem}");
        let metadata = fs::metadata(&path).map_err(|error| unusable(&error))?;
        let stamp = (metadata.len(), metadata.modified().unwrap_or(SystemTime::UNIX_EPOCH));
        if let Some(known) = self.take_up(&path, stamp) {
            return Ok((path, known));
        }
        if stamp.0 > LARGEST {
            let problem = format!("its file has {}, {} at most are possible", readable(stamp.0), readable(LARGEST));
            return Err(unusable(&problem));
        }
        let plan = Arc::new(LoraFile::of(&path, layers).map_err(|error| unusable(&error))?);
        let mut shelf = self.lock();
        shelf.retain(|kept| kept.path != path);
        if shelf.len() >= KEPT {
            shelf.remove(0);
        }
        shelf.push(Kept { path: path.clone(), stamp, plan: Arc::clone(&plan), adapter: None });
        Ok((path, plan))
    }

    /// What is known of a file that is as it was; it is the last to be forgotten.
    fn take_up(&self, path: &Path, stamp: Stamp) -> Option<Arc<LoraFile>> {
        let mut shelf = self.lock();
        let at = shelf.iter().position(|kept| kept.path == path && kept.stamp == stamp)?;
        let kept = shelf.remove(at);
        let plan = Arc::clone(&kept.plan);
        shelf.push(kept);
        Some(plan)
    }

    fn find(&self, name: &str) -> Result<PathBuf, String> {
        let safe = is_file_name(name);
        let file = format!("{name}{ENDING}");
        let found = self.folders.iter().map(|folder| folder.join(&file)).find(|path| safe && path.is_file());
        found.ok_or_else(|| self.missing(name))
    }

    fn missing(&self, name: &str) -> String {
        let files = self.folders.iter().flat_map(|folder| fs::read_dir(folder).into_iter().flatten());
        let names = files.filter_map(|file| Some(file.ok()?.file_name().to_str()?.strip_suffix(ENDING)?.to_owned()));
        let mut names: Vec<String> = names.collect();
        names.sort();
        names.dedup();
        let more = if names.len() > NAMED { ", and others" } else { "" };
        names.truncate(NAMED);
        match names.is_empty() {
            true => format!(
                "there is no adapter {name}, nor any other; adapters are files in {LORAS}/ of the models folder"
            ),
            false => format!("there is no adapter {name}; there are {}{more}", names.join(", ")),
        }
    }

    /// Reads what is not in memory. `None`: there is not enough.
    pub fn load(
        &self,
        layers: &AdaptableLayers,
        asked: &[(String, f32)],
        ctx: &OpContext<'_>,
        memory: &dyn Lender,
    ) -> Result<Option<LoraDeltas>, Interrupted> {
        let planned = asked.iter().map(|(name, _)| self.plan(layers, name)).collect::<Result<Vec<_>, _>>()?;
        let paths: Vec<&Path> = planned.iter().map(|(path, _)| path.as_path()).collect();
        let mut lora_deltas = LoraDeltas::default();
        for ((path, plan), (_, weight)) in planned.iter().zip(asked) {
            let adapter = match self.loaded(path) {
                Some(adapter) => adapter,
                None => {
                    let lease = memory.spare(plan.bytes).or_else(|| {
                        self.forget(&paths);
                        memory.lease(plan.bytes)
                    });
                    let Some(lease) = lease else { return Ok(None) };
                    let adapter = Arc::new(plan.read(ctx.pool, &|| ctx.pause())?);
                    self.put(path, &adapter, lease);
                    adapter
                }
            };
            lora_deltas.push(&adapter, *weight);
        }
        Ok(Some(lora_deltas))
    }

    fn loaded(&self, path: &Path) -> Option<Arc<Adapter>> {
        let shelf = self.lock();
        let kept = shelf.iter().find(|kept| kept.path == path)?;
        kept.adapter.as_ref().map(|(adapter, _)| Arc::clone(adapter))
    }

    fn put(&self, path: &Path, adapter: &Arc<Adapter>, lease: Lease) {
        if let Some(kept) = self.lock().iter_mut().find(|kept| kept.path == path) {
            kept.adapter = Some((Arc::clone(adapter), lease));
        }
    }

    /// Takes all adapters but these out of memory. `false`: there were none.
    pub fn forget(&self, needed: &[&Path]) -> bool {
        let mut shelf = self.lock();
        let others = shelf.iter_mut().filter(|kept| !needed.contains(&kept.path.as_path()));
        others.filter_map(|kept| kept.adapter.take()).count() > 0
    }
}
