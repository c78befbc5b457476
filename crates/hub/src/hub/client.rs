//! The client of a hub.

use std::sync::Arc;

use super::error::HubError;
use super::settings::HubSettings;
use crate::download::{AddressPolicy, AllowedHost, Downloader, Location, Settings};
use outpost_common::clock_rng::ClockRng;

/// Asks a hub and downloads from it. Blocks the calling thread.
pub struct Hub {
    pub(super) downloader: Downloader,
    pub(super) settings: HubSettings,
}

impl Hub {
    /// # Errors
    /// If threads cannot start.
    pub fn new(settings: HubSettings, clock_rng: Arc<dyn ClockRng>) -> Result<Self, HubError> {
        let mut allowed = settings.allowed_hosts.clone();
        // The user named these hosts. Redirects may not use their other ports.
        for address in [&settings.endpoint, &settings.ollama_registry] {
            if let Ok(location) = Location::parse(address) {
                let origin = location.origin();
                allowed.push(AllowedHost { host: origin.host.clone(), port: Some(origin.port) });
            }
        }
        let limits = Settings { connections: settings.connections, ..Settings::default() };
        let downloader = Downloader::new(AddressPolicy { allowed }, limits, clock_rng)?;
        Ok(Self { downloader, settings })
    }
}
