//! The models on disk and those in memory.
//!
//! Listing reads headers, once a file. Loading is lazy and happens once however many ask; when the
//! memory budget is short, models that nobody uses go first, the longest unused before others.
//!
//! Whoever names a model has its files looked at again, so that one that was repaired, replaced or deleted is noticed at
//! once. What runs on the old one ends on it.

mod draft_pairs;

use crate::engine::error::InUse;
use crate::engine::error::LoadError;
use std::collections::{BTreeMap, HashMap};
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use arc_swap::ArcSwap;

use crate::clock_rng::ClockRng;
use crate::engine::checkpoint::Checkpoint;
use crate::engine::discovery::{self, DiscoveredModel, Fingerprint};
use crate::engine::embedding::EncoderModel;
use crate::engine::image::{self, ImageModel};
use crate::engine::model_info::ModelInfo;
use crate::engine::model_info::ModelKind;
use crate::engine::preprocessor::Isolation;
use crate::engine::runtime::Runtime;
use crate::engine::runtime::memory::Lease;
use crate::engine::runtime::memory::Reclaim;
use crate::engine::runtime::panics::guarded;
use crate::engine::text::model::TextModel;
use crate::engine::text::queue::TextQueue;
use crate::engine::text::scheduler::ModelId;
use crate::models::scratch::{Cpu, scratch_bytes};
use crate::models::weights::Footprint;

/// How old the listing may be.
const FRESH: Duration = Duration::from_secs(1);

/// The models folder and what is loaded of it.
pub struct Registry {
    folder: PathBuf,
    clock: Arc<dyn ClockRng>,
    runtime: Arc<Runtime>,
    texts: Arc<TextQueue>,
    snapshot: ArcSwap<Snapshot>,
    scanning: Mutex<()>,
    loaded: Mutex<HashMap<String, Loaded>>,
    /// Models whose files are no longer those on disk, until what runs on them has ended.
    retired: Mutex<Vec<Model>>,
    /// One lock a model: whoever holds it loads, the others wait for the outcome.
    gates: Mutex<HashMap<String, Arc<Mutex<()>>>>,
    /// Models whose header was sound but whose loading failed; until the file changes.
    failed: Mutex<HashMap<String, (Fingerprint, String)>>,
    loads: AtomicU64,
    /// Computes for all models, one at a time.
    cpu: Arc<Cpu>,
}

#[derive(Default)]
struct Snapshot {
    models: BTreeMap<String, DiscoveredModel>,
    /// `None` before the first scan.
    at: Option<Duration>,
}

/// A model in memory.
#[derive(Clone)]
enum Model {
    Text(Arc<TextModel>),
    Encoder(Arc<EncoderModel>),
    Image(Arc<ImageModel>),
}

impl Model {
    fn text(&self) -> Option<&Arc<TextModel>> {
        if let Self::Text(model) = self { Some(model) } else { None }
    }

    /// Whether somebody beside the registry holds it.
    fn is_held(&self) -> bool {
        match self {
            Self::Text(model) => Arc::strong_count(model) > 1,
            Self::Encoder(model) => Arc::strong_count(model) > 1,
            Self::Image(model) => Arc::strong_count(model) > 1,
        }
    }
}

struct Loaded {
    model: Model,
    fingerprint: Fingerprint,
    used: Duration,
    /// When its files were last found to be those that were read.
    confirmed: Duration,
    /// What guesses its tokens.
    draft: Option<String>,
}

