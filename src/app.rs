//! The composition root: opens the store, starts the engine, serves, drains.

mod engine_settings;
mod failed_start;
mod model_upkeep;
mod periodic_work;
mod reload;
pub mod run_record;
mod start_error;
mod system_clock_rng;

use std::fs;
use std::io::{self, Write};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use actix_web::dev::{Server, ServerHandle};
use actix_web::rt::task::JoinHandle;
use actix_web::web::Data;
use arc_swap::ArcSwap;

pub use self::engine_settings::{PREFIX_CACHE_FOLDER, command_settings, start_engine};
use self::engine_settings::{delete_unused_prefix_cache, engine_settings, select_devices};
use self::failed_start::DataFolderSnapshot;
use self::model_upkeep::ModelUpkeep;
use self::periodic_work::{exchange_leases, prune, record_run, sweep};
pub use self::reload::{ReloadError, Reloader};
use self::run_record::RunRecord;
pub use self::start_error::StartError;
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
use crate::config::{Config, Tls};
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
use crate::http::tls::Certificate;
use crate::http::unknown_fields::UnknownFields;
use crate::service::Services;
use crate::service::keys::keyless;
use crate::service::keys::secret::Secret;
use crate::service::keys::setup;
use crate::service::keys::setup::AdminKey;
use crate::service::usage::Retention;
use crate::storage::{NewFile, OpenError, PEPPER_FILE, Store, StoreSettings, protect_secret};
use crate::upstream::{ShutdownPhase, UpstreamClient};

/// File with the first admin key, for scripts.
pub const ADMIN_KEY_FILE: &str = "admin.key";

/// How long a server that stops still reads requests of connections that are open already.
const ANSWER_ACCEPTED: Duration = Duration::from_millis(250);

/// How long per-minute usage is kept. Hourly and daily usage is kept forever.
const MINUTE_RETENTION: Duration = Duration::from_secs(400 * 86_400);

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
        delete_unused_prefix_cache(config);
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
    Ok(Prepared { listener, certificate, devices: select_devices(&config.device)? })
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
