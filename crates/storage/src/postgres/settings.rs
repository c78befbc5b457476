//! Where the database is, and how to connect to it.

use std::fmt;
use std::net::IpAddr;
use std::path::PathBuf;
use std::time::Duration;

use tokio_postgres::Config;
use tokio_postgres::config::{Host, TargetSessionAttrs};

pub use super::url_options::StoreUrlError;
use super::url_options::{self, SslMode};

/// Upper bounds for every wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Timeouts {
    /// Opening a TCP connection to one address of a host.
    pub connect: Duration,
    /// Opening a session on one host: name lookup, TCP, TLS, authentication and session settings.
    pub session: Duration,
    /// A statement, on the server.
    pub statement: Duration,
    /// Waiting for a lock, on the server.
    pub lock: Duration,
    /// The answers of one step, on this side. Longer than `statement`, so that the server's own error arrives first.
    pub reply: Duration,
    /// An idle transaction, on the server.
    pub idle_transaction: Duration,
    /// Waiting for a connection of the pool.
    pub pool: Duration,
    /// A statement that reads a whole table to count its rows.
    pub count: Duration,
}

impl Default for Timeouts {
    fn default() -> Self {
        Self {
            connect: Duration::from_millis(500),
            session: Duration::from_secs(5),
            statement: Duration::from_secs(5),
            lock: Duration::from_secs(2),
            reply: Duration::from_secs(6),
            idle_transaction: Duration::from_secs(10),
            pool: Duration::from_secs(2),
            count: Duration::from_secs(120),
        }
    }
}

/// Which certificates may sign the server's certificate.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RootCertificates {
    /// Those of the operating system.
    System,
    /// Those in a PEM file.
    File(PathBuf),
}

/// A server of the database.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct DatabaseHost {
    pub host: Host,
    pub port: u16,
    /// Whether the connection uses TLS. The certificate's chain and name are always verified.
    pub tls: bool,
}

impl fmt::Display for DatabaseHost {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.host {
            Host::Tcp(name) if name.contains(':') => write!(f, "[{name}]:{}", self.port),
            Host::Tcp(name) => write!(f, "{name}:{}", self.port),
            #[cfg(unix)]
            Host::Unix(folder) => write!(f, "{}", folder.display()),
        }
    }
}

/// How to connect to the database. Its `Display` and `Debug` forms never show the password.
#[derive(Clone)]
pub struct PostgresSettings {
    /// Everything but the hosts.
    base: Config,
    pub(super) hosts: Vec<DatabaseHost>,
    pub(super) root_certificates: RootCertificates,
    pub timeouts: Timeouts,
}

impl PostgresSettings {
    /// Reads a URL such as `postgres://user@host1:5432,host2:5432/database?sslrootcert=/etc/ca.pem`.
    ///
    /// The password comes from elsewhere, because other users of the machine can see the arguments of a process.
    ///
    /// # Errors
    /// If the URL cannot be read, contains a password, or allows a connection to another machine that is not
    /// encrypted and verified.
    pub fn parse(url: &str, password: Option<String>) -> Result<Self, StoreUrlError> {
        let options = url_options::split(url)?;
        let parsed: Config = options.url.parse().map_err(url_options::unreadable)?;
        if parsed.get_password().is_some() {
            return Err(StoreUrlError::Password);
        }
        if parsed.get_dbname().is_none() {
            return Err(StoreUrlError::NoDatabase);
        }
        let hosts = hosts(&parsed, options.ssl_mode)?;
        let mut settings = Self {
            base: base(&parsed),
            hosts,
            root_certificates: options.root_certificates.map_or(RootCertificates::System, RootCertificates::File),
            timeouts: Timeouts::default(),
        };
        if let Some(connect) = parsed.get_connect_timeout() {
            settings.timeouts.connect = (*connect).min(settings.timeouts.session);
        }
        if let Some(password) = password {
            settings.base.password(password);
        }
        Ok(settings)
    }

    /// The database's name.
    pub fn database(&self) -> &str {
        self.base.get_dbname().unwrap_or_default()
    }

    /// The user's name; without one in the URL it is the name of the user that runs this process.
    pub fn user(&self) -> Option<&str> {
        self.base.get_user()
    }

    /// True if any host is reached over TLS.
    pub(super) fn uses_tls(&self) -> bool {
        self.hosts.iter().any(|host| host.tls)
    }

    /// The settings for a connection to one host.
    pub(super) fn config(&self, host: &DatabaseHost) -> Config {
        let mut config = self.base.clone();
        match &host.host {
            Host::Tcp(name) => config.host(name),
            #[cfg(unix)]
            Host::Unix(folder) => config.host_path(folder),
        };
        config.port(host.port).connect_timeout(self.timeouts.connect);
        config.ssl_mode(if host.tls {
            tokio_postgres::config::SslMode::Require
        } else {
            tokio_postgres::config::SslMode::Disable
        });
        config
    }
}

/// The settings of `parsed` except its hosts and everything about TLS. A dead network is noticed within seconds.
fn base(parsed: &Config) -> Config {
    let mut base = Config::new();
    if let Some(user) = parsed.get_user() {
        base.user(user);
    }
    if let Some(database) = parsed.get_dbname() {
        base.dbname(database);
    }
    if let Some(options) = parsed.get_options() {
        base.options(options);
    }
    base.application_name(parsed.get_application_name().unwrap_or("outpost"));
    base.channel_binding(parsed.get_channel_binding());
    base.target_session_attrs(TargetSessionAttrs::ReadWrite);
    let second = Duration::from_secs(1);
    base.keepalives(true).keepalives_idle(second).keepalives_interval(second).keepalives_retries(3);
    base.tcp_user_timeout(parsed.get_tcp_user_timeout().copied().unwrap_or(second));
    base
}

/// The hosts with their ports. A host that is not this machine always gets TLS.
fn hosts(parsed: &Config, ssl_mode: Option<SslMode>) -> Result<Vec<DatabaseHost>, StoreUrlError> {
    let ports = parsed.get_ports();
    if parsed.get_hosts().is_empty() {
        return Err(StoreUrlError::NoHost);
    }
    if ports.len() > 1 && ports.len() != parsed.get_hosts().len() {
        return Err(StoreUrlError::Ports);
    }
    let described = parsed.get_hosts().iter().enumerate().map(|(at, host)| {
        let port = ports.get(at).or(ports.first()).copied().unwrap_or(5432);
        let tls = match host {
            #[cfg(unix)]
            Host::Unix(_) => false,
            Host::Tcp(name) if is_loopback(name) => ssl_mode == Some(SslMode::VerifyFull),
            Host::Tcp(name) if ssl_mode == Some(SslMode::Disable) => {
                return Err(StoreUrlError::NotEncrypted { host: name.clone() });
            }
            Host::Tcp(_) => true,
        };
        Ok(DatabaseHost { host: host.clone(), port, tls })
    });
    described.collect()
}

fn is_loopback(host: &str) -> bool {
    host == "localhost" || host.parse::<IpAddr>().is_ok_and(|address| address.is_loopback())
}

impl fmt::Display for PostgresSettings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("postgres://")?;
        if let Some(user) = self.user() {
            write!(f, "{user}@")?;
        }
        for (at, host) in self.hosts.iter().enumerate() {
            write!(f, "{}{host}", if at == 0 { "" } else { "," })?;
        }
        write!(f, "/{}", self.database())
    }
}

impl fmt::Debug for PostgresSettings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "PostgresSettings({self})")
    }
}
