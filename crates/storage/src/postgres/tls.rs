//! TLS to the database. The chain and the name of the server's certificate are always verified.

use std::path::Path;
use std::sync::Arc;

use rustls::crypto::ring;
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject as _;
use rustls::{ClientConfig, RootCertStore};
use tokio_postgres_rustls::MakeRustlsConnect;

use super::error::PostgresError;
use super::settings::RootCertificates;

/// Reads the root certificates, from which all connections are made.
pub(super) fn connector(roots: &RootCertificates) -> Result<MakeRustlsConnect, PostgresError> {
    let roots = match roots {
        RootCertificates::System => system_roots()?,
        RootCertificates::File(path) => roots_of(path)?,
    };
    let config = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .map_err(|error| PostgresError::Refused(format!("TLS cannot be set up: {error}.")))?;
    Ok(MakeRustlsConnect::new(config.with_root_certificates(roots).with_no_client_auth()))
}

fn system_roots() -> Result<RootCertStore, PostgresError> {
    let found = rustls_native_certs::load_native_certs();
    let mut roots = RootCertStore::empty();
    let (added, _) = roots.add_parsable_certificates(found.certs);
    if added == 0 {
        return Err(PostgresError::Refused(
            "This machine has no root certificates, so the database's certificate cannot be verified. Install the \
             package ca-certificates, or name the PEM file of the certificate authority with sslrootcert."
                .to_owned(),
        ));
    }
    Ok(roots)
}

fn roots_of(path: &Path) -> Result<RootCertStore, PostgresError> {
    let refused = |reason: String| {
        PostgresError::Refused(format!(
            "The file {} of sslrootcert cannot be used: {reason}. It must contain certificates in the PEM format.",
            path.display()
        ))
    };
    let mut roots = RootCertStore::empty();
    for certificate in CertificateDer::pem_file_iter(path).map_err(|error| refused(error.to_string()))? {
        let certificate = certificate.map_err(|error| refused(error.to_string()))?;
        roots.add(certificate).map_err(|error| refused(error.to_string()))?;
    }
    if roots.is_empty() { Err(refused("it has no certificate".to_owned())) } else { Ok(roots) }
}
