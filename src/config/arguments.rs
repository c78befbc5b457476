//! The arguments of `outpost serve` and of the commands that share some of them. Each has a variable and a key of the
//! configuration file.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use clap::Args;

use super::choices::{DraftModel, KvType, LogFormat, LogLevel, ModelDevice, ModelPrecision};
use super::parsers::{
    parse_device, parse_draft, parse_host, parse_listen, parse_precision, parse_public_url, parse_size,
};
use crate::download::AllowedHost;
use crate::ip_network::Network;
use crate::origin::Origin;
use crate::storage::{PostgresLocation, PostgresSettings};
use crate::system_memory::SystemMemory;

pub const DEFAULT_MODELS: &str = "./models";
pub const DEFAULT_LISTEN: &str = "127.0.0.1:8080";

/// Data and models folders; every subcommand takes these.
#[derive(Args, Clone, Debug)]
pub struct DataPaths {
    /// Folder of the database, the admin key and the server's secrets
    #[arg(long, global = true, env = "OUTPOST_DATA", default_value = "./data", value_name = "DIR")]
    pub data: PathBuf,
    /// Folder of the models
    #[arg(long, global = true, env = "OUTPOST_MODELS", default_value = DEFAULT_MODELS, value_name = "DIR")]
    pub models: PathBuf,
    #[command(flatten)]
    pub store: StoreArgs,
}

/// Where the store is, if it is not in the data folder.
#[derive(Args, Clone, Debug, Default)]
pub struct StoreArgs {
    /// PostgreSQL database for the store, such as postgres://USER@HOST/DATABASE [default: a file in the data folder]
    #[arg(long, global = true, env = "OUTPOST_STORE", value_name = "URL", hide_env_values = true)]
    pub store: Option<String>,
    /// File with the password of the database's user [default: the variable PGPASSWORD]
    #[arg(long, global = true, env = "OUTPOST_STORE_PASSWORD_FILE", value_name = "FILE")]
    pub store_password_file: Option<PathBuf>,
    /// Connections to the database for reads; writes use two more
    #[arg(long, global = true, env = "OUTPOST_STORE_CONNECTIONS", default_value_t = 8, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1000))]
    pub store_connections: u16,
    /// Name of this server in the database [default: the machine's name]
    #[arg(long, global = true, env = "OUTPOST_NODE_NAME", value_name = "NAME")]
    pub node_name: Option<String>,
}

impl StoreArgs {
    /// The database; `None` if the store is in the data folder.
    ///
    /// # Errors
    /// If the URL or the password file cannot be used, with the remedy.
    pub fn location(&self) -> Result<Option<PostgresLocation>, String> {
        self.store.as_deref().map(|url| self.location_of(url)).transpose()
    }

    /// The database of another URL, with the same password and name.
    ///
    /// # Errors
    /// As [`Self::location`].
    pub fn location_of(&self, url: &str) -> Result<PostgresLocation, String> {
        let password = match &self.store_password_file {
            Some(file) => Some(read_password(file)?),
            None => std::env::var("PGPASSWORD").ok(),
        };
        let settings = PostgresSettings::parse(url, password).map_err(|error| error.to_string())?;
        let node = self.node_name.clone().or_else(machine_name).unwrap_or_else(|| "outpost".to_owned());
        Ok(PostgresLocation { settings, node, readers: usize::from(self.store_connections) })
    }
}

/// The first line of a file.
fn read_password(file: &Path) -> Result<String, String> {
    let text = std::fs::read_to_string(file)
        .map_err(|error| format!("cannot read the password file {}: {error}", file.display()))?;
    match text.lines().next().unwrap_or_default() {
        "" => Err(format!("the password file {} is empty", file.display())),
        password => Ok(password.to_owned()),
    }
}

fn machine_name() -> Option<String> {
    let name = rustix::system::uname().nodename().to_str().ok()?.to_owned();
    Some(name).filter(|name| !name.is_empty())
}

/// How much of the disk is used.
#[derive(Args, Clone, Debug, Default)]
pub struct DiskArgs {
    /// Free space of the disk below which uploads, pulls and generated images are refused, so that everything else goes on; 0
    /// for none [default: 2 % of the disk, at least 16 MiB and at most 1 GiB]
    #[arg(long, env = "OUTPOST_MIN_FREE_DISK", value_name = "SIZE", value_parser = parse_size)]
    pub min_free_disk: Option<u64>,
    /// Size of the prefix cache on disk, such as 20GiB: prompts that continue earlier texts are computed faster after a
    /// restart, too [default: none]
    #[arg(long, env = "OUTPOST_PREFIX_CACHE_DISK", value_name = "SIZE", value_parser = parse_size)]
    pub prefix_cache_disk: Option<u64>,
}

impl DiskArgs {
    /// Max bytes of the prefix cache on disk. `None`: there is none.
    pub fn prefix_cache(&self) -> Option<u64> {
        self.prefix_cache_disk.filter(|bytes| *bytes > 0)
    }
}

