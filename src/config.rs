//! Arguments and environment become one validated [`Config`].

use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::{Args, ValueEnum};

use crate::device_choice::DeviceChoice;
use crate::ip_network::Network;
use crate::origin::Origin;
use crate::storage::{PostgresLocation, PostgresSettings};

pub const DEFAULT_MODELS: &str = "./models";

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

/// Arguments of `outpost serve`.
#[derive(Args, Clone, Debug)]
pub struct ServeArgs {
    /// Address to listen on; port 0 selects a free port
    #[arg(long, env = "OUTPOST_LISTEN", default_value = "127.0.0.1:8080", value_name = "[ADDRESS:]PORT", value_parser = parse_listen)]
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
    /// Leave out fields of requests that this server does not know, and name them in a header, instead of refusing them
    #[arg(long, env = "OUTPOST_IGNORE_UNKNOWN_FIELDS")]
    pub ignore_unknown_fields: bool,
    /// Serve /metrics without a key
    #[arg(long, env = "OUTPOST_OPEN_METRICS")]
    pub open_metrics: bool,
    /// Do not pull the starter models
    #[arg(long, env = "OUTPOST_NO_PULL")]
    pub no_pull: bool,
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
    /// Format of the log lines on standard error
    #[arg(long, env = "OUTPOST_LOG_FORMAT", default_value = "text", value_name = "FORMAT")]
    pub log_format: LogFormat,
    /// Certificate chain, PEM
    #[arg(
        long,
        env = "OUTPOST_TLS_CERT",
        value_name = "FILE",
        requires = "tls_key",
        conflicts_with = "tls_self_signed"
    )]
    pub tls_cert: Option<PathBuf>,
    /// Private key of the certificate, PEM
    #[arg(long, env = "OUTPOST_TLS_KEY", value_name = "FILE", requires = "tls_cert")]
    pub tls_key: Option<PathBuf>,
    /// Serve HTTPS with a self-signed certificate, which the first start creates in the data folder
    #[arg(long, env = "OUTPOST_TLS_SELF_SIGNED")]
    pub tls_self_signed: bool,
    /// Allow plain HTTP on an address that others can reach
    #[arg(long, env = "OUTPOST_INSECURE_HTTP")]
    pub insecure_http: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum LogFormat {
    /// Readable lines
    Text,
    /// One JSON object per line
    Json,
}

/// The draft model of a model.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DraftModel {
    /// The best one in the models folder.
    Auto,
    None,
    Named {
        target: String,
        draft: String,
    },
}

/// The weight precision of a model, or of all models that are not named.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ModelPrecision {
    pub model: Option<String>,
    pub precision: Precision,
}

/// The device of a model, or of all models that are not named.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ModelDevice {
    pub model: Option<String>,
    pub device: DeviceChoice,
}

/// The precision of weights in memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Precision {
    /// As the file has them
    F32,
    Bf16,
    Int8,
}

/// The data type of the KV cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum KvType {
    /// 16 bits per number
    F16,
    /// 8 bits per number and a scale for each position of a head
    Q8,
    /// 32 bits per number
    F32,
}

/// Source of the TLS certificate.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Tls {
    Off,
    Files { cert: PathBuf, key: PathBuf },
    SelfSigned,
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
    pub max_running: usize,
    pub max_queued: usize,
    pub speculate: bool,
    pub draft_model: Vec<DraftModel>,
    pub precision: Vec<ModelPrecision>,
    pub device: Vec<ModelDevice>,
    pub strict_schemas: bool,
    pub ignore_unknown_fields: bool,
    pub open_metrics: bool,
    pub pull: bool,
    /// How long requests are accepted after the signal to stop, while the server reports that it is not ready.
    pub stop_delay: Duration,
    /// How long a stop may take after this delay.
    pub drain: Duration,
    /// How long single requests are kept in the usage records.
    pub usage_retention: Duration,
    /// How long a signed URL of a generated image is valid.
    pub image_url_ttl: Duration,
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
    #[error("{0}")]
    Store(String),
}

