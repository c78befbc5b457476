//! The model registry: the models on disk and those in memory.
//!
//! Listing reads each file's header once. Models are loaded on first use, once for any number of concurrent requests.
//! When the memory budget is short, idle models are unloaded, least recently used first.
//!
//! Each use of a model checks its files, so a repaired, replaced or deleted model is noticed at once. Running requests
//! finish on the old one.
//!
//! Files are identified by name, size and modification time, which takes 5 to 120 µs. The time is as precise as the
//! file system's clock, a few milliseconds. Inodes are not compared: some network file systems change them while the
//! file stays the same, and each change would reload the model.
//!
//! The registry is above the workloads and not part of the runtime, because listing and loading need to know every kind
//! of model. The runtime needs it only to unload idle models, through the trait `Reclaim`.

mod adapters;
mod draft_models;
mod eviction;
mod settings_files;
mod training;
mod upkeep;
mod upstream;

use std::collections::{BTreeMap, HashMap};
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime};

use arc_swap::ArcSwap;

use crate::device_worker::DeviceWorker;
use crate::discovery::{self, DiscoveredModel, Fingerprint};
use crate::embedding::EncoderModel;
use crate::error::{InUse, LoadError};
use crate::ids::Tenant;
use crate::kinds::{self, Kind, LoadHooks, LoadOptions, LoadSource, LoadedModel, MemoryNeed, Model as _};
use crate::model_info::{ModelInfo, ModelKind};
use crate::model_settings::{InstalledSettings, SettingsFiles};
use crate::per_model::PerModel;
use crate::preprocessor::stop_flag::StopFlag;
use crate::preprocessor::{self, Isolation};
use crate::runtime::DeviceIndex;
use crate::runtime::catch_panic::catch_load_panic;
use crate::settings::Settings;
use crate::speech::VoiceInfo;
use crate::text::model::TextModel;
use crate::text::queue::TextQueue;
pub use adapters::AdapterRegistration;
use outpost_common::clock_rng::ClockRng;
pub use upstream::UpstreamLookup;

/// Max age of the listing and of the last check of a model's files.
const MAX_AGE: Duration = Duration::from_secs(1);
/// Time for which a model that could not be loaded is refused without another attempt.
const RETRY_FAILED: Duration = Duration::from_secs(60);

/// The models folder and the loaded models.
pub struct Registry {
    folder: PathBuf,
    clock: Arc<dyn ClockRng>,
    settings: Settings,
    /// The devices that run the models.
    devices: Arc<[DeviceWorker]>,
    /// The device of each model.
    placement: PerModel<DeviceIndex>,
    snapshot: ArcSwap<Snapshot>,
    /// Adapters that are not in the models folder.
    registered: Mutex<BTreeMap<String, Registered>>,
    scan_lock: Mutex<()>,
    loaded: Mutex<HashMap<String, Loaded>>,
    /// Loaded models whose files on disk have changed, until their running requests end.
    stale: Mutex<Vec<Model>>,
    /// One lock for each model: one thread loads it, the others wait for the result.
    load_locks: Mutex<HashMap<String, Arc<Mutex<()>>>>,
    /// Models with a valid header that failed to load. Valid until the files change or the model is loaded.
    failed: Mutex<HashMap<String, FailedLoad>>,
    settings_files: Mutex<SettingsFiles>,
    /// The contents of the settings files.
    model_settings: ArcSwap<InstalledSettings>,
    /// The warnings about them that were logged last.
    settings_warnings: Mutex<Vec<String>>,
    /// The pinned models that cannot be loaded.
    failed_pins: Mutex<HashMap<String, FailedPin>>,
    next_key: AtomicU64,
    /// Ends the sandbox processes.
    stop: StopFlag,
}

#[derive(Default)]
struct Snapshot {
    models: BTreeMap<String, DiscoveredModel>,
    /// `None` before the first scan.
    at: Option<Duration>,
    /// When an entry of the folder was last added or removed, before the scan.
    folder_modified: Option<SystemTime>,
}

/// A failed load: its reason and its time.
struct FailedLoad {
    fingerprint: Fingerprint,
    reason: String,
    at: Duration,
}

/// A model in memory, of any kind.
type Model = Arc<dyn LoadedModel>;

