//! Certificates: from files, or made once and kept beside the database.

use std::fs::{self, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustls::ServerConfig;
use rustls::crypto::ring;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};

const CERT: &str = "tls-cert.pem";
const KEY: &str = "tls-key.pem";

/// Why HTTPS cannot be served; the text is for the operator.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    #[error("the certificate file {path} cannot be used: {cause}")]
    Cert { path: PathBuf, cause: String },
    #[error("the private key file {path} cannot be used: {cause}")]
    Key { path: PathBuf, cause: String },
    #[error("certificate and key cannot be used together: {0}")]
    Pair(#[from] rustls::Error),
    #[error("a self-signed certificate cannot be made: {0}")]
    Make(#[from] rcgen::Error),
    #[error("a self-signed certificate cannot be kept in the data folder: {0}")]
    Keep(#[from] io::Error),
}

/// TLS 1.2 and 1.3 with the certificate in the two PEM files.
pub fn from_files(cert: &Path, key: &Path) -> Result<ServerConfig, TlsError> {
    let bad_cert = |cause: String| TlsError::Cert { path: cert.to_owned(), cause };
    let chain: Vec<CertificateDer<'static>> =
        CertificateDer::pem_file_iter(cert).and_then(Iterator::collect).map_err(|cause| bad_cert(cause.to_string()))?;
    if chain.is_empty() {
        return Err(bad_cert("it holds no PEM certificate".to_owned()));
    }
    let key = PrivateKeyDer::from_pem_file(key)
        .map_err(|cause| TlsError::Key { path: key.to_owned(), cause: cause.to_string() })?;
    let config = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()?
        .with_no_client_auth()
        .with_single_cert(chain, key)?;
    Ok(config)
}

/// The certificate of this data folder for `names`, made on the first call.
pub fn self_signed(data: &Path, names: Vec<String>) -> Result<ServerConfig, TlsError> {
    let (cert, key) = (data.join(CERT), data.join(KEY));
    if !(cert.exists() && key.exists()) {
        let made = rcgen::generate_simple_self_signed(names)?;
        write_private(&key, &made.signing_key.serialize_pem())?;
        write_private(&cert, &made.cert.pem())?;
    }
    from_files(&cert, &key)
}

fn write_private(path: &Path, text: &str) -> io::Result<()> {
    let part = path.with_extension("part");
    let mut file = OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(&part)?;
    file.write_all(text.as_bytes())?;
    file.sync_all()?;
    fs::rename(part, path)
}