impl Config {
    pub fn new(paths: DataPaths, args: &ServeArgs) -> Result<Self, BadConfig> {
        let tls = match (&args.tls_cert, &args.tls_key) {
            (Some(cert), Some(key)) => Tls::Files { cert: cert.clone(), key: key.clone() },
            _ if args.tls_self_signed => Tls::SelfSigned,
            _ => Tls::Off,
        };
        if tls == Tls::Off && !is_loopback(args.listen.ip()) && !args.insecure_http {
            return Err(BadConfig::PlainText(args.listen));
        }
        let store = paths.store.location().map_err(BadConfig::Store)?;
        Ok(Self {
            paths,
            store,
            listen: args.listen,
            threads: args.compute.threads(),
            memory: args.compute.memory(),
            kv_type: args.kv_type,
            max_running: args.max_running.into(),
            max_queued: args.max_queued.into(),
            speculate: !args.no_speculation,
            draft_model: args.draft_model.clone(),
            precision: args.precision.clone(),
            device: args.compute.device.clone(),
            strict_schemas: args.strict_schemas,
            ignore_unknown_fields: args.ignore_unknown_fields,
            open_metrics: args.open_metrics,
            pull: !args.no_pull,
            stop_delay: Duration::from_secs(args.stop_delay_seconds),
            drain: Duration::from_secs(args.drain_seconds),
            usage_retention: Duration::from_secs(args.usage_retention_days * 86_400),
            image_url_ttl: Duration::from_secs(args.image_url_seconds),
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

fn default_threads() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

/// Three quarters of the memory of the machine or container.
fn default_memory() -> u64 {
    let mut system = sysinfo::System::new();
    system.refresh_memory();
    let total = system.cgroup_limits().map_or(system.total_memory(), |limits| limits.total_memory);
    total / 4 * 3
}

/// Reads `6GiB`, `800MB`, `4G` or plain bytes.
fn parse_size(text: &str) -> Result<u64, String> {
    let hint = || format!("'{text}' is not a size; write for example 6GiB, 800MB or a number of bytes");
    let digits = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let (number, unit) = text.split_at(digits);
    let number: u64 = number.parse().map_err(|_| hint())?;
    let factor: u64 = match unit.trim().to_ascii_lowercase().as_str() {
        "" | "b" => 1,
        "k" | "kib" => 1 << 10,
        "m" | "mib" => 1 << 20,
        "g" | "gib" => 1 << 30,
        "t" | "tib" => 1 << 40,
        "kb" => 1_000,
        "mb" => 1_000_000,
        "gb" => 1_000_000_000,
        "tb" => 1_000_000_000_000,
        _ => return Err(hint()),
    };
    number.checked_mul(factor).ok_or_else(hint)
}

/// Reads `https://host[:port][/path]`.
fn parse_public_url(text: &str) -> Result<String, String> {
    let rest = text.strip_prefix("https://").or_else(|| text.strip_prefix("http://"));
    let plain = |c: char| c.is_ascii_alphanumeric() || "-._~:[]/%".contains(c);
    match rest {
        Some(rest) if rest.starts_with(|c| plain(c) && c != '/') && rest.chars().all(plain) => {
            Ok(text.trim_end_matches('/').to_owned())
        }
        _ => Err(format!("'{text}' is not a URL; write for example https://ai.example.org or https://example.org/ai")),
    }
}

/// Reads an address and a port, or a port of this machine only.
pub(crate) fn parse_listen(text: &str) -> Result<SocketAddr, String> {
    if let Ok(port) = text.parse::<u16>() {
        return Ok(SocketAddr::from(([127, 0, 0, 1], port)));
    }
    let (host, port) = text.rsplit_once(':').unwrap_or((text, "8080"));
    if host == "localhost"
        && let Ok(port) = port.parse::<u16>()
    {
        return Ok(SocketAddr::from(([127, 0, 0, 1], port)));
    }
    text.parse().map_err(|_| {
        let port = if port.parse::<u16>().is_ok() { port } else { "8080" };
        format!("'{text}' is not an address with a port; write 127.0.0.1:{port} for this machine only, or 0.0.0.0:{port} for the network")
    })
}

/// Reads the name of a host, without scheme, port or path.
fn parse_host(text: &str) -> Result<String, String> {
    let plain = |c: char| c.is_ascii_alphanumeric() || "-._".contains(c);
    match !text.is_empty() && text.chars().all(plain) {
        true => Ok(text.to_owned()),
        false => Err(format!("'{text}' is not a host name; write for example ai.example.org")),
    }
}

/// `bf16`, or `MODEL=bf16`.
fn parse_precision(text: &str) -> Result<ModelPrecision, String> {
    let (model, name) = text.rsplit_once('=').map_or((None, text), |(model, name)| (Some(model), name));
    let precision = Precision::from_str(name, true).ok().filter(|_| model != Some(""));
    let model = model.map(str::to_owned);
    let wrong = || format!("'{text}' is not a precision; write f32, bf16 or int8, or MODEL=bf16 with a model's name");
    precision.map(|precision| ModelPrecision { model, precision }).ok_or_else(wrong)
}

/// `cuda:1`, or `MODEL=cuda:1`.
fn parse_device(text: &str) -> Result<ModelDevice, String> {
    let (model, name) = text.rsplit_once('=').map_or((None, text), |(model, name)| (Some(model), name));
    if model == Some("") {
        return Err(format!("'{text}' names no model; write MODEL=cuda:1 with a model's name"));
    }
    let device = name.parse().map_err(|wrong| format!("'{name}' is not a device; {wrong}"))?;
    Ok(ModelDevice { model: model.map(str::to_owned), device })
}

/// Reads `auto`, `none` or `TARGET=DRAFT`.
fn parse_draft(text: &str) -> Result<DraftModel, String> {
    match text.split_once('=') {
        Some((target, draft)) if !target.is_empty() && !draft.is_empty() && target != draft => {
            Ok(DraftModel::Named { target: target.to_owned(), draft: draft.to_owned() })
        }
        None if text == "auto" => Ok(DraftModel::Auto),
        None if text == "none" => Ok(DraftModel::None),
        _ => Err(format!("'{text}' names no draft model; write auto, none or TARGET=DRAFT with two models' names")),
    }
}

#[cfg(test)]
mod tests {
    use super::{
        DraftModel, ModelDevice, ModelPrecision, Precision, parse_device, parse_draft, parse_listen, parse_precision,
        parse_public_url, parse_size,
    };
    use crate::device_choice::DeviceChoice;

    #[test]
    fn a_port_alone_listens_on_this_machine() {
        for (text, address) in [
            ("8080", "127.0.0.1:8080"),
            ("localhost:9", "127.0.0.1:9"),
            ("0.0.0.0:80", "0.0.0.0:80"),
            ("[::1]:0", "[::1]:0"),
        ] {
            assert_eq!(parse_listen(text), Ok(address.parse().unwrap()));
        }
        for bad in ["", ":8080", "*:8080", "70000", "example.org:8080", "127.0.0.1"] {
            assert!(parse_listen(bad).is_err_and(|error| error.contains("write 127.0.0.1:8080")), "{bad}");
        }
    }

    #[test]
    fn public_addresses_are_whole() {
        for good in ["https://ai.example.org", "http://10.0.0.1:8080", "https://[::1]:443/ai"] {
            assert_eq!(parse_public_url(good).as_deref(), Ok(good));
            assert_eq!(parse_public_url(&format!("{good}/")).as_deref(), Ok(good));
        }
        for bad in
            ["", "ai.example.org", "https://", "https:///x", "ftp://x", "https://x/?a", "https://x y", "https://a@b"]
        {
            assert!(parse_public_url(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn precisions_are_of_one_model_or_of_all() {
        let of = |model: Option<&str>, precision| Ok(ModelPrecision { model: model.map(str::to_owned), precision });
        assert_eq!(parse_precision("bf16"), of(None, Precision::Bf16));
        assert_eq!(parse_precision("a=b=int8"), of(Some("a=b"), Precision::Int8));
        for bad in ["", "f64", "=f32", "model=", "model"] {
            assert!(parse_precision(bad).unwrap_err().contains("bf16"), "{bad}");
        }
    }

    #[test]
    fn devices_are_of_one_model_or_of_all() {
        let of = |model: Option<&str>, device| Ok(ModelDevice { model: model.map(str::to_owned), device });
        assert_eq!(parse_device("cuda"), of(None, DeviceChoice::Cuda(0)));
        assert_eq!(parse_device("a=b=cuda:2"), of(Some("a=b"), DeviceChoice::Cuda(2)));
        assert_eq!(parse_device("model:0.5b=cpu"), of(Some("model:0.5b"), DeviceChoice::Cpu));
        for bad in ["", "gpu", "model=", "model=gpu", "cuda:x"] {
            assert!(parse_device(bad).unwrap_err().contains("cuda:1"), "{bad}");
        }
        assert!(parse_device("=cpu").unwrap_err().contains("names no model"));
    }

    #[test]
    fn draft_models_are_named_in_pairs() {
        let named = DraftModel::Named { target: "large".to_owned(), draft: "small".to_owned() };
        assert_eq!(parse_draft("large=small"), Ok(named));
        assert_eq!((parse_draft("auto"), parse_draft("none")), (Ok(DraftModel::Auto), Ok(DraftModel::None)));
        for bad in ["", "=", "a=", "=b", "a=a", "small"] {
            assert!(parse_draft(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn sizes_are_read_as_people_write_them() {
        assert_eq!(parse_size("6GiB"), Ok(6 << 30));
        assert_eq!(parse_size("800MB"), Ok(800_000_000));
        assert_eq!(parse_size("4g"), Ok(4 << 30));
        assert_eq!(parse_size("123"), Ok(123));
        for bad in ["", "GiB", "1.5G", "-1", "99999999999T", "5 apples"] {
            assert!(parse_size(bad).is_err(), "{bad}");
        }
    }
}
