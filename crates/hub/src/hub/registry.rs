//! Models in registries that speak the OCI distribution API
//! (<https://github.com/opencontainers/distribution-spec/blob/main/spec.md>): Ollama's, Docker's and others.

use std::sync::Arc;

use super::client::Hub;
use super::error::HubError;
use super::reference::ModelReference;
use super::registry_manifest::{LayerFile, Manifest};
use super::registry_reference::RegistryModel;
use super::remote_file::bad_answer;
use super::repository::{HubFile, Repository, check_names, sha256};
use crate::download::{Checksum, DownloadError, Location, RegistryLogin, Request};
use outpost_common::display::{one_line, shorten};
use outpost_common::progress::Progress;

/// Max bytes of a manifest, as in the distribution specification.
const MAX_MANIFEST_BYTES: u64 = 4 << 20;
/// The start of a license that is shown.
const LICENSE_START_BYTES: u64 = 4096;
const DIGEST_HEADER: &str = "docker-content-digest";
const MANIFEST_TYPES: &str = "application/vnd.oci.image.manifest.v1+json, \
application/vnd.docker.distribution.manifest.v2+json, application/vnd.oci.image.index.v1+json, \
application/vnd.docker.distribution.manifest.list.v2+json";

/// A repository of a registry, and access to it.
pub(super) struct Access<'a> {
    pub reference: &'a ModelReference,
    base: String,
    login: Arc<RegistryLogin>,
}

impl Access<'_> {
    fn request(&self, path: &str) -> Result<Request, HubError> {
        let url = format!("{}/{path}", self.base);
        let bad = |why| DownloadError::BadUrl { url: shorten(&one_line(&url)), why };
        let location = Location::parse(&url).map_err(bad)?;
        Ok(Request { login: Some(Arc::clone(&self.login)), ..Request::new(location, None) })
    }

    /// The request for the content of a layer.
    pub(super) fn blob(&self, sha256: &str) -> Result<Request, HubError> {
        self.request(&format!("blobs/sha256:{sha256}"))
    }

    pub(super) fn file(&self, LayerFile { path, bytes, sha256 }: LayerFile) -> Result<HubFile, HubError> {
        let request = self.blob(&sha256)?;
        Ok(HubFile { path, size: Some(bytes), checksum: Checksum::Sha256(sha256), request })
    }
}

impl Hub {
    /// The files of a model in a registry.
    pub(super) fn registry_repository(
        &self,
        reference: &ModelReference,
        model: &RegistryModel,
        progress: &mut dyn Progress,
    ) -> Result<Repository, HubError> {
        let registry = self.registry(model)?;
        let credentials = match reference {
            ModelReference::Oci(_) => self.settings.credentials_for(&registry),
            _ => None,
        };
        let login = Arc::new(RegistryLogin::new(&registry, &model.repository, credentials));
        let prefix = registry.to_string().trim_end_matches('/').to_owned();
        let access = Access { reference, base: format!("{prefix}/v2/{}", model.repository), login };
        let bad = |why: String| bad_answer(reference, &why);
        let (mut manifest, mut digest) = self.manifest(&access, &model.version, progress)?;
        let no_model = |why| HubError::NoModel { reference: reference.to_string(), why };
        if let Some(entry) = manifest.entry().map_err(no_model)? {
            (manifest, digest) = self.manifest(&access, &entry, progress)?;
        }
        let mut artifact = manifest.artifact(&model.name()).map_err(no_model)?;
        let layers = std::mem::take(&mut artifact.files);
        let mut files = layers.into_iter().map(|file| access.file(file)).collect::<Result<Vec<_>, _>>()?;
        files.extend(self.files_in_archives(&access, &mut artifact, progress)?);
        check_names(&files).map_err(bad)?;
        let license = match artifact.license {
            Some(license) => Some(license),
            None => self.license_start(&files, progress),
        };
        let notes = match artifact.unused.as_slice() {
            [] => Vec::new(),
            unused => {
                let unused = unused.join(", ");
                vec![format!("Not used: {unused}. The chat template of the GGUF file is used.")]
            }
        };
        Ok(Repository { license, notes, unread: artifact.unread, ..Repository::new(digest, files) })
    }

    /// The address of a model's registry.
    fn registry(&self, model: &RegistryModel) -> Result<Location, HubError> {
        let location = match &model.host {
            Some(_) => model.location(),
            None => Location::parse(&self.settings.ollama_registry).ok(),
        };
        location.ok_or_else(|| HubError::Setting("the registry has no valid address".to_owned()))
    }

    /// A manifest and its digest. `version`: a tag or a digest.
    fn manifest(
        &self,
        access: &Access<'_>,
        version: &str,
        progress: &mut dyn Progress,
    ) -> Result<(Manifest, String), HubError> {
        let request = Request { accept: Some(MANIFEST_TYPES), ..access.request(&format!("manifests/{version}"))? };
        let got = self.downloader.get(&request, MAX_MANIFEST_BYTES, progress);
        let (head, text) = got.map_err(|error| self.explain(error, access.reference))?;
        let found = format!("sha256:{}", sha256(&text));
        let stated = head.headers.get(DIGEST_HEADER).and_then(|value| value.to_str().ok());
        let stated = stated.filter(|digest| digest.starts_with("sha256:"));
        let expected = if version.starts_with("sha256:") { Some(version) } else { stated };
        if let Some(expected) = expected.filter(|expected| *expected != found) {
            let why = format!("its manifest has the digest {found}, but {expected} is expected");
            return Err(bad_answer(access.reference, &why));
        }
        let manifest = Manifest::parse(&text).map_err(|why| bad_answer(access.reference, &why))?;
        Ok((manifest, found))
    }

    /// The first line of a license, which is all that some registries say of it.
    fn license_start(&self, files: &[HubFile], progress: &mut dyn Progress) -> Option<String> {
        let file = files.iter().find(|file| file.path == "LICENSE")?;
        let length = file.size?.min(LICENSE_START_BYTES);
        // Without it, the license is not shown.
        let text = self.downloader.range(&file.request, 0..length, progress).ok()?;
        let text = String::from_utf8_lossy(&text);
        let line = text.lines().map(str::trim).find(|line| !line.is_empty())?;
        Some(shorten(&one_line(line)))
    }

    /// Translates a registry's refusals.
    pub(super) fn explain_registry(
        &self,
        error: DownloadError,
        reference: &ModelReference,
        model: &RegistryModel,
    ) -> HubError {
        let Ok(registry) = self.registry(model) else { return error.into() };
        let host = registry.origin().host.clone();
        let no_access = |had_credentials| {
            let (reference, host) = (reference.to_string(), host.clone());
            HubError::NoAccess { reference, host, had_credentials }
        };
        if let DownloadError::LoginRefused { had_credentials, .. } = error {
            return no_access(had_credentials);
        }
        let Some(refusal) = error.refusal().filter(|it| it.location.origin() == registry.origin()) else {
            return error.into();
        };
        match refusal.status.as_u16() {
            401 | 403 => no_access(self.settings.credentials_for(&registry).is_some()),
            404 => HubError::NoManifest { reference: reference.to_string(), host },
            429 => HubError::RateLimit,
            _ => error.into(),
        }
    }
}
