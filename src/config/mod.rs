//! Arguments, variables and the configuration file become one validated [`Config`].
//!
//! The arguments are the schema: `keys` names the key of each argument in the file, and the values of a file become the
//! defaults of the arguments. Flags, variables and the file are therefore read by the same parsers, and a flag takes
//! precedence over a variable, a variable over the file, and the file over the built-in default.
//!
//! A separate structure for the file would repeat all settings, and could drift from them. The price: clap's `requires`
//! and `conflicts_with` do not see defaults, so [`Config::new`] checks what depends on another setting, and a switch
//! that the file sets is unset only by its variable.

mod arguments;
mod choices;
mod defaults;
mod effective;
mod file;
mod keys;
mod parsers;
mod template;
mod values;

use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::time::Duration;

pub use self::arguments::{ComputeArgs, DEFAULT_LISTEN, DEFAULT_MODELS, DataPaths, DiskArgs, ServeArgs, StoreArgs};
pub use self::choices::{DraftModel, KvType, LogFormat, LogLevel, ModelDevice, ModelPrecision, Precision};
pub use self::defaults::with_defaults;
pub use self::effective::{Effective, ValueOrigin, effective};
pub use self::file::{BadFile, ConfigFile, DEFAULT_FILE, Setting, load};
pub use self::keys::{Applies, KEYS, Key};
pub(crate) use self::parsers::parse_listen;
pub use self::parsers::parse_size;
pub use self::template::template;
pub use self::values::{settings_command, settings_from};
use crate::hub::HubSettings;
use crate::ip_network::Network;
use crate::origin::Origin;
use crate::storage::PostgresLocation;

/// Connections of a file that is pulled over the API.
const PULL_CONNECTIONS: usize = 4;

/// Source of the TLS certificate.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Tls {
    Off,
    Files { cert: PathBuf, key: PathBuf },
    SelfSigned,
}

impl Tls {
    fn new(args: &ServeArgs) -> Result<Self, BadConfig> {
        match (&args.tls_cert, &args.tls_key, args.tls_self_signed) {
            (Some(_), _, true) | (_, Some(_), true) => Err(BadConfig::TwoCertificates),
            (Some(cert), Some(key), false) => Ok(Self::Files { cert: cert.clone(), key: key.clone() }),
            (Some(_), None, false) => Err(BadConfig::NoTlsKey),
            (None, Some(_), false) => Err(BadConfig::NoTlsCert),
            (None, None, true) => Ok(Self::SelfSigned),
            (None, None, false) => Ok(Self::Off),
        }
    }
}

/// The validated settings of `serve`.
#[derive(Clone, Debug)]
pub struct Config {
    pub paths: DataPaths,
    /// The database of the store, if it is not in the data folder.
    pub store: Option<PostgresLocation>,
    pub listen: SocketAddr,
    pub threads: usize,
    pub memory: u64,
    pub kv_type: KvType,
    /// Max bytes of the prefix cache on disk. `None`: there is none.
    pub prefix_cache_disk: Option<u64>,
    pub max_running: usize,
    pub max_queued: usize,
    pub speculate: bool,
    pub draft_model: Vec<DraftModel>,
    pub precision: Vec<ModelPrecision>,
    pub device: Vec<ModelDevice>,
    pub strict_schemas: bool,
    /// Sends the envelope to OpenAI's SDKs on `/v1`, too.
    pub strict_envelope: bool,
    pub ignore_unknown_fields: bool,
    pub open_metrics: bool,
    /// Whether a start without any model pulls the starter models.
    pub pull: bool,
    /// The hub from which admins may pull models over the API. `None`: they may not.
    pub api_pulls: Option<HubSettings>,
    /// How long requests are accepted after the signal to stop, while the server reports that it is not ready.
    pub stop_delay: Duration,
    /// How long a stop may take after this delay.
    pub drain: Duration,
    /// How long single requests are kept in the usage records.
    pub usage_retention: Duration,
    /// How long a signed URL of a generated image is valid.
    pub image_url_ttl: Duration,
    /// Bytes of the disk that content leaves free. `None`: a share of the disk.
    pub min_free_disk: Option<u64>,
    /// The most bytes of an audio file to transcribe.
    pub max_audio_bytes: u64,
    /// The longest audio to transcribe; seconds.
    pub max_audio_seconds: u32,
    /// Base URL for links to this server, without a trailing slash.
    pub public_url: Option<String>,
    /// Host names accepted over plain HTTP, in addition to names that cannot be registered in public DNS.
    pub allowed_hosts: Vec<String>,
    /// Origins whose pages may call the API from a browser.
    pub cors_origins: Vec<Origin>,
    /// The project of local requests without an API key, by name or ID.
    pub keyless_project: Option<String>,
    /// Proxies whose forwarded client addresses are trusted.
    pub trusted_proxies: Vec<Network>,
    pub tls: Tls,
    /// The executable for child processes that run models' tokenizers and chat templates, and decode audio. `None`:
    /// the former run in this process, and audio is refused.
    pub sandbox: Option<PathBuf>,
}

