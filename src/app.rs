//! The composition root: opens the store, starts the engine, serves, drains.

mod failed_start;
mod model_upkeep;
mod reload;
pub mod run_record;
mod system_clock_rng;

use std::fs;
use std::io::{self, Write};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use actix_web::dev::{Server, ServerHandle};
use actix_web::rt::task::JoinHandle;
use actix_web::web::Data;
use arc_swap::ArcSwap;

use self::failed_start::DataFolderSnapshot;
use self::model_upkeep::ModelUpkeep;
pub use self::reload::{ReloadError, Reloader};
use self::run_record::RunRecord;
pub use self::system_clock_rng::SystemClockRng;
use crate::calls::{
    background::stop_signal::LoopStopper,
    batches::BatchLoop,
    conversations::context::ConversationContextLoader,
    embeddings::Embeddings,
    fine_tuning::{FineTuning, TrainingLoop, TunedModels},
    images::Images,
    model_pulls::{ModelPulls, PullLoop},
    models::Models,
    responses::background::BackgroundResponses,
    speech::Speeches,
    text::{chat::Chat, completions::Completions, generation::TextGeneration, tokenization::Tokenization},
    transcriptions::{TranscriptionSettings, Transcriptions},
    upstream::models::UpstreamModels,
};
use crate::clock_rng::ClockRng;
use crate::config::{self, ComputeArgs, Config, DraftModel, ModelDevice, ModelPrecision, Precision, Tls};
use crate::control_socket::{self, ControlSocket};
use crate::disk_space::DiskReserve;
pub use crate::engine::run_sandbox;
use crate::engine::{self, Engine};
use crate::http::Api;
use crate::http::allowed_hosts::AllowedHosts;
use crate::http::batch_requests::BatchRequests;
use crate::http::client_address::TrustedProxies;
use crate::http::connections;
use crate::http::response_budget::ResponseBudget;
use crate::http::routes::responses::BackgroundResponseCodec;
use crate::http::server;
use crate::http::tls::{Certificate, TlsError};
use crate::http::unknown_fields::UnknownFields;
use crate::ids::ProjectId;
use crate::service::Services;
use crate::service::keys::keyless;
use crate::service::keys::secret::Secret;
use crate::service::keys::setup;
use crate::service::keys::setup::AdminKey;
use crate::service::limits::Limits;
use crate::service::usage::Retention;
use crate::storage::{NewFile, OpenError, PEPPER_FILE, Store, StoreSettings, protect_secret};
use crate::upstream::{ShutdownPhase, UpstreamClient};

/// File with the first admin key, for scripts.
pub const ADMIN_KEY_FILE: &str = "admin.key";

/// Folder of the prefix cache on disk, in the data folder.
const PREFIX_CACHE_FOLDER: &str = "prefix-cache";

/// How long a server that stops still reads requests of connections that are open already.
const ANSWER_ACCEPTED: Duration = Duration::from_millis(250);

/// How long per-minute usage is kept. Hourly and daily usage is kept forever.
const MINUTE_RETENTION: Duration = Duration::from_secs(400 * 86_400);

