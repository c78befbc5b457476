//! Certificates: from files, or generated once and stored beside the database. Both can be replaced while the server
//! runs: new handshakes get the new certificate, and open connections stay.
//!
//! The files are polled once a second, which works on every file system, through symbolic links and in containers,
//! where notifications are unreliable.

use std::fs::{self, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use arc_swap::ArcSwap;
use rustls::ServerConfig;
use rustls::crypto::ring;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::{ClientHello, ResolvesServerCert};
use rustls::sign::CertifiedKey;

const CERT: &str = "tls-cert.pem";
const KEY: &str = "tls-key.pem";

/// Why HTTPS cannot be served; shown to the operator.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    #[error("the certificate file {path} cannot be used: {cause}")]
    Cert { path: PathBuf, cause: String },
    #[error("the private key file {path} cannot be used: {cause}")]
    Key { path: PathBuf, cause: String },
    #[error("the certificate file {cert} and the private key file {key} cannot be used together: {cause}")]
    Pair { cert: PathBuf, key: PathBuf, cause: rustls::Error },
    #[error("TLS cannot be set up: {0}")]
    Setup(#[from] rustls::Error),
    #[error("a self-signed certificate cannot be created: {0}")]
    Make(#[from] rcgen::Error),
    #[error("a self-signed certificate cannot be stored in the data folder: {0}")]
    Keep(#[from] io::Error),
}

/// The two PEM files of a certificate.
#[derive(Debug, PartialEq, Eq)]
struct PemFiles {
    cert: PathBuf,
    key: PathBuf,
}

/// The current certificate, and the files from which it is loaded.
#[derive(Debug)]
pub struct Certificate {
    files: ArcSwap<PemFiles>,
    current: ArcSwap<CertifiedKey>,
    watched: Mutex<Watched>,
}

/// Detects that a file was written, replaced or made readable: its change time, size and inode.
type FileStamp = Option<(i64, i64, u64, u64)>;

#[derive(Debug)]
struct Watched {
    /// The files when they were last loaded, with or without success.
    loaded: [FileStamp; 2],
    /// The files at the last check.
    last_seen: [FileStamp; 2],
}

impl Certificate {
    /// Reads the certificate in the two PEM files.
    pub fn from_files(cert: &Path, key: &Path) -> Result<Arc<Self>, TlsError> {
        let files = PemFiles { cert: cert.to_owned(), key: key.to_owned() };
        let stamps = files.stamps();
        let current = ArcSwap::from_pointee(files.load()?);
        let watched = Mutex::new(Watched { loaded: stamps, last_seen: stamps });
        Ok(Arc::new(Self { files: ArcSwap::from_pointee(files), current, watched }))
    }

    /// The certificate of this data folder for `names`, generated on the first call.
    pub fn self_signed(data: &Path, names: Vec<String>) -> Result<Arc<Self>, TlsError> {
        let (cert, key) = (data.join(CERT), data.join(KEY));
        if !(cert.exists() && key.exists()) {
            let made = rcgen::generate_simple_self_signed(names)?;
            write_private(&key, &made.signing_key.serialize_pem())?;
            write_private(&cert, &made.cert.pem())?;
        }
        Self::from_files(&cert, &key)
    }

    /// TLS 1.2 and 1.3; each handshake uses the current certificate.
    pub fn server_config(self: &Arc<Self>) -> Result<ServerConfig, TlsError> {
        Ok(ServerConfig::builder_with_provider(Arc::new(ring::default_provider()))
            .with_safe_default_protocol_versions()?
            .with_no_client_auth()
            .with_cert_resolver(self.clone()))
    }

    /// Reads the files again. On an error the certificate stays as it is. Blocking.
    pub fn reload(&self) -> Result<(), TlsError> {
        let files = self.files.load();
        let stamps = files.stamps();
        *self.watched() = Watched { loaded: stamps, last_seen: stamps };
        self.current.store(Arc::new(files.load()?));
        Ok(())
    }

    /// Reads the certificate in these files, and watches them from now on. On an error everything stays as it is. Blocking.
    pub fn replace_files(&self, cert: &Path, key: &Path) -> Result<(), TlsError> {
        let files = PemFiles { cert: cert.to_owned(), key: key.to_owned() };
        if **self.files.load() == files {
            return self.reload();
        }
        let stamps = files.stamps();
        let certificate = files.load()?;
        let mut watched = self.watched();
        *watched = Watched { loaded: stamps, last_seen: stamps };
        self.files.store(Arc::new(files));
        self.current.store(Arc::new(certificate));
        Ok(())
    }

    /// Reads the files again if they changed. Returns whether it did. Waits until files stay unchanged between two
    /// checks, because certificate and key are rarely replaced at the same time. Blocking.
    pub fn reload_if_changed(&self) -> Result<bool, TlsError> {
        let stamps = self.files.load().stamps();
        let mut watched = self.watched();
        let settled = watched.last_seen == stamps;
        watched.last_seen = stamps;
        let changed = settled && watched.loaded != stamps;
        drop(watched);
        if changed {
            self.reload()?;
        }
        Ok(changed)
    }

    fn watched(&self) -> std::sync::MutexGuard<'_, Watched> {
        self.watched.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl ResolvesServerCert for Certificate {
    fn resolve(&self, _: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        Some(self.current.load_full())
    }
}

fn stamp(path: &Path) -> FileStamp {
    let found = fs::metadata(path).ok()?;
    Some((found.ctime(), found.ctime_nsec(), found.size(), found.ino()))
}

impl PemFiles {
    fn stamps(&self) -> [FileStamp; 2] {
        [stamp(&self.cert), stamp(&self.key)]
    }

    fn load(&self) -> Result<CertifiedKey, TlsError> {
        let Self { cert, key } = self;
        let bad_cert = |cause: String| TlsError::Cert { path: cert.clone(), cause };
        let chain: Vec<CertificateDer<'static>> = CertificateDer::pem_file_iter(cert)
            .and_then(Iterator::collect)
            .map_err(|cause| bad_cert(cause.to_string()))?;
        if chain.is_empty() {
            return Err(bad_cert("it contains no PEM certificate".to_owned()));
        }
        let private = PrivateKeyDer::from_pem_file(key)
            .map_err(|cause| TlsError::Key { path: key.clone(), cause: cause.to_string() })?;
        CertifiedKey::from_der(chain, private, &ring::default_provider()).map_err(|cause| TlsError::Pair {
            cert: cert.clone(),
            key: key.clone(),
            cause,
        })
    }
}

fn write_private(path: &Path, text: &str) -> io::Result<()> {
    let part = path.with_extension("part");
    let mut file = OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(&part)?;
    file.write_all(text.as_bytes())?;
    file.sync_all()?;
    fs::rename(part, path)
}
