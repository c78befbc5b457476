//! TLS settings of clients: which certificates a server may have.

use std::fmt;
use std::path::Path;
use std::sync::{Arc, OnceLock};

use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;
use rustls::{ClientConfig, RootCertStore};

/// The roots that a server's certificate must lead to. Certificates are always verified.
#[derive(Clone)]
pub struct Trust(pub Arc<ClientConfig>);

impl fmt::Debug for Trust {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Trust(..)")
    }
}

/// Trusts the roots of the operating system, which are read once.
pub fn trust_system() -> Result<Trust, String> {
    static ROOTS: OnceLock<Result<Trust, String>> = OnceLock::new();
    let read = || {
        let mut roots = RootCertStore::empty();
        let (added, _) = roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
        match added {
            0 => Err("the operating system has no root certificates; install the package ca-certificates".to_owned()),
            _ => config(roots),
        }
    };
    ROOTS.get_or_init(read).clone()
}

/// Trusts only the certificates in a PEM file.
pub fn trust_file(path: &Path) -> Result<Trust, String> {
    let unreadable = |_| "the file of ca_file cannot be read as PEM certificates".to_owned();
    let certificates: Vec<CertificateDer<'static>> = match CertificateDer::pem_file_iter(path) {
        Ok(found) => found.collect::<Result<_, _>>().map_err(unreadable)?,
        Err(error) => return Err(unreadable(error)),
    };
    let mut roots = RootCertStore::empty();
    let (added, _) = roots.add_parsable_certificates(certificates);
    match added {
        0 => Err("the file of ca_file has no certificate".to_owned()),
        _ => config(roots),
    }
}

fn config(roots: RootCertStore) -> Result<Trust, String> {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let versions = ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions();
    let config = versions.map_err(|error| error.to_string())?.with_root_certificates(roots).with_no_client_auth();
    Ok(Trust(Arc::new(config)))
}
