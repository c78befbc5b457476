//! A file at an address that is not a hub's.

use http1::header::ETAG;

use super::client::Hub;
use super::error::HubError;
use super::reference::ModelReference;
use super::remote_file::bad_answer;
use super::repository::{HubFile, Repository, is_usable};
use super::url_reference::UrlFile;
use crate::download::{AllowedHost, Checksum, Request};
use outpost_common::progress::Progress;

impl Hub {
    /// The file at an address, with its length and version.
    pub(super) fn url_repository(
        &self,
        reference: &ModelReference,
        UrlFile { location, name }: &UrlFile,
        progress: &mut dyn Progress,
    ) -> Result<Repository, HubError> {
        let origin = location.origin();
        let is_named = |it: &AllowedHost| it.host == origin.host && it.port.is_none_or(|port| port == origin.port);
        let is_allowed = origin.is_https || self.settings.allowed_hosts.iter().any(is_named);
        if !is_allowed {
            return Err(HubError::NotEncrypted { location: location.clone() });
        }
        let mut request = Request::new(location.clone(), None);
        let probe = self.downloader.probe(&request, progress)?;
        let size = probe.length.filter(|size| is_usable(name, Some(*size)));
        let size = size.ok_or_else(|| bad_answer(reference, "it does not say how long the file is"))?;
        let etag = probe.head.headers.get(ETAG).and_then(|value| value.to_str().ok());
        // A weak ETag does not promise equal bytes.
        request.etag = etag.filter(|tag| tag.starts_with('"') && probe.has_ranges).map(str::to_owned);
        let revision = request.etag.clone().unwrap_or_default();
        let file = HubFile { path: name.clone(), size: Some(size), checksum: Checksum::None, request };
        Ok(Repository::new(revision, vec![file]))
    }
}
