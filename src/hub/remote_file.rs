//! What a hub says about a file, and its first bytes.

use super::client::Hub;
use super::error::HubError;
use super::hugging_face::HubFile;
use super::reference::HuggingFaceModel;
use crate::catalog::is_sha256;
use crate::display::one_line;
use crate::download::{Checksum, Request};
use crate::progress::Progress;

/// A file to download.
#[derive(Clone, Debug)]
pub struct PlannedFile {
    /// In the repository.
    pub path: String,
    /// In the model's folder.
    pub local: String,
    pub bytes: u64,
    pub checksum: Checksum,
}

/// A repository at a commit.
#[derive(Clone, Copy)]
pub(super) struct Place<'a> {
    pub model: &'a HuggingFaceModel,
    pub commit: &'a str,
}

impl Place<'_> {
    /// The error for an answer that makes no sense.
    pub fn bad(&self, why: &str) -> HubError {
        HubError::BadAnswer { reference: self.model.to_string(), why: one_line(why).into_owned() }
    }
}

impl Hub {
    pub(super) fn request_at(&self, place: Place<'_>, path: &str) -> Result<Request, HubError> {
        self.file_request(place.model, place.commit, path)
    }

    /// The size and the hash of a file. The hub says both several times; what it says must agree.
    pub(super) fn describe_file(
        &self,
        place: Place<'_>,
        file: &HubFile,
        progress: &mut dyn Progress,
    ) -> Result<PlannedFile, HubError> {
        let path = &file.path;
        let request = self.request_at(place, path)?;
        let probe = self.downloader.probe(&request, progress).map_err(|error| self.explain(error, place.model))?;
        let header = |name: &str| probe.head.first.get(name).and_then(|value| value.to_str().ok());
        let linked_size = header("x-linked-size").and_then(|text| text.parse().ok());
        let size = file.size.or(linked_size).or(probe.length);
        let bytes = size.ok_or_else(|| place.bad(&format!("it does not say how long {path} is")))?;
        if [linked_size, probe.length].into_iter().flatten().any(|other| other != bytes) {
            return Err(place.bad(&format!("it gives several lengths of {path}")));
        }
        let linked = header("x-linked-etag").map(|text| text.trim_start_matches("W/").trim_matches('"').to_owned());
        let checksum = match (&file.checksum, linked.filter(|digest| is_sha256(digest))) {
            (Checksum::Sha256(digest), Some(linked)) if *digest != linked => {
                return Err(place.bad(&format!("it gives several hashes of {path}")));
            }
            (Checksum::None, Some(linked)) => Checksum::Sha256(linked),
            (known, _) => known.clone(),
        };
        self.check_known(place, path, &checksum)?;
        Ok(PlannedFile { path: path.clone(), local: path.clone(), bytes, checksum })
    }

    /// A file whose hash nobody knows is not installed.
    pub(super) fn check_known(&self, place: Place<'_>, path: &str, checksum: &Checksum) -> Result<(), HubError> {
        match checksum {
            Checksum::None => Err(place.bad(&format!("it gives no hash of {path}"))),
            _ => Ok(()),
        }
    }

    /// The first `count` bytes of a file.
    pub(super) fn first_bytes(
        &self,
        place: Place<'_>,
        path: &str,
        count: u64,
        progress: &mut dyn Progress,
    ) -> Result<Vec<u8>, HubError> {
        let request = self.request_at(place, path)?;
        self.downloader.range(&request, 0..count, progress).map_err(|error| self.explain(error, place.model))
    }
}
