//! A file as its source describes it, and its first bytes.

use super::client::Hub;
use super::error::HubError;
use super::reference::ModelReference;
use super::repository::{HubFile, is_usable};
use crate::catalog::is_sha256;
use crate::download::{Checksum, DownloadError, Request};
use outpost_common::display::one_line;
use outpost_common::progress::Progress;

/// A file to download.
#[derive(Clone, Debug)]
pub struct PlannedFile {
    /// At the source.
    pub path: String,
    /// In the model's folder.
    pub local: String,
    pub bytes: u64,
    pub checksum: Checksum,
    pub request: Request,
}

impl PlannedFile {
    /// A file of known size and hash.
    pub(super) fn new(file: &HubFile, bytes: u64, checksum: Checksum) -> Self {
        let (path, request) = (file.path.clone(), file.request.clone());
        Self { local: path.clone(), path, bytes, checksum, request }
    }
}

/// The error for an answer that makes no sense.
pub(super) fn bad_answer(reference: &ModelReference, why: &str) -> HubError {
    HubError::BadAnswer { reference: reference.to_string(), why: one_line(why).into_owned() }
}

impl Hub {
    /// The size and the hash of a file.
    pub(super) fn describe_file(
        &self,
        reference: &ModelReference,
        file: &HubFile,
        progress: &mut dyn Progress,
    ) -> Result<PlannedFile, HubError> {
        match (reference, file.size) {
            // The list is all that there is.
            (ModelReference::Ollama(_) | ModelReference::Oci(_) | ModelReference::Url(_), Some(bytes)) => {
                Ok(PlannedFile::new(file, bytes, file.checksum.clone()))
            }
            _ => self.probe_file(reference, file, progress),
        }
    }

    /// A Hugging Face hub says size and hash several times; what it says must agree.
    fn probe_file(
        &self,
        reference: &ModelReference,
        file: &HubFile,
        progress: &mut dyn Progress,
    ) -> Result<PlannedFile, HubError> {
        let (path, bad) = (&file.path, |why: String| bad_answer(reference, &why));
        let probe = self.downloader.probe(&file.request, progress).map_err(|error| self.explain(error, reference))?;
        let header = |name: &str| probe.head.first.get(name).and_then(|value| value.to_str().ok());
        let linked_size = header("x-linked-size").and_then(|text| text.parse().ok());
        let size = file.size.or(linked_size).or(probe.length);
        let bytes = size.ok_or_else(|| bad(format!("it does not say how long {path} is")))?;
        if [linked_size, probe.length].into_iter().flatten().any(|other| other != bytes) {
            return Err(bad(format!("it gives several lengths of {path}")));
        }
        if !is_usable(path, Some(bytes)) {
            return Err(bad(format!("it gives a length of {path} that no file has")));
        }
        let linked = header("x-linked-etag").map(|text| text.trim_start_matches("W/").trim_matches('"').to_owned());
        let checksum = match (&file.checksum, linked.filter(|digest| is_sha256(digest))) {
            (Checksum::Sha256(digest), Some(linked)) if *digest != linked => {
                return Err(bad(format!("it gives several hashes of {path}")));
            }
            (Checksum::None, Some(linked)) => Checksum::Sha256(linked),
            (known, _) => known.clone(),
        };
        check_known(reference, path, &checksum)?;
        Ok(PlannedFile::new(file, bytes, checksum))
    }

    /// The first `count` bytes of a file.
    pub(super) fn first_bytes(
        &self,
        reference: &ModelReference,
        file: &PlannedFile,
        count: u64,
        progress: &mut dyn Progress,
    ) -> Result<Vec<u8>, HubError> {
        self.downloader.range(&file.request, 0..count, progress).map_err(|error| self.explain(error, reference))
    }

    /// Translates the refusals of a source.
    pub(super) fn explain(&self, error: DownloadError, reference: &ModelReference) -> HubError {
        match reference {
            ModelReference::HuggingFace(model) => self.explain_hugging_face(error, model),
            ModelReference::Ollama(model) | ModelReference::Oci(model) => {
                self.explain_registry(error, reference, model)
            }
            ModelReference::Url(_) | ModelReference::Catalog(_) => error.into(),
        }
    }
}

/// A file for which the source gives no hash is refused.
pub(super) fn check_known(reference: &ModelReference, path: &str, checksum: &Checksum) -> Result<(), HubError> {
    match checksum {
        Checksum::None => Err(bad_answer(reference, &format!("it gives no hash of {path}"))),
        _ => Ok(()),
    }
}