/// Whether anything besides the registry holds a reference to a model. A network is also in use while adapters of it are
/// loaded.
fn is_in_use(model: &Model) -> bool {
    Arc::strong_count(model) > 1 || (!model.is_adapter() && model.network_users() > 1)
}

/// An adapter that is not in the models folder.
#[derive(Clone)]
struct Registered {
    /// The ID of its base.
    base: String,
    found: DiscoveredModel,
}

struct Loaded {
    model: Model,
    device: DeviceIndex,
    fingerprint: Fingerprint,
    last_used: Duration,
    /// When its files were last found unchanged.
    verified: Duration,
    /// The ID of its draft model.
    draft: Option<String>,
}

/// A pinned model that could not be loaded.
struct FailedPin {
    /// When it is tried again.
    retry_at: Duration,
    reason: String,
}

/// The models that may be evicted to make room for weights. Cached KV blocks always are.
#[derive(Clone, Copy)]
enum Eviction {
    /// Idle models.
    IdleModels,
    /// No models.
    Never,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Registry {
    pub(crate) fn new(
        settings: Settings,
        devices: Arc<[DeviceWorker]>,
        placement: PerModel<DeviceIndex>,
        clock: Arc<dyn ClockRng>,
    ) -> Self {
        let registry = Self {
            folder: settings.models_dir.clone(),
            settings_files: Mutex::new(SettingsFiles::new(settings.models_dir.clone())),
            model_settings: ArcSwap::default(),
            settings_warnings: Mutex::default(),
            failed_pins: Mutex::default(),
            clock,
            settings,
            devices,
            placement,
            snapshot: ArcSwap::default(),
            registered: Mutex::default(),
            scan_lock: Mutex::default(),
            loaded: Mutex::default(),
            stale: Mutex::default(),
            load_locks: Mutex::default(),
            failed: Mutex::default(),
            next_key: AtomicU64::new(1),
            stop: StopFlag::default(),
        };
        registry.read_settings();
        registry
    }

    /// The absolute path of the models folder.
    pub fn folder(&self) -> PathBuf {
        std::path::absolute(&self.folder).unwrap_or_else(|_| self.folder.clone())
    }

    /// The number of choices that each device generates at once.
    pub(crate) fn max_running(&self) -> usize {
        self.settings.max_running
    }

    /// Every model on disk, sorted by ID. Scans the folder if the last scan is more than a second old, or if entries were added or
    /// removed since.
    pub fn list(&self) -> Vec<ModelInfo> {
        self.refresh();
        let snapshot = self.snapshot.load();
        snapshot.models.values().map(|found| self.describe(found)).collect()
    }

    /// The current state of one model. Checks its files, and scans the folder if they have changed; for an unknown ID
    /// at most once a second, unless entries were added or removed.
    pub fn find(&self, id: &str) -> Option<ModelInfo> {
        self.lookup_on_disk(id).map(|found| self.describe(&found))
    }

    /// The settings, adapted to the device of models that are not named with one of their own.
    pub fn default_device_settings(&self) -> Settings {
        self.settings.clone().for_default_device()
    }

    /// The device of a model, such as `the CPU (2 threads, avx512)`.
    pub fn describe_device(&self, id: &str) -> String {
        self.settings.devices.get(id).describe(self.settings.threads)
    }

    /// The chat template in the files of a model of the folder, as text. Reads them.
    pub fn chat_template(&self, id: &str) -> Option<String> {
        let found = self.lookup_on_disk(id)?;
        let read = || preprocessor::chat_template(&found.base().unwrap_or(&found).path);
        catch_load_panic(read).ok().flatten()
    }

    fn lookup_on_disk(&self, id: &str) -> Option<DiscoveredModel> {
        let snapshot = self.snapshot.load_full();
        match snapshot.models.get(id) {
            Some(found) if found.lacks_base() => self.refresh(),
            Some(found) if found.is_current() => return Some(found.clone()),
            Some(_) => self.refresh_after(&snapshot),
            None => self.refresh(),
        }
        self.snapshot.load().models.get(id).cloned()
    }

    /// The number of the device that runs the model.
    fn device_index(&self, id: &str) -> DeviceIndex {
        self.placement.of(id)
    }

    fn describe(&self, found: &DiscoveredModel) -> ModelInfo {
        let mut info = found.info.clone();
        if info.is_upstream() {
            // There is nothing to load.
            return ModelInfo { loaded: info.problem.is_none(), ..info };
        }
        let network = info.base.as_ref().unwrap_or(&info.id);
        if let Some(device) = self.devices.get(self.device_index(network)) {
            info.device = Some(device.name().to_owned());
            info.dequantized =
                info.quantization.as_deref().is_some_and(|quantization| device.backend.dequantizes(quantization));
        }
        self.describe_settings(&mut info);
        if info.problem.is_none() {
            info.problem = self.load_failure(found);
        }
        info
    }

    /// The reason of the last failed load.
    fn load_failure(&self, found: &DiscoveredModel) -> Option<String> {
        self.load_failure_within(found, Duration::MAX)
    }

    /// Why the model cannot be loaded now. Usually its files are the cause, and only a change of them helps. A sandbox
    /// that was not started, was killed or ran out of time has another cause, and so has a lack of file descriptors.
    /// Loading is therefore tried again after [`RETRY_FAILED`].
    fn recent_load_failure(&self, found: &DiscoveredModel) -> Option<String> {
        self.load_failure_within(found, RETRY_FAILED)
    }

    fn load_failure_within(&self, found: &DiscoveredModel, age: Duration) -> Option<String> {
        let (failed, now) = (lock(&self.failed), self.clock.uptime());
        let failure = failed.get(&found.info.id).filter(|failure| failure.fingerprint == found.fingerprint)?;
        (now.saturating_sub(failure.at) < age).then(|| failure.reason.clone())
    }

    fn refresh(&self) {
        let _one = lock(&self.scan_lock);
        let old = self.snapshot.load_full();
        let now = self.clock.uptime();
        let is_old = old.at.is_none_or(|at| now.saturating_sub(at) >= MAX_AGE);
        // A model that was installed a moment ago is found at once.
        if is_old || self.folder_modified() != old.folder_modified {
            self.scan(&old, now);
        }
    }

    /// Scans the folder because `seen` is out of date, unless another thread has already done so.
    fn refresh_after(&self, seen: &Arc<Snapshot>) {
        let _one = lock(&self.scan_lock);
        let old = self.snapshot.load_full();
        if Arc::ptr_eq(&old, seen) {
            self.scan(&old, self.clock.uptime());
        }
    }

    /// Scans the folder, because a model was just installed.
    pub fn rescan(&self) {
        self.refresh_after(&self.snapshot.load_full());
    }

    fn folder_modified(&self) -> Option<SystemTime> {
        std::fs::metadata(&self.folder).and_then(|folder| folder.modified()).ok()
    }

    fn scan(&self, old: &Snapshot, now: Duration) {
        let folder_modified = self.folder_modified();
        let models = discovery::candidates(&self.folder).into_iter().map(|candidate| {
            let known = old.models.get(&candidate.id).filter(|found| found.matches(&candidate));
            (candidate.id.clone(), known.cloned().unwrap_or_else(|| candidate.inspect()))
        });
        let found: BTreeMap<_, _> = models.collect();
        let mut models = found.clone();
        models.values_mut().for_each(|model| model.find_base(&found));
        let registered: Vec<String> = lock(&self.registered).keys().cloned().collect();
        let is_outdated = |(id, entry): (&String, &Loaded)| match models.get(id) {
            Some(found) if found.fingerprint == entry.fingerprint => None,
            // It becomes stale with its base.
            None if registered.contains(id) => None,
            _ => Some(id.clone()),
        };
        let outdated: Vec<_> = lock(&self.loaded).iter().filter_map(is_outdated).collect();
        self.snapshot.store(Arc::new(Snapshot { models, at: Some(now), folder_modified }));
        outdated.iter().for_each(|id| self.mark_stale(id));
    }

    /// Stops handing out a model whose files have changed, and its adapters. Its memory is freed when its last request
    /// ends.
    fn mark_stale(&self, id: &str) {
        tracing::info!(model = id, "the files of a loaded model have changed or are gone");
        self.detach_draft_from_all(id);
        self.detach_draft_model(id, None);
        let mut loaded = lock(&self.loaded);
        let mut removed = Vec::new();
        for adapter in loaded_adapters(&loaded, id) {
            removed.extend(loaded.remove(&adapter));
        }
        removed.extend(loaded.remove(id));
        drop(loaded);
        lock(&self.stale).extend(removed.into_iter().map(|removed| removed.model));
        self.drop_stale(None);
    }

    /// Drops the stale models that are no longer in use, of one device or of all. `false`: there was none.
    fn drop_stale(&self, device: Option<DeviceIndex>) -> bool {
        let on_device = |model: &Model| device.is_none_or(|device| model.device() == device);
        let unused: Vec<Model> =
            lock(&self.stale).extract_if(.., |model| on_device(model) && !is_in_use(model)).collect();
        unused.iter().filter_map(|model| model.downcast_ref()).for_each(|model| self.forget(model));
        !unused.is_empty()
    }

    /// Drops the prefix cache of a network that is no longer loaded.
    fn forget(&self, model: &TextModel) {
        if model.adapter().is_none()
            && let Some(texts) = self.texts(model.device)
        {
            texts.remove_model(model.key);
        }
    }

    /// The queue of text generation of a device.
    fn texts(&self, device: DeviceIndex) -> Option<&TextQueue> {
        self.devices.get(device)?.queues.get()
    }

    /// The chat model if it is loaded and its files were checked recently. Does not access the disk.
    pub fn loaded_model(&self, id: &str) -> Option<Arc<TextModel>> {
        let fingerprint = self.snapshot.load().models.get(id)?.fingerprint;
        let now = self.clock.uptime();
        let mut loaded = lock(&self.loaded);
        let entry = loaded.get_mut(id).filter(|entry| entry.fingerprint == fingerprint)?;
        (now.saturating_sub(entry.verified) < MAX_AGE).then_some(())?;
        entry.last_used = now;
        kinds::downcast(Arc::clone(&entry.model))
    }

    /// Loads the chat model. Blocks while its weights and those of its draft model are read.
    pub fn load(&self, id: &str) -> Result<Arc<TextModel>, LoadError> {
        self.load_found(&self.lookup_on_disk(id).ok_or(LoadError::NotFound)?)
    }

    /// Like [`Self::load`]; the model may also be an adapter that the project has registered.
    pub fn load_for(&self, id: &str, tenant: u128) -> Result<Arc<TextModel>, LoadError> {
        self.load_found(&self.lookup_for(id, tenant)?)
    }

    /// A model of the folder, or an adapter that the project has registered.
    fn lookup_for(&self, id: &str, tenant: Tenant) -> Result<DiscoveredModel, LoadError> {
        let found = self.lookup_registered(id).or_else(|| self.lookup_on_disk(id)).ok_or(LoadError::NotFound)?;
        let owner = found.adapter.as_ref().and_then(|adapter| adapter.owner);
        match owner.is_none_or(|owner| owner == tenant) {
            true => Ok(found),
            false => Err(LoadError::NotFound),
        }
    }

    fn load_found(&self, found: &DiscoveredModel) -> Result<Arc<TextModel>, LoadError> {
        let model = self.load_as(found, TextModel::KINDS, Eviction::IdleModels)?;
        self.attach_draft_model(&model, found.base().unwrap_or(found));
        Ok(model)
    }

    /// The chat model `id` of the folder, unless it is an adapter.
    fn find_base(&self, id: &str) -> Result<DiscoveredModel, LoadError> {
        let found = self.lookup_on_disk(id).ok_or(LoadError::NotFound)?;
        let unusable = |reason: String| LoadError::Unusable { id: id.to_owned(), reason };
        match found.info.problem.clone() {
            Some(problem) => Err(unusable(problem)),
            None if found.info.kind != ModelKind::Text => Err(found.wrong_kind(ModelKind::Text)),
            None if found.info.is_upstream() => Err(LoadError::Upstream { id: id.to_owned() }),
            None if found.adapter.is_some() => {
                Err(unusable("it is an adapter itself; train its base model".to_owned()))
            }
            None => Ok(found),
        }
    }

    /// Loads a model of kind `M` that is in the models folder. Blocks while its weights are read.
    pub fn load_model<M: kinds::Model>(&self, id: &str) -> Result<Arc<M>, LoadError> {
        self.load_as(&self.lookup_on_disk(id).ok_or(LoadError::NotFound)?, M::KINDS, Eviction::IdleModels)
    }

    /// Like [`Self::load_model`], for encoders of this kind: [`ModelKind::Embedding`], [`ModelKind::Reranker`] or
    /// [`ModelKind::Classifier`].
    pub fn load_encoder(&self, id: &str, kind: ModelKind) -> Result<Arc<EncoderModel>, LoadError> {
        self.load_as(&self.lookup_on_disk(id).ok_or(LoadError::NotFound)?, &[kind], Eviction::IdleModels)
    }

    /// The voices of a speech model. Reads the names of its files; does not load it.
    pub fn voices(&self, id: &str) -> Result<Vec<VoiceInfo>, LoadError> {
        let found = self.lookup_on_disk(id).ok_or(LoadError::NotFound)?;
        if found.info.kind != ModelKind::Speech {
            return Err(found.wrong_kind(ModelKind::Speech));
        }
        if found.upstream.is_some() {
            return Err(LoadError::Upstream { id: id.to_owned() });
        }
        Ok(found.path.parent().map(VoiceInfo::list).unwrap_or_default())
    }

    /// Loads a model that must be of one of these kinds.
    fn load_as<M: LoadedModel>(
        &self,
        found: &DiscoveredModel,
        kinds: &[ModelKind],
        eviction: Eviction,
    ) -> Result<Arc<M>, LoadError> {
        let wrong_kind = || found.wrong_kind(kinds.first().copied().unwrap_or(ModelKind::Unknown));
        if !kinds.contains(&found.info.kind) {
            return Err(wrong_kind());
        }
        kinds::downcast(self.get_or_load(found, eviction)?).ok_or_else(wrong_kind)
    }

    /// Loads a model of any kind; it may also be an adapter that the project has registered.
    pub fn preload(&self, id: &str, tenant: u128) -> Result<(), LoadError> {
        let found = self.lookup_for(id, tenant)?;
        if found.upstream.is_some() {
            return Ok(());
        }
        if let Some(model) = self.get_or_load(&found, Eviction::IdleModels)?.downcast_ref() {
            self.attach_draft_model(model, found.base().unwrap_or(&found));
        }
        Ok(())
    }

    /// Loads a model of any kind, and the base of an adapter first.
    fn get_or_load(&self, found: &DiscoveredModel, eviction: Eviction) -> Result<Model, LoadError> {
        if let Some(adapter) = &found.adapter {
            return self.get_or_load_adapter(found, adapter, eviction);
        }
        let id = &found.info.id;
        if let Some(model) = self.get_loaded(id, found.fingerprint) {
            return Ok(model);
        }
        let load_lock = Arc::clone(lock(&self.load_locks).entry(id.to_owned()).or_default());
        let _one = lock(&load_lock);
        match self.get_loaded(id, found.fingerprint) {
            Some(model) => Ok(model),
            None => self.load_checkpoint(found, eviction),
        }
    }

    fn get_loaded(&self, id: &str, fingerprint: Fingerprint) -> Option<Model> {
        self.drop_stale(None);
        let now = self.clock.uptime();
        let mut loaded = lock(&self.loaded);
        let entry = loaded.get_mut(id).filter(|entry| entry.fingerprint == fingerprint)?;
        (entry.last_used, entry.verified) = (now, now);
        Some(entry.model.clone())
    }

    fn load_checkpoint(&self, found: &DiscoveredModel, eviction: Eviction) -> Result<Model, LoadError> {
        let id = &found.info.id;
        if let Some(reason) = found.info.problem.clone().or_else(|| self.recent_load_failure(found)) {
            return Err(LoadError::Unusable { id: id.clone(), reason });
        }
        if found.upstream.is_some() {
            return Err(LoadError::Upstream { id: id.clone() });
        }
        let broken = |reason: String| self.record_failure(found, reason);
        let Some(device) = self.devices.get(self.device_index(id)) else {
            return Err(broken("its device does not exist".to_owned()));
        };
        let Some(kind) = Kind::find(found.info.kind) else {
            return Err(broken(format!("the architecture {} is not supported", found.info.architecture)));
        };
        let (runtime, isolation) = (&device.runtime, self.isolation());
        let source = LoadSource {
            id,
            path: &found.path,
            device: runtime.device.index,
            options: LoadOptions { precision: self.settings.precisions.of(id), mtp: runtime.settings.uses_mtp(id) },
            isolation: &isolation,
            key: self.next_key.fetch_add(1, Ordering::Relaxed),
        };
        let lease = |need: &MemoryNeed| self.lease(device, need.weights + need.loading, need.scratch, eviction);
        let hooks = LoadHooks { lease: &lease, broken: &broken };
        let model = (kind.load)(&source, &device.backend, &runtime.settings, &hooks)?;
        self.insert(found, &model);
        Ok(model)
    }

    /// Remembers why a model cannot be loaded.
    fn record_failure(&self, found: &DiscoveredModel, reason: String) -> LoadError {
        let id = found.info.id.clone();
        let failure = FailedLoad { fingerprint: found.fingerprint, reason: reason.clone(), at: self.clock.uptime() };
        lock(&self.failed).insert(id.clone(), failure);
        LoadError::Unusable { id, reason }
    }

    /// Ends the processes that prepare requests, and starts no new ones.
    pub(super) fn stop_preprocessing(&self) {
        self.stop.set();
    }

    fn isolation(&self) -> Isolation {
        let (program, clock) = (self.settings.sandbox.clone(), Arc::clone(&self.clock));
        Isolation { program, clock, stop: self.stop.clone() }
    }

    fn insert(&self, found: &DiscoveredModel, model: &Model) {
        let now = self.clock.uptime();
        let entry = Loaded {
            model: model.clone(),
            device: model.device(),
            fingerprint: found.fingerprint,
            last_used: now,
            verified: now,
            draft: None,
        };
        lock(&self.failed).remove(&found.info.id);
        let former = lock(&self.loaded).insert(found.info.id.clone(), entry);
        lock(&self.stale).extend(former.map(|former| former.model));
    }

    /// The loaded networks of chat models. Their adapters are left out.
    pub(crate) fn loaded_networks(&self) -> Vec<Arc<TextModel>> {
        let loaded = lock(&self.loaded);
        let models = loaded.values().filter_map(|entry| kinds::downcast::<TextModel>(Arc::clone(&entry.model)));
        models.filter(|model| model.adapter().is_none()).collect()
    }

    /// Unloads a model unless it is in use. Succeeds if it is not loaded. Unloads idle adapters of the model first.
    pub fn unload(&self, id: &str) -> Result<(), InUse> {
        self.detach_draft_from_all(id);
        let mut loaded = lock(&self.loaded);
        // Only the registry hands out new references, and it is locked: a count of one stays one.
        let adapters = loaded_adapters(&loaded, id);
        let has_users = |id: &str| loaded.get(id).is_some_and(|entry| Arc::strong_count(&entry.model) > 1);
        if has_users(id) || adapters.iter().any(|id| has_users(id)) {
            return Err(InUse);
        }
        adapters.iter().for_each(|id| drop(loaded.remove(id)));
        // Replaced adapters may still be in use.
        if loaded.get(id).is_some_and(|entry| is_in_use(&entry.model)) {
            return Err(InUse);
        }
        let removed = loaded.remove(id);
        drop(loaded);
        if let Some(model) = removed.as_ref().and_then(|removed| removed.model.downcast_ref::<TextModel>())
            && model.adapter().is_none()
        {
            model.draft_slot.unload(None);
            self.forget(model);
        }
        Ok(())
    }
}

/// The IDs of the loaded adapters of a network.
fn loaded_adapters(loaded: &HashMap<String, Loaded>, id: &str) -> Vec<String> {
    let Some(Loaded { model: network, .. }) = loaded.get(id).filter(|entry| !entry.model.is_adapter()) else {
        return Vec::new();
    };
    let is_adapter = |model: &Model| model.is_adapter() && model.shares_network_with(&**network);
    loaded.iter().filter(|(_, entry)| is_adapter(&entry.model)).map(|(id, _)| id.clone()).collect()
}

impl std::fmt::Debug for Registry {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Registry").field("folder", &self.folder).finish_non_exhaustive()
    }
}