/// Why the server could not start; the text is for the operator.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    #[error(transparent)]
    Store(#[from] OpenError),
    #[error("cannot listen on {address}: {cause}. Is another server running there? --listen takes another address")]
    Listen { address: SocketAddr, cause: io::Error },
    #[error(transparent)]
    Tls(#[from] TlsError),
    #[error("--device {0}")]
    Device(String),
    #[error("--keyless-project: {0}")]
    Keyless(crate::error::Error),
    #[error("the database could not be prepared: {0}")]
    Setup(crate::error::Error),
    #[error("{path}: {cause}")]
    File { path: PathBuf, cause: io::Error },
    #[error("the server could not start: {0}")]
    Io(#[from] io::Error),
}

/// A server that is bound and ready; [`App::run`] serves until it is told to stop.
pub struct App {
    server: Server,
    address: SocketAddr,
    certificate: Option<Arc<Certificate>>,
    /// URL of the dashboard for a browser, without a trailing slash.
    base_url: String,
    /// The devices of the models.
    device: String,
    store: Store,
    stopper: Stopper,
    training: TrainingLoop,
    batches: BatchLoop,
    background: BackgroundResponses,
    pulls: PullLoop,
    control: ControlSocket,
    retention: Arc<ArcSwap<Retention>>,
    run_record: Arc<RunRecord>,
}

/// Tells a running [`App`] to stop, from any thread.
#[derive(Clone)]
pub struct Stopper {
    api: Data<Api>,
    engine: Engine,
    upstream: UpstreamClient,
    server: ServerHandle,
    training: LoopStopper,
    batches: LoopStopper,
    background: LoopStopper,
    pulls: LoopStopper,
    /// Time from the stop until streams that still run are ended.
    drain_timeout: Duration,
}

impl App {
    /// Opens everything. A start that fails leaves nothing behind. Must be called inside an actix runtime.
    pub async fn start(config: &Config, clock_rng: Arc<dyn ClockRng>) -> Result<Self, StartError> {
        Self::start_on(None, config, clock_rng).await
    }

    /// Like [`Self::start`], on a socket that listens at the address of `config` already.
    pub async fn start_on(
        listener: Option<TcpListener>,
        config: &Config,
        clock_rng: Arc<dyn ClockRng>,
    ) -> Result<Self, StartError> {
        let prepared = prepare(config, listener)?;
        let before = DataFolderSnapshot::of(&config.paths.data);
        let started = Self::start_prepared(prepared, config, clock_rng).await;
        match started {
            // The new files are another process's.
            Err(StartError::Store(OpenError::Locked { .. })) | Ok(_) => {}
            // A database may have been filled. It needs the pepper, and its first key is nowhere else.
            Err(_) if config.store.is_some() => before.restore_except(&[PEPPER_FILE, ADMIN_KEY_FILE]).await,
            Err(_) => before.restore_except(&[]).await,
        }
        started
    }

    async fn start_prepared(
        Prepared { listener, certificate, devices }: Prepared,
        config: &Config,
        clock_rng: Arc<dyn ClockRng>,
    ) -> Result<Self, StartError> {
        let data = config.paths.data.clone();
        let settings = StoreSettings {
            dir: data.clone(),
            cache_bytes: 64 << 20,
            queue: 16_384,
            min_free_disk: config.min_free_disk,
        };
        let store = Store::open_at(settings, config.store.as_ref(), clock_rng.clone())?;
        let clock_rng = store.clock(clock_rng);
        protect_secret(&data.join(ADMIN_KEY_FILE), "make another admin key, revoke this one and delete the file");
        if let Some(project) = &config.keyless_project {
            keyless::require_project(&store, project).await.map_err(StartError::Keyless)?;
        }
        let address = listener.local_addr()?;
        let certificate = match config.tls {
            Tls::SelfSigned => Some(self_signed(&data, address)?),
            Tls::Off | Tls::Files { .. } => certificate,
        };
        let tls = certificate.as_ref().map(Certificate::server_config).transpose()?;
        let settings = engine_settings(config, devices, &store);
        for line in settings.devices.describe(settings.threads) {
            tracing::debug!("{line}");
        }
        let device = settings.devices.describe_default(settings.threads);
        let engine = Engine::start(settings, clock_rng.clone())?;
        let services = Services::start(&store, &clock_rng, config.image_url_ttl).await.map_err(StartError::Setup)?;
        let local_url = local_url(address, certificate.is_some());
        let base_url = config.public_url.clone().unwrap_or_else(|| local_url.clone());
        let sign_in = services.sign_in.clone();
        let context = control_socket::Context { store: store.clone(), sign_in, base_url: base_url.clone(), local_url };
        let control = ControlSocket::listen(&data, context)?;
        let (training, training_stopper) = TrainingLoop::new(engine.clone(), services.jobs.clone(), clock_rng.clone());
        // Late, because a database keeps them if the start fails.
        create_first_key(&store, &clock_rng, &data).await?;
        let keyless = match &config.keyless_project {
            Some(project) => Some(keyless::key(&store, &clock_rng, project).await.map_err(StartError::Keyless)?),
            None => None,
        };
        let upstream = UpstreamClient::new(clock_rng.clone());
        let state = api(config, store.clone(), (&engine, &upstream), services, clock_rng.clone());
        let api = Data::new(Api { keyless, ..state });
        let (batches, batch_stopper) = BatchLoop::new(
            engine.clone(),
            api.services.batches.clone(),
            api.services.meter.clone(),
            clock_rng.clone(),
            Box::new(BatchRequests(api.clone())),
        );
        let (background, background_stopper) = BackgroundResponses::new(
            api.services.responses.clone(),
            api.services.meter.clone(),
            api.chat.clone(),
            api.live_responses.clone(),
            clock_rng.clone(),
            Box::new(BackgroundResponseCodec(api.clone())),
        );
        let (pulls, pull_stopper) = PullLoop::new(api.pulls.clone());
        let limits = server::Limits::default();
        let connections = connections::raise_file_limit().min(limits.connections);
        let limits = server::Limits { drain: config.drain, connections, ..limits };
        let server = server::build(api.clone(), listener, tls, limits)?;
        // The last sixth of the time is for error events to reach their clients.
        let drain_timeout = config.drain * 5 / 6;
        let stopper = Stopper {
            api,
            engine,
            upstream,
            server: server.handle(),
            training: training_stopper,
            batches: batch_stopper,
            background: background_stopper,
            pulls: pull_stopper,
            drain_timeout,
        };
        let retention = Retention { raw: config.usage_retention, minutes: MINUTE_RETENTION };
        let retention = Arc::new(ArcSwap::from_pointee(retention));
        Ok(Self {
            server,
            address,
            certificate,
            base_url,
            device,
            store,
            stopper,
            training,
            batches,
            background,
            pulls,
            control,
            retention,
            run_record: Arc::new(RunRecord::begin(&data, clock_rng)),
        })
    }

    /// Checks whether [`App::start_on`] can listen, read its certificate and use the devices. Changes nothing.
    pub fn check(listener: Option<&TcpListener>, config: &Config) -> Result<(), StartError> {
        prepare(config, listener.map(TcpListener::try_clone).transpose()?).map(drop)
    }

    /// How many installed models can be used. Blocks while the models folder is read.
    pub fn count_models(&self) -> usize {
        self.stopper.api.models.count_usable_blocking()
    }

    /// The devices of the models, such as `the CPU (2 threads, avx512)`.
    pub fn device(&self) -> &str {
        &self.device
    }

    /// `http://…` or `https://…`, with the real port.
    pub fn url(&self) -> String {
        format!("{}://{}", if self.certificate.is_some() { "https" } else { "http" }, self.address)
    }

    /// A new link that signs a browser in, with a secret token.
    pub fn sign_in_link(&self) -> String {
        self.stopper.api.services.sign_in.new_link(&self.base_url)
    }

    /// Like [`Self::url`], for a client on the same machine, which cannot open an address that means all of them.
    pub fn local_url(&self) -> String {
        local_url(self.address, self.certificate.is_some())
    }

    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// The engine, for callers that watch its load.
    pub fn engine(&self) -> &Engine {
        &self.stopper.engine
    }

    pub fn stopper(&self) -> Stopper {
        self.stopper.clone()
    }

    pub fn reloader(&self) -> Reloader {
        Reloader {
            certificate: self.certificate.clone(),
            api: self.stopper.api.clone(),
            engine: self.stopper.engine.clone(),
            retention: self.retention.clone(),
        }
    }

    /// The record of this run, for the process's panic hook.
    pub fn run_record(&self) -> Arc<RunRecord> {
        self.run_record.clone()
    }

    /// Serves until [`Stopper::stop`]. When it returns, everything acknowledged is durable.
    pub async fn run(self) -> io::Result<()> {
        let api = self.stopper.api.clone();
        let upkeep = ModelUpkeep::start(&self.stopper.engine)?;
        let pruning = actix_web::rt::spawn(prune(api.clone(), self.retention));
        let sweeping = actix_web::rt::spawn(sweep(api.clone(), self.stopper.engine.clone()));
        let recording = actix_web::rt::spawn(record_run(self.run_record.clone()));
        let limits = api.services.limits.clone();
        let leasing = limits.are_shared().then(|| actix_web::rt::spawn(exchange_leases(limits)));
        let watching = self.certificate.map(|certificate| actix_web::rt::spawn(reload::watch(certificate)));
        let training = actix_web::rt::spawn(self.training.run());
        let batches = actix_web::rt::spawn(self.batches.run());
        let background = actix_web::rt::spawn(self.background.run());
        let pulls = actix_web::rt::spawn(self.pulls.run());
        let outcome = self.server.await;
        drop(upkeep);
        let stopper = &self.stopper;
        tokio::join!(
            stopper.end(&stopper.batches, batches),
            stopper.end(&stopper.background, background),
            stopper.end(&stopper.pulls, pulls)
        );
        self.stopper.end_training(training).await;
        pruning.abort();
        sweeping.abort();
        recording.abort();
        watching.inspect(|watching| watching.abort());
        leasing.inspect(|leasing| leasing.abort());
        drop(self.control);
        self.stopper.abort();
        if let Err(error) = api.services.meter.flush().await {
            tracing::error!(%error, "the usage of abandoned requests is lost");
        }
        if let Err(error) = api.services.keys.persist_time().await {
            tracing::warn!(%error, "the time of this stop is not on disk");
        }
        if let Err(error) = api.services.limits.return_leases().await {
            tracing::warn!(%error, "what this server has not used of the rate limits is lost");
        }
        self.run_record.end();
        let store = self.store;
        let closed = tokio::task::spawn_blocking(move || store.shutdown()).await;
        closed.map_err(io::Error::other)?;
        outcome
    }
}

/// Drops old usage details now and every hour.
async fn prune(api: Data<Api>, retention: Arc<ArcSwap<Retention>>) {
    let Services { maintenance, usage, .. } = &api.services;
    loop {
        if maintenance.is_due_here().await {
            match usage.prune(**retention.load()).await {
                Ok(0) => {}
                Ok(rows) => tracing::info!(rows, "usage details older than their retention are dropped"),
                Err(error) => tracing::warn!(%error, "old usage details could not be dropped"),
            }
        }
        actix_web::rt::time::sleep(Duration::from_secs(3600)).await;
    }
}

/// Records every minute that the server is still running.
async fn record_run(record: Arc<RunRecord>) {
    loop {
        actix_web::rt::time::sleep(Duration::from_secs(60)).await;
        let record = record.clone();
        if let Err(error) = tokio::task::spawn_blocking(move || record.refresh()).await {
            tracing::warn!(%error, "the record of this run is out of date");
        }
    }
}

/// Removes expired images, responses and the like, and what the engine keeps of archived projects, now and every minute.
async fn sweep(api: Data<Api>, engine: Engine) {
    let store = api.store.clone();
    loop {
        let keeping = store.clone();
        if let Err(error) = tokio::task::spawn_blocking(move || keeping.keep_space_back()).await {
            tracing::warn!(%error, "no space could be kept back for a full disk");
        }
        if api.services.maintenance.is_due_here().await {
            sweep_once(&api.services).await;
        }
        forget_archived(&api.services, &engine).await;
        actix_web::rt::time::sleep(Duration::from_secs(60)).await;
    }
}

async fn sweep_once(services: &Services) {
    log_sweep("images", services.stored_images.sweep().await);
    log_sweep("responses", services.responses.sweep().await);
    log_sweep("chat completions", services.chat_completions.sweep().await);
    if let Err(error) = services.maintenance.sweep().await {
        tracing::warn!(%error, "expired idempotency keys could not be removed");
    }
}

/// Deletes the texts of archived projects from the prefix cache on disk, which each node has for itself.
async fn forget_archived(services: &Services, engine: &Engine) {
    for tenant in engine.tenants_on_disk() {
        match services.projects.is_active(ProjectId::from_bytes(tenant.to_be_bytes())).await {
            Ok(true) => {}
            Ok(false) => engine.forget_on_disk(tenant),
            Err(error) => tracing::warn!(%error, "texts of archived projects may still be in the prefix cache on disk"),
        }
    }
}

/// `what` was to be removed, and how many were.
fn log_sweep(what: &str, swept: crate::error::Result<usize>) {
    match swept {
        Ok(0) => {}
        Ok(count) => tracing::debug!(count, "expired {what} are removed"),
        Err(error) => tracing::warn!(%error, "expired {what} could not be removed"),
    }
}

/// Exchanges debts and unused leases of rate limits with other nodes twice a second.
async fn exchange_leases(limits: Limits) {
    loop {
        actix_web::rt::time::sleep(Duration::from_millis(500)).await;
        limits.exchange_leases();
    }
}

impl Stopper {
    /// Reports that the server is not ready, and closes connections after their next response. Requests are still accepted.
    pub fn announce(&self) {
        self.api.draining.store(true, Ordering::Relaxed);
    }

    /// Stops accepting connections, answers what arrives within [`ANSWER_ACCEPTED`] on open ones, and closes these. Then
    /// drains: refuses new and queued work, gives running streams time to finish, then ends them with an error event.
    pub async fn stop(self) {
        self.announce();
        // Connections that are open already get an answer. New ones wait in the queue of the socket, which outlives this
        // process if systemd holds the socket.
        self.server.pause().await;
        actix_web::rt::time::sleep(ANSWER_ACCEPTED).await;
        self.training.stop();
        self.batches.stop();
        self.background.stop();
        self.pulls.stop();
        self.engine.drain();
        self.upstream.advance(ShutdownPhase::Draining);
        let gentle = self.server.stop(true);
        let cut = async {
            actix_web::rt::time::sleep(self.drain_timeout).await;
            self.abort();
            std::future::pending::<()>().await;
        };
        tokio::select! {
            () = gentle => {}
            () = cut => {}
        }
    }

    /// Ends everything that still runs.
    fn abort(&self) {
        self.engine.abort();
        self.api.transcriptions.abort();
        self.upstream.advance(ShutdownPhase::Aborting);
    }

    /// Gives a loop time to store results. Work without a stored result begins again after the next start.
    async fn end(&self, stopper: &LoopStopper, mut running: JoinHandle<()>) {
        stopper.stop();
        if tokio::time::timeout(self.drain_timeout, &mut running).await.is_err() {
            running.abort();
        }
    }

    /// Gives the training time to save its state, then ends it. The next start resumes it from there.
    async fn end_training(&self, mut training: JoinHandle<()>) {
        self.training.stop();
        if tokio::time::timeout(self.drain_timeout, &mut training).await.is_err() {
            self.engine.abort();
            // It ends with the engine.
            let _ = training.await;
        }
    }
}

fn listen(address: SocketAddr) -> Result<TcpListener, StartError> {
    TcpListener::bind(address).map_err(|cause| StartError::Listen { address, cause })
}

/// The URL of a server for clients on the same machine.
fn local_url(address: SocketAddr, is_secure: bool) -> String {
    let ip = match address.ip() {
        IpAddr::V4(ip) if ip.is_unspecified() => IpAddr::V4(Ipv4Addr::LOCALHOST),
        IpAddr::V6(ip) if ip.is_unspecified() => IpAddr::V6(Ipv6Addr::LOCALHOST),
        ip => ip,
    };
    let scheme = if is_secure { "https" } else { "http" };
    format!("{scheme}://{}", SocketAddr::new(ip, address.port()))
}

fn engine_settings(config: &Config, devices: engine::Devices, store: &Store) -> engine::Settings {
    let defaults = engine::Settings::new(config.paths.models.clone(), config.memory);
    let kv_type = match config.kv_type {
        config::KvType::F16 => engine::KvType::F16,
        config::KvType::Q8 => engine::KvType::Q8,
        config::KvType::F32 => engine::KvType::F32,
    };
    engine::Settings {
        threads: config.threads,
        max_running: config.max_running,
        max_queued_requests: config.max_queued,
        kv_type,
        prefix_disk: prefix_disk(config, store),
        speculate: config.speculate,
        drafts: drafts(&config.draft_model),
        precisions: precisions(&config.precision),
        devices,
        sandbox: config.sandbox.clone(),
        ..defaults
    }
}

/// Deletes the files of an earlier run if there is no prefix cache on disk any more.
fn prefix_disk(config: &Config, store: &Store) -> Option<engine::PrefixDiskSettings> {
    let folder = config.paths.data.join(PREFIX_CACHE_FOLDER);
    if config.prefix_cache_disk.is_none()
        && let Err(error) = fs::remove_dir_all(&folder)
        && error.kind() != io::ErrorKind::NotFound
    {
        tracing::warn!(%error, path = %folder.display(), "the prefix cache on disk, which is off, cannot be deleted");
    }
    Some(engine::PrefixDiskSettings {
        folder,
        max_bytes: config.prefix_cache_disk?,
        key: engine::PrefixDiskKey(store.pepper().prefix_cache_key()),
        reserve: DiskReserve::new(&config.paths.data, config.min_free_disk),
    })
}

impl From<Precision> for engine::Precision {
    fn from(precision: Precision) -> Self {
        match precision {
            Precision::F32 => Self::Full,
            Precision::Bf16 => Self::Bf16,
            Precision::Int8 => Self::Int8,
        }
    }
}

fn precisions(choices: &[ModelPrecision]) -> engine::Precisions {
    choices.iter().map(|choice| (choice.model.clone(), choice.precision.into())).collect()
}

fn devices(choices: &[ModelDevice]) -> Result<engine::Devices, StartError> {
    let choices = choices.iter().map(|choice| (choice.model.clone(), choice.device));
    engine::Devices::select(choices).map_err(StartError::Device)
}

/// The settings of a command that uses models without a server.
///
/// # Errors
/// If a device cannot be used.
pub fn command_settings(models: PathBuf, compute: &ComputeArgs) -> Result<engine::Settings, StartError> {
    let (threads, devices) = (compute.threads(), devices(&compute.device)?);
    Ok(engine::Settings { threads, devices, ..engine::Settings::new(models, compute.memory()) })
}

/// Starts an engine without a server, for a training or a measurement. It does not speculate.
pub fn start_engine(
    models: PathBuf,
    compute: &ComputeArgs,
    sandbox: PathBuf,
    clock_rng: Arc<dyn ClockRng>,
) -> Result<Engine, StartError> {
    let settings = engine::Settings {
        sandbox: Some(sandbox),
        // A training does not use draft models, and a measurement must not depend on how predictable a text is.
        speculate: false,
        drafts: engine::Drafts { auto: false, ..engine::Drafts::default() },
        ..command_settings(models, compute)?
    };
    Ok(Engine::start(settings, clock_rng)?)
}

/// For models that are not named, the last `auto` or `none` applies.
fn drafts(choices: &[DraftModel]) -> engine::Drafts {
    choices.iter().fold(engine::Drafts::default(), |mut drafts, choice| {
        match choice {
            DraftModel::Auto => drafts.auto = true,
            DraftModel::None => drafts.auto = false,
            DraftModel::Named { target, draft } => drop(drafts.pairs.insert(target.clone(), draft.clone())),
        }
        drafts
    })
}

fn api(
    config: &Config,
    store: Store,
    (engine, upstream): (&Engine, &UpstreamClient),
    services: Services,
    clock_rng: Arc<dyn ClockRng>,
) -> Api {
    let context_loader =
        ConversationContextLoader { conversations: services.conversations.clone(), agents: services.agents.clone() };
    let tuned = TunedModels::new(engine.clone(), services.jobs.clone());
    let models = Models::new(engine.clone(), tuned.clone(), upstream.clone(), services.model_log.clone());
    let disk = DiskReserve::new(&config.paths.data, config.min_free_disk);
    let pulls = ModelPulls::new(
        config.api_pulls.clone(),
        engine.clone(),
        services.pull_log.clone(),
        clock_rng.clone(),
        disk.at(&config.paths.models),
    );
    let upstream_models = UpstreamModels::new(engine.clone(), upstream.clone());
    let generation = TextGeneration::new(engine.clone(), clock_rng.clone(), tuned, upstream_models.clone());
    Api {
        fine_tuning: FineTuning::new(services.jobs.clone(), models.clone()),
        models,
        pulls,
        chat: Arc::new(Chat::new(generation.clone(), context_loader, config.strict_schemas)),
        completions: Completions::new(generation.clone()),
        tokenization: Tokenization::new(generation),
        embeddings: Embeddings::new(engine.clone(), clock_rng.clone(), upstream_models.clone()),
        images: Images::new(engine.clone(), clock_rng.clone(), upstream_models.clone()),
        transcriptions: Transcriptions::new(
            engine.clone(),
            clock_rng.clone(),
            transcription_settings(config, &disk),
            upstream_models.clone(),
        ),
        speeches: Speeches::new(engine.clone(), upstream_models),
        live_responses: Arc::default(),
        response_budget: ResponseBudget::of_memory(config.memory),
        hosts: Data::new(hosts(config)),
        origins: ArcSwap::from_pointee(config.cors_origins.clone()),
        proxies: TrustedProxies::new(config.trusted_proxies.clone()),
        public_url: config.public_url.clone(),
        keyless: None,
        services,
        store,
        disk,
        clock_rng,
        unknown_fields: match config.ignore_unknown_fields {
            true => UnknownFields::Ignored,
            false => UnknownFields::Refused,
        },
        strict_envelope: config.strict_envelope,
        open_metrics: config.open_metrics,
        draining: AtomicBool::new(false),
    }
}

fn transcription_settings(config: &Config, disk: &DiskReserve) -> TranscriptionSettings {
    TranscriptionSettings {
        program: config.sandbox.clone(),
        folder: config.paths.data.clone(),
        reserve: disk.clone(),
        max_bytes: config.max_audio_bytes,
        max_seconds: config.max_audio_seconds,
    }
}

/// With TLS, the certificate proves the name.
fn hosts(config: &Config) -> AllowedHosts {
    match config.tls {
        Tls::Off => AllowedHosts::named(&config.allowed_hosts, config.public_url.as_deref()),
        Tls::Files { .. } | Tls::SelfSigned => AllowedHosts::any(),
    }
}

/// Resources that are opened before the data folder is touched, because that can fail.
struct Prepared {
    listener: TcpListener,
    /// Read from the configured files; `None` without TLS or with a self-signed certificate.
    certificate: Option<Arc<Certificate>>,
    devices: engine::Devices,
}

/// Binds the address, unless a socket is given, reads the certificate's files and finds the devices.
fn prepare(config: &Config, listener: Option<TcpListener>) -> Result<Prepared, StartError> {
    let certificate = match &config.tls {
        Tls::Files { cert, key } => Some(Certificate::from_files(cert, key)?),
        Tls::Off | Tls::SelfSigned => None,
    };
    let listener = listener.map_or_else(|| listen(config.listen), Ok)?;
    Ok(Prepared { listener, certificate, devices: devices(&config.device)? })
}

/// The certificate in the data folder; the first start creates it.
fn self_signed(data: &Path, address: SocketAddr) -> Result<Arc<Certificate>, StartError> {
    let names = vec!["localhost".to_owned(), "127.0.0.1".to_owned(), "::1".to_owned(), address.ip().to_string()];
    Ok(Certificate::self_signed(data, names)?)
}

/// Creates the first project and key in an empty store. The secret is in its file before the store has the key, because a
/// start that is killed in between must not leave a key whose secret is lost.
async fn create_first_key(store: &Store, clock_rng: &Arc<dyn ClockRng>, data: &Path) -> Result<(), StartError> {
    if !setup::is_first_start(store).await.map_err(StartError::Setup)? {
        return Ok(());
    }
    let key = AdminKey::generate(clock_rng);
    let path = data.join(ADMIN_KEY_FILE);
    let in_file = |cause| StartError::File { path: path.clone(), cause };
    write_secret(&path, key.secret()).map_err(in_file)?;
    match setup::first_start_with(store, clock_rng, key).await.map_err(StartError::Setup)? {
        Some(_) => Ok(()),
        // Another node was faster, and its key is the first one.
        None => fs::remove_file(&path).map_err(in_file),
    }
}

/// Writes a secret to a file that only this user can read, instead of an earlier one.
fn write_secret(path: &Path, secret: &Secret) -> io::Result<()> {
    match fs::remove_file(path) {
        Err(cause) if cause.kind() != io::ErrorKind::NotFound => return Err(cause),
        _ => {}
    }
    let mut file = NewFile::create(path)?;
    writeln!(file, "{}", secret.expose())?;
    file.publish()
}
