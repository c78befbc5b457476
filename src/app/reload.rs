//! Applies what can be replaced while the server runs.
//!
//! A reload changes everything or nothing: after a mistake in the file, the server continues with its previous
//! settings. Memory, `max_running` and the store need a restart, because they size buffers, leases and connections when
//! the server starts, and replacing them while requests run would need a second way to start each of these.

use std::sync::Arc;
use std::time::Duration;

use actix_web::web::Data;
use arc_swap::ArcSwap;

use crate::config::{Config, Tls};
use crate::engine::Engine;
use crate::http::Api;
use crate::http::tls::{Certificate, TlsError};
use crate::service::usage::Retention;

/// Applies the settings that can change while an [`App`](super::App) runs.
#[derive(Clone)]
pub struct Reloader {
    pub(super) certificate: Option<Arc<Certificate>>,
    pub(super) api: Data<Api>,
    pub(super) engine: Engine,
    pub(super) retention: Arc<ArcSwap<Retention>>,
}

/// The server's settings have not changed; the text is for the operator.
#[derive(Debug, thiserror::Error)]
pub enum ReloadError {
    #[error("the TLS certificate is not loaded again; the old one stays: {0}")]
    Tls(#[from] TlsError),
    #[error("loading the TLS certificate broke off: {0}")]
    Join(#[from] tokio::task::JoinError),
}

impl Reloader {
    /// Loads the certificate again, and then applies the CORS origins, the trusted proxies, the allowed hosts, the bound of
    /// queued requests and the retention of usage records.
    ///
    /// # Errors
    /// If the certificate cannot be used. Then nothing has changed.
    pub async fn apply(&self, config: &Config) -> Result<(), ReloadError> {
        if let Some(certificate) = self.certificate.clone() {
            let tls = config.tls.clone();
            let load = move || match tls {
                Tls::Files { cert, key } => certificate.replace_files(&cert, &key),
                // The certificate of this server is in the data folder, or a restart switches TLS off.
                Tls::SelfSigned | Tls::Off => certificate.reload(),
            };
            tokio::task::spawn_blocking(load).await??;
            tracing::info!("the TLS certificate is loaded again");
        } else {
            // With TLS, any name is allowed.
            self.api.hosts.rename(&config.allowed_hosts, self.api.public_url.as_deref());
        }
        self.api.origins.store(Arc::new(config.cors_origins.clone()));
        self.api.proxies.replace(config.trusted_proxies.clone());
        self.engine.set_max_queued(config.max_queued);
        let minutes = self.retention.load().minutes;
        self.retention.store(Arc::new(Retention { raw: config.usage_retention, minutes }));
        Ok(())
    }
}

/// Checks every second whether the certificate files have changed.
pub(super) async fn watch(certificate: Arc<Certificate>) {
    loop {
        actix_web::rt::time::sleep(Duration::from_secs(1)).await;
        let certificate = certificate.clone();
        match tokio::task::spawn_blocking(move || certificate.reload_if_changed()).await {
            Ok(Ok(true)) => tracing::info!("the TLS certificate is loaded again"),
            Ok(Ok(false)) => {}
            Ok(Err(error)) => tracing::error!(%error, "the TLS certificate is not loaded again; the old one stays"),
            Err(error) => tracing::error!(%error, "loading the TLS certificate broke off"),
        }
    }
}