/// What computes the models.
#[derive(Args, Clone, Debug)]
pub struct ComputeArgs {
    /// CPU threads for the models [default: one per core]
    #[arg(long, env = "OUTPOST_THREADS", value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1024))]
    pub threads: Option<u16>,
    /// Memory for models, running chats and trainings, such as 6GiB or 800MB [default: 75 % of the machine's]
    #[arg(long, env = "OUTPOST_MEMORY", value_name = "SIZE", value_parser = parse_size)]
    pub memory: Option<u64>,
    /// Device that runs the models: auto is a GPU if this build and this machine have one, otherwise the CPU;
    /// MODEL=DEVICE sets it for one model (may be repeated)
    #[arg(long, env = "OUTPOST_DEVICE", value_delimiter = ',', value_name = "[MODEL=]auto|cpu|cuda[:N]|metal", value_parser = parse_device)]
    pub device: Vec<ModelDevice>,
}

impl ComputeArgs {
    pub fn threads(&self) -> usize {
        self.threads.map_or_else(default_threads, usize::from)
    }

    /// In bytes.
    pub fn memory(&self) -> u64 {
        self.memory.unwrap_or_else(default_memory)
    }
}

/// Arguments of `outpost serve`. Those that depend on each other are checked by [`Config::new`](super::Config::new):
/// clap's own checks ignore values of the configuration file.
#[derive(Args, Clone, Debug)]
pub struct ServeArgs {
    /// Address to listen on; port 0 selects a free port
    #[arg(long, env = "OUTPOST_LISTEN", default_value = DEFAULT_LISTEN, value_name = "[ADDRESS:]PORT", value_parser = parse_listen)]
    pub listen: SocketAddr,
    #[command(flatten)]
    pub compute: ComputeArgs,
    /// Data type of the KV cache; q8 takes half the memory of f16
    #[arg(long, env = "OUTPOST_KV_TYPE", default_value = "f16", value_name = "TYPE")]
    pub kv_type: KvType,
    /// Completions that are generated at the same time; others wait
    #[arg(long, env = "OUTPOST_MAX_RUNNING", default_value_t = 32, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1024))]
    pub max_running: u16,
    /// Choices of chat requests that may wait per model, at most half of them from one project; others are refused
    #[arg(long, env = "OUTPOST_MAX_QUEUED", default_value_t = 256, value_name = "N", value_parser = clap::value_parser!(u16).range(1..))]
    pub max_queued: u16,
    /// Disable speculative decoding; it never changes the output
    #[arg(long, env = "OUTPOST_NO_SPECULATION")]
    pub no_speculation: bool,
    /// Draft model for speculative decoding: auto selects the smallest model of the same family, none disables draft
    /// models, TARGET=DRAFT names one (may be repeated)
    #[arg(long, env = "OUTPOST_DRAFT_MODEL", value_delimiter = ',', value_name = "auto|none|TARGET=DRAFT", value_parser = parse_draft)]
    pub draft_model: Vec<DraftModel>,
    /// Precision of the weights of embedding and image models: f32 keeps them as they are, bf16 and int8 are faster and
    /// slightly less exact; MODEL=TYPE sets it for one model (may be repeated)
    #[arg(long, env = "OUTPOST_PRECISION", value_delimiter = ',', value_name = "[MODEL=]f32|bf16|int8", value_parser = parse_precision)]
    pub precision: Vec<ModelPrecision>,
    /// Refuse every schema that cannot be enforced as a whole, not only those with strict: true
    #[arg(long, env = "OUTPOST_STRICT_SCHEMAS")]
    pub strict_schemas: bool,
    /// Send the envelope of /v1 to OpenAI's SDKs too, which otherwise get OpenAI's own format there
    #[arg(long, env = "OUTPOST_STRICT_ENVELOPE")]
    pub strict_envelope: bool,
    /// Leave out fields of requests that this server does not know, and name them in a header, instead of refusing them
    #[arg(long, env = "OUTPOST_IGNORE_UNKNOWN_FIELDS")]
    pub ignore_unknown_fields: bool,
    /// Serve /metrics without a key
    #[arg(long, env = "OUTPOST_OPEN_METRICS")]
    pub open_metrics: bool,
    /// Do not pull the starter models
    #[arg(long, env = "OUTPOST_NO_PULL")]
    pub no_pull: bool,
    /// Let admin keys install models over the API and in the dashboard: the server then downloads them from hubs and registries
    #[arg(long, env = "OUTPOST_ALLOW_PULL")]
    pub allow_pull: bool,
    /// HOST[:PORT] from which such a download may come although it has an address of a private network, such as a mirror to
    /// which the hub redirects (may be repeated). The hosts of HF_ENDPOINT and OUTPOST_OLLAMA_REGISTRY are always allowed
    #[arg(long = "pull-allowed-host", env = "OUTPOST_PULL_ALLOWED_HOSTS", value_delimiter = ',', value_name = "HOST")]
    pub pull_allowed_hosts: Vec<AllowedHost>,
    /// Seconds that running requests may take to finish after SIGTERM
    #[arg(long, env = "OUTPOST_DRAIN_SECONDS", default_value_t = 30, value_name = "SECONDS", value_parser = clap::value_parser!(u64).range(1..=3600))]
    pub drain_seconds: u64,
    /// Seconds after SIGTERM for which requests are still accepted while /readyz is 503, so that a load balancer sends no more
    #[arg(long, env = "OUTPOST_STOP_DELAY_SECONDS", default_value_t = 0, value_name = "SECONDS", value_parser = clap::value_parser!(u64).range(0..=3600))]
    pub stop_delay_seconds: u64,
    /// Days that the usage records of single requests are kept; totals are kept without limit
    #[arg(long, env = "OUTPOST_USAGE_RETENTION_DAYS", default_value_t = 90, value_name = "DAYS", value_parser = clap::value_parser!(u64).range(1..=36_500))]
    pub usage_retention_days: u64,
    /// Seconds until the URL of a generated image expires and the image is deleted
    #[arg(long, env = "OUTPOST_IMAGE_URL_SECONDS", default_value_t = 3600, value_name = "SECONDS", value_parser = clap::value_parser!(u64).range(60..=604_800))]
    pub image_url_seconds: u64,
    #[command(flatten)]
    pub disk: DiskArgs,
    /// Max size of an audio file to transcribe
    #[arg(long, env = "OUTPOST_MAX_AUDIO_SIZE", default_value = "1GiB", value_name = "SIZE", value_parser = parse_size)]
    pub max_audio_size: u64,
    /// Max length of an audio file to transcribe
    #[arg(long, env = "OUTPOST_MAX_AUDIO_SECONDS", default_value_t = 21_600, value_name = "SECONDS", value_parser = clap::value_parser!(u32).range(1..=604_800))]
    pub max_audio_seconds: u32,
    /// Base URL of links to this server, such as https://ai.example.org [default: the address that the request was sent to]
    #[arg(long, env = "OUTPOST_PUBLIC_URL", value_name = "URL", value_parser = parse_public_url)]
    pub public_url: Option<String>,
    /// Host name that is accepted over plain HTTP, such as ai.example.org (may be repeated). IP addresses, names without a
    /// dot and names of private networks are always accepted
    #[arg(long = "allowed-host", env = "OUTPOST_ALLOWED_HOSTS", value_delimiter = ',', value_name = "NAME", value_parser = parse_host)]
    pub allowed_hosts: Vec<String>,
    /// Origin of web pages that may call the API from a browser, such as https://app.example.org, or * for any (may be
    /// repeated)
    #[arg(long = "cors-origin", env = "OUTPOST_CORS_ORIGINS", value_delimiter = ',', value_name = "ORIGIN")]
    pub cors_origins: Vec<Origin>,
    /// Project that local requests to Ollama's API without an API key act for, by name or ID. They must come from a program
    /// on this machine and may only call models
    #[arg(long, env = "OUTPOST_KEYLESS_PROJECT", value_name = "NAME|ID")]
    pub keyless_project: Option<String>,
    /// Reverse proxy in front of this server, such as 10.0.0.1 or 10.0.0.0/24 (may be repeated). The client addresses that
    /// it sends in X-Forwarded-For or Forwarded are trusted
    #[arg(long = "trusted-proxy", env = "OUTPOST_TRUSTED_PROXIES", value_delimiter = ',', value_name = "ADDRESS|CIDR")]
    pub trusted_proxies: Vec<Network>,
    /// Messages that are logged: those of this level and the more serious ones
    #[arg(long, env = "OUTPOST_LOG_LEVEL", default_value = "info", value_name = "LEVEL")]
    pub log_level: LogLevel,
    /// Format of the log lines on standard error
    #[arg(long, env = "OUTPOST_LOG_FORMAT", default_value = "text", value_name = "FORMAT")]
    pub log_format: LogFormat,
    /// Certificate chain, PEM
    #[arg(long, env = "OUTPOST_TLS_CERT", value_name = "FILE")]
    pub tls_cert: Option<PathBuf>,
    /// Private key of the certificate, PEM
    #[arg(long, env = "OUTPOST_TLS_KEY", value_name = "FILE")]
    pub tls_key: Option<PathBuf>,
    /// Serve HTTPS with a self-signed certificate, which the first start creates in the data folder
    #[arg(long, env = "OUTPOST_TLS_SELF_SIGNED")]
    pub tls_self_signed: bool,
    /// Allow plain HTTP on an address that others can reach
    #[arg(long, env = "OUTPOST_INSECURE_HTTP")]
    pub insecure_http: bool,
}

fn default_threads() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

/// Three quarters of the memory of the machine or container.
fn default_memory() -> u64 {
    SystemMemory::read().total() / 4 * 3
}