/// Where the memory for weights comes from.
#[derive(Clone, Copy)]
enum Memory {
    /// From whoever does not need it: models that nobody uses go.
    Claimed,
    /// From what is left; at most cached blocks go.
    Spare,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Registry {
    pub(in crate::engine) fn new(runtime: Arc<Runtime>, texts: Arc<TextQueue>) -> Self {
        let cpu = Arc::new(Cpu::new(runtime.settings.threads));
        let (folder, clock) = (runtime.settings.models_dir.clone(), Arc::clone(&runtime.clock));
        Self {
            folder,
            clock,
            runtime,
            texts,
            snapshot: ArcSwap::default(),
            scanning: Mutex::default(),
            loaded: Mutex::default(),
            retired: Mutex::default(),
            gates: Mutex::default(),
            failed: Mutex::default(),
            loads: AtomicU64::new(1),
            cpu,
        }
    }

    /// Every model on disk, by id. Reads the folder when the last look is a second old.
    pub fn list(&self) -> Vec<ModelInfo> {
        self.refresh();
        let snapshot = self.snapshot.load();
        snapshot.models.values().map(|found| self.describe(found)).collect()
    }

    /// One model as it is now. Looks at its files; reads the folder where those have changed, and for an unknown id at
    /// most once a second.
    pub fn find(&self, id: &str) -> Option<ModelInfo> {
        self.found(id).map(|found| self.describe(&found))
    }

    fn found(&self, id: &str) -> Option<DiscoveredModel> {
        let snapshot = self.snapshot.load_full();
        match snapshot.models.get(id) {
            Some(found) if found.is_current() => return Some(found.clone()),
            Some(_) => self.refresh_after(&snapshot),
            None => self.refresh(),
        }
        self.snapshot.load().models.get(id).cloned()
    }

    fn describe(&self, found: &DiscoveredModel) -> ModelInfo {
        let mut info = found.info.clone();
        info.loaded = lock(&self.loaded).contains_key(&info.id);
        if info.problem.is_none() {
            info.problem = self.failure(found);
        }
        info
    }

    fn failure(&self, found: &DiscoveredModel) -> Option<String> {
        let failed = lock(&self.failed);
        failed
            .get(&found.info.id)
            .filter(|(fingerprint, _)| *fingerprint == found.fingerprint)
            .map(|(_, reason)| reason.clone())
    }

    fn refresh(&self) {
        let _one = lock(&self.scanning);
        let old = self.snapshot.load_full();
        let now = self.clock.uptime();
        if old.at.is_none_or(|at| now.saturating_sub(at) >= FRESH) {
            self.scan(&old, now);
        }
    }

    /// Reads the folder, of which `seen` is no longer true, unless another thread has done so.
    fn refresh_after(&self, seen: &Arc<Snapshot>) {
        let _one = lock(&self.scanning);
        let old = self.snapshot.load_full();
        if Arc::ptr_eq(&old, seen) {
            self.scan(&old, self.clock.uptime());
        }
    }

    fn scan(&self, old: &Snapshot, now: Duration) {
        let models = discovery::candidates(&self.folder).into_iter().map(|candidate| {
            let known = old.models.get(&candidate.id).filter(|found| found.is_of(&candidate));
            (candidate.id.clone(), known.cloned().unwrap_or_else(|| candidate.inspect()))
        });
        let models: BTreeMap<_, _> = models.collect();
        let is_outdated = |(id, entry): (&String, &Loaded)| match models.get(id) {
            Some(found) if found.fingerprint == entry.fingerprint => None,
            _ => Some(id.clone()),
        };
        let outdated: Vec<_> = lock(&self.loaded).iter().filter_map(is_outdated).collect();
        self.snapshot.store(Arc::new(Snapshot { models, at: Some(now) }));
        outdated.iter().for_each(|id| self.retire(id));
    }

    /// Gives out a model no more, and its memory back once nobody uses it.
    fn retire(&self, id: &str) {
        tracing::info!(model = id, "the files of a loaded model have changed or are gone");
        self.drop_drafts_by(id);
        self.take_drafter(id, None);
        let gone = lock(&self.loaded).remove(id);
        lock(&self.retired).extend(gone.map(|gone| gone.model));
        self.drop_retired();
    }

    /// Drops the retired models that nobody uses any more. `false`: there was none.
    fn drop_retired(&self) -> bool {
        let unused: Vec<Model> = lock(&self.retired).extract_if(.., |model| !model.is_held()).collect();
        unused.iter().filter_map(Model::text).for_each(|model| self.texts.forget(model.key));
        !unused.is_empty()
    }

    /// The chat model if it is loaded and its files were looked at not long ago. Touches no disk.
    pub fn loaded_model(&self, id: &str) -> Option<Arc<TextModel>> {
        let fingerprint = self.snapshot.load().models.get(id)?.fingerprint;
        let now = self.clock.uptime();
        let mut loaded = lock(&self.loaded);
        let entry = loaded.get_mut(id).filter(|entry| entry.fingerprint == fingerprint)?;
        (now.saturating_sub(entry.confirmed) < FRESH).then_some(())?;
        entry.used = now;
        entry.model.text().cloned()
    }

    /// The chat model, loaded. BlockPool while its weights are read, and those of what drafts for it.
    pub fn load(&self, id: &str) -> Result<Arc<TextModel>, LoadError> {
        let found = self.found(id).ok_or(LoadError::NotFound)?;
        let model = self.obtain_text(&found, Memory::Claimed)?;
        self.attach_draft_model(&model, &found);
        Ok(model)
    }

    /// The encoder of this kind, [`ModelKind::Embedding`] or [`ModelKind::Reranker`], loaded. BlockPool while its weights are
    /// read.
    pub fn load_encoder(&self, id: &str, kind: ModelKind) -> Result<Arc<EncoderModel>, LoadError> {
        let found = self.found(id).ok_or(LoadError::NotFound)?;
        if found.info.kind != kind {
            return Err(found.other_than(kind));
        }
        match self.obtain(&found, Memory::Claimed)? {
            Model::Encoder(model) => Ok(model),
            _ => Err(found.other_than(kind)),
        }
    }

    /// The model that paints, loaded. BlockPool while its weights are read.
    pub fn load_image_model(&self, id: &str) -> Result<Arc<ImageModel>, LoadError> {
        let found = self.found(id).ok_or(LoadError::NotFound)?;
        if found.info.kind != ModelKind::Image {
            return Err(found.other_than(ModelKind::Image));
        }
        match self.obtain(&found, Memory::Claimed)? {
            Model::Image(model) => Ok(model),
            _ => Err(found.other_than(ModelKind::Image)),
        }
    }

    /// Loads a model of any kind.
    pub fn preload(&self, id: &str) -> Result<(), LoadError> {
        match self.found(id).ok_or(LoadError::NotFound)?.info.kind {
            kind @ (ModelKind::Embedding | ModelKind::Reranker) => self.load_encoder(id, kind).map(drop),
            ModelKind::Image => self.load_image_model(id).map(drop),
            ModelKind::Text | ModelKind::Unknown => self.load(id).map(drop),
        }
    }

    fn obtain_text(&self, found: &DiscoveredModel, memory: Memory) -> Result<Arc<TextModel>, LoadError> {
        if !matches!(found.info.kind, ModelKind::Text | ModelKind::Unknown) {
            return Err(found.other_than(ModelKind::Text));
        }
        match self.obtain(found, memory)? {
            Model::Text(model) => Ok(model),
            _ => Err(found.other_than(ModelKind::Text)),
        }
    }

    fn obtain(&self, found: &DiscoveredModel, memory: Memory) -> Result<Model, LoadError> {
        let id = &found.info.id;
        if let Some(model) = self.ready(id, found.fingerprint) {
            return Ok(model);
        }
        let gate = Arc::clone(lock(&self.gates).entry(id.to_owned()).or_default());
        let _one = lock(&gate);
        match self.ready(id, found.fingerprint) {
            Some(model) => Ok(model),
            None => self.read(found, memory),
        }
    }

    fn ready(&self, id: &str, fingerprint: Fingerprint) -> Option<Model> {
        self.drop_retired();
        let now = self.clock.uptime();
        let mut loaded = lock(&self.loaded);
        let entry = loaded.get_mut(id).filter(|entry| entry.fingerprint == fingerprint)?;
        (entry.used, entry.confirmed) = (now, now);
        Some(entry.model.clone())
    }

    fn read(&self, found: &DiscoveredModel, memory: Memory) -> Result<Model, LoadError> {
        let id = &found.info.id;
        if let Some(reason) = found.info.problem.clone().or_else(|| self.failure(found)) {
            return Err(LoadError::Unusable { id: id.clone(), reason });
        }
        let broken = |reason: String| {
            lock(&self.failed).insert(id.clone(), (found.fingerprint, reason.clone()));
            LoadError::Unusable { id: id.clone(), reason }
        };
        if found.info.kind == ModelKind::Image {
            return self.read_image_model(found, memory, broken);
        }
        let (cpu, encoder) = (Arc::clone(&self.cpu), found.is_encoder());
        let files = if encoder { Checkpoint::open } else { Checkpoint::open_chat };
        let files = guarded(|| files(&found.path)).map_err(broken)?;
        let needs = || if encoder { files.encoder_needs(cpu.pool().threads()) } else { self.needs(&files) };
        let (footprint, scratch) = guarded(needs).map_err(broken)?;
        let lease = self.lease(footprint.weights + footprint.loading, scratch, memory)?;
        let isolation = self.isolation();
        let open = || {
            if encoder {
                let precision = self.runtime.settings.precisions.of(id);
                let mut model =
                    EncoderModel::open(id, &found.path, &files, &isolation, lease, precision, Arc::clone(&cpu))?;
                model.lease.shrink(footprint.weights);
                return Ok(Model::Encoder(Arc::new(model)));
            }
            let key = self.loads.fetch_add(1, Ordering::Relaxed);
            let mut model = TextModel::open(id, key, &found.path, &files, &isolation, lease, Arc::clone(&cpu))?;
            model.lease.shrink(footprint.weights);
            Ok(Model::Text(Arc::new(model)))
        };
        let model = guarded(open).map_err(broken)?;
        self.insert(found, &model);
        Ok(model)
    }

    fn read_image_model(
        &self,
        found: &DiscoveredModel,
        memory: Memory,
        broken: impl Fn(String) -> LoadError,
    ) -> Result<Model, LoadError> {
        let (id, cpu) = (&found.info.id, Arc::clone(&self.cpu));
        let precision = self.runtime.settings.precisions.of(id);
        let components = guarded(|| image::open(&found.path)).map_err(&broken)?;
        let footprint = image::footprint(&components, cpu.pool().threads(), precision);
        let lease = self.lease(footprint.weights + footprint.loading, 0, memory)?;
        let total = self.runtime.memory.total();
        let open = || ImageModel::open(id, &components, &self.isolation(), lease, precision, total, cpu);
        let mut model = guarded(open).map_err(&broken)?;
        model.lease.shrink(footprint.weights);
        let model = Model::Image(Arc::new(model));
        self.insert(found, &model);
        Ok(model)
    }

    fn isolation(&self) -> Isolation {
        Isolation { program: self.runtime.settings.sandbox.clone(), clock: Arc::clone(&self.clock) }
    }

    fn insert(&self, found: &DiscoveredModel, model: &Model) {
        let now = self.clock.uptime();
        let entry =
            Loaded { model: model.clone(), fingerprint: found.fingerprint, used: now, confirmed: now, draft: None };
        let former = lock(&self.loaded).insert(found.info.id.clone(), entry);
        lock(&self.retired).extend(former.map(|former| former.model));
    }

    /// What the model takes in memory, and the scratch of its steps.
    fn needs(&self, checkpoint: &Checkpoint) -> Result<(Footprint, u64), String> {
        let weights = checkpoint.weights();
        let config = weights.decoder_config().map_err(|error| error.to_string())?;
        Ok((
            Footprint::new(weights, self.cpu.pool().threads()),
            scratch_bytes(&config, &self.runtime.settings.step_limits()),
        ))
    }

    /// The chat models in memory: what tells this load from others, and the name.
    pub(in crate::engine) fn loaded(&self) -> Vec<(ModelId, String)> {
        let loaded = lock(&self.loaded);
        loaded.iter().filter_map(|(id, entry)| Some((entry.model.text()?.key, id.clone()))).collect()
    }

    /// Drops a model from memory unless somebody uses it. One that is not loaded is fine.
    pub fn unload(&self, id: &str) -> Result<(), InUse> {
        self.drop_drafts_by(id);
        let mut loaded = lock(&self.loaded);
        // Only the registry can hand out new handles, and it is locked: a count of one stays one.
        if loaded.get(id).is_some_and(|entry| entry.model.is_held()) {
            return Err(InUse);
        }
        let gone = loaded.remove(id);
        drop(loaded);
        if let Some(model) = gone.as_ref().and_then(|gone| gone.model.text()) {
            model.draft_slot.take(None);
            self.texts.forget(model.key);
        }
        Ok(())
    }

    fn lease(&self, weights: u64, scratch: u64, memory: Memory) -> Result<Lease, LoadError> {
        loop {
            if let Some(lease) = self.runtime.lease(weights, scratch) {
                return Ok(lease);
            }
            if matches!(memory, Memory::Spare) || !self.unload_idle() {
                let (needed, budget) = (weights.saturating_add(scratch), self.runtime.memory.total());
                return Err(match needed > budget {
                    true => LoadError::TooLarge { needed, budget },
                    false => LoadError::OutOfMemory { needed, budget },
                });
            }
        }
    }

    /// Drops a draft_slot; where there is none, the model that is longest unused, of those that nobody
    /// holds. `false`: there is nothing to drop.
    pub(in crate::engine) fn unload_idle(&self) -> bool {
        if self.drop_retired() || self.drop_drafter() {
            return true;
        }
        let oldest = || {
            let loaded = lock(&self.loaded);
            let idle = loaded.iter().filter(|(_, entry)| !entry.model.is_held());
            idle.min_by_key(|(_, entry)| entry.used).map(|(id, _)| id.clone())
        };
        // Whoever takes it up in between keeps it; then the next is tried.
        while let Some(id) = oldest() {
            if self.unload(&id).is_ok() {
                return true;
            }
        }
        false
    }
}

impl Reclaim for Registry {
    fn reclaim(&self) -> bool {
        self.unload_idle()
    }
}

impl std::fmt::Debug for Registry {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Registry").field("folder", &self.folder).finish_non_exhaustive()
    }
}
