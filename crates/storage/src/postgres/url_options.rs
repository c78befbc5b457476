//! The options of a store's URL. Those about TLS are ours: tokio-postgres does not know `sslmode=verify-full` and
//! `sslrootcert`.

use std::path::PathBuf;

use percent_encoding::percent_decode_str;

/// Why the URL of a store cannot be used. No message repeats the URL, which may contain a password.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum StoreUrlError {
    #[error("The store's URL must begin with postgres:// or postgresql://, such as postgres://user@host/database.")]
    Scheme,
    #[error(
        "The store's URL must not contain a password, because other users of this machine can see the arguments of a \
         process. Remove it from the URL, and put it in a file or in the environment variable PGPASSWORD."
    )]
    Password,
    #[error("The store's URL cannot be read: {0}.")]
    Unreadable(String),
    #[error("The store's URL names no database. Add its name after the host, such as postgres://user@host/outpost.")]
    NoDatabase,
    #[error(
        "The store's URL names no host. Write postgres://user@host/database, or \
         postgres://user@%2Fvar%2Frun%2Fpostgresql/database for the folder of a unix socket."
    )]
    NoHost,
    #[error("The store's URL must give one port for all hosts, or one for each.")]
    Ports,
    #[error(
        "sslmode={0} is not supported. Use verify-full, which is the default for other machines, or disable for a \
         database on this machine."
    )]
    SslMode(String),
    #[error(
        "sslmode=disable is refused for {host}, because the connection leaves this machine. Remove the option. If the \
         server's certificate is signed by your own authority, name its PEM file with sslrootcert."
    )]
    NotEncrypted { host: String },
    #[error("sslrootcert is of no use with sslmode=disable. Remove one of the two options.")]
    UnusedRootCertificate,
    #[error("The option '{name}' of the store's URL is not supported. Supported are {SUPPORTED}.")]
    Option { name: String },
}

const SUPPORTED: &str = "sslmode, sslrootcert, application_name, options, connect_timeout, tcp_user_timeout, \
    channel_binding, user, host, port and dbname";

/// Options that tokio-postgres reads.
const PASSED_ON: &[&str] = &[
    "application_name",
    "options",
    "connect_timeout",
    "tcp_user_timeout",
    "channel_binding",
    "user",
    "host",
    "port",
    "dbname",
];

/// How connections over TCP are protected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SslMode {
    Disable,
    VerifyFull,
}

/// A URL without the options about TLS, and those options.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct UrlOptions {
    pub url: String,
    /// `None` if nothing in the URL decides it.
    pub ssl_mode: Option<SslMode>,
    pub root_certificates: Option<PathBuf>,
}

/// Takes the options about TLS out of a URL, and refuses unknown options.
pub(super) fn split(url: &str) -> Result<UrlOptions, StoreUrlError> {
    if !url.starts_with("postgres://") && !url.starts_with("postgresql://") {
        return Err(StoreUrlError::Scheme);
    }
    let (address, query) = url.split_once('?').unwrap_or((url, ""));
    let mut found = UrlOptions { url: address.to_owned(), ssl_mode: None, root_certificates: None };
    let mut separator = '?';
    for option in query.split('&').filter(|option| !option.is_empty()) {
        let (name, value) = option.split_once('=').unwrap_or((option, ""));
        match name {
            "sslmode" => found.ssl_mode = Some(ssl_mode(value)?),
            "sslrootcert" => found.root_certificates = root_certificates(value)?,
            "password" => return Err(StoreUrlError::Password),
            name if PASSED_ON.contains(&name) => {
                found.url.push(separator);
                found.url.push_str(option);
                separator = '&';
            }
            // A question mark in a password has split the URL.
            name if name.contains('@') => return Err(StoreUrlError::Password),
            name => return Err(StoreUrlError::Option { name: name.to_owned() }),
        }
    }
    if found.root_certificates.is_some() {
        match found.ssl_mode {
            Some(SslMode::Disable) => return Err(StoreUrlError::UnusedRootCertificate),
            _ => found.ssl_mode = Some(SslMode::VerifyFull),
        }
    }
    Ok(found)
}

fn ssl_mode(value: &str) -> Result<SslMode, StoreUrlError> {
    match value {
        "disable" => Ok(SslMode::Disable),
        "verify-full" => Ok(SslMode::VerifyFull),
        other => Err(StoreUrlError::SslMode(other.to_owned())),
    }
}

/// `None` for the certificates of the operating system.
fn root_certificates(value: &str) -> Result<Option<PathBuf>, StoreUrlError> {
    let path = percent_decode_str(value)
        .decode_utf8()
        .map_err(|_| StoreUrlError::Unreadable("sslrootcert is not UTF-8".to_owned()))?;
    match path.as_ref() {
        "" => Err(StoreUrlError::Unreadable("sslrootcert names no file".to_owned())),
        "system" => Ok(None),
        path => Ok(Some(PathBuf::from(path))),
    }
}

/// The reason of tokio-postgres, which names the option but not its value.
pub(super) fn unreadable(error: tokio_postgres::Error) -> StoreUrlError {
    StoreUrlError::Unreadable(
        error.into_source().map_or_else(|| "unknown reason".to_owned(), |source| source.to_string()),
    )
}