/// The arguments are contradictory or unsafe.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum BadConfig {
    #[error(
        "--listen {0} can be reached from other machines and would carry API keys in plain text. \
         Give --tls-cert and --tls-key, or --tls-self-signed, or --insecure-http if a proxy in front does TLS"
    )]
    PlainText(SocketAddr),
    #[error("tls.cert is set but tls.key is not. Give --tls-key, OUTPOST_TLS_KEY or tls.key, too")]
    NoTlsKey,
    #[error("tls.key is set but tls.cert is not. Give --tls-cert, OUTPOST_TLS_CERT or tls.cert, too")]
    NoTlsCert,
    #[error(
        "tls.self_signed and tls.cert are both set. Leave out --tls-self-signed, OUTPOST_TLS_SELF_SIGNED or \
         tls.self_signed to use the certificate in the file"
    )]
    TwoCertificates,
    #[error("{0}")]
    Store(String),
    #[error("--allow-pull: {0}")]
    Pulls(String),
}

impl Config {
    /// # Errors
    /// If arguments contradict each other, or would send API keys in plain text over a network.
    pub fn new(paths: DataPaths, args: &ServeArgs) -> Result<Self, BadConfig> {
        let tls = Tls::new(args)?;
        if tls == Tls::Off && !is_loopback(args.listen.ip()) && !args.insecure_http {
            return Err(BadConfig::PlainText(args.listen));
        }
        let store = paths.store.location().map_err(BadConfig::Store)?;
        let hub =
            || HubSettings::from_env(args.pull_allowed_hosts.clone(), PULL_CONNECTIONS).map(HubSettings::for_server);
        let api_pulls = args.allow_pull.then(hub).transpose().map_err(|error| BadConfig::Pulls(error.to_string()))?;
        Ok(Self {
            paths,
            store,
            listen: args.listen,
            threads: args.compute.threads(),
            memory: args.compute.memory(),
            kv_type: args.kv_type,
            prefix_cache_disk: args.disk.prefix_cache(),
            max_running: args.max_running.into(),
            max_queued: args.max_queued.into(),
            speculate: !args.no_speculation,
            draft_model: args.draft_model.clone(),
            precision: args.precision.clone(),
            device: args.compute.device.clone(),
            strict_schemas: args.strict_schemas,
            strict_envelope: args.strict_envelope,
            ignore_unknown_fields: args.ignore_unknown_fields,
            open_metrics: args.open_metrics,
            pull: !args.no_pull,
            api_pulls,
            stop_delay: Duration::from_secs(args.stop_delay_seconds),
            drain: Duration::from_secs(args.drain_seconds),
            usage_retention: Duration::from_secs(args.usage_retention_days * 86_400),
            image_url_ttl: Duration::from_secs(args.image_url_seconds),
            min_free_disk: args.disk.min_free_disk,
            max_audio_bytes: args.max_audio_size,
            max_audio_seconds: args.max_audio_seconds,
            public_url: args.public_url.clone(),
            allowed_hosts: args.allowed_hosts.clone(),
            cors_origins: args.cors_origins.clone(),
            keyless_project: args.keyless_project.clone(),
            trusted_proxies: args.trusted_proxies.clone(),
            tls,
            sandbox: None,
        })
    }
}

fn is_loopback(ip: IpAddr) -> bool {
    ip.to_canonical().is_loopback()
}
