//! The API of a Hugging Face hub (<https://huggingface.co/docs/hub/api>).

use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};
use serde::Deserialize;
use serde_json::Value;

use super::client::Hub;
use super::error::HubError;
use super::hugging_face_reference::HuggingFaceModel;
use super::repository::{HubFile, Repository, check_names, is_usable};
use crate::catalog::is_sha256;
use crate::download::{Checksum, DownloadError, Location, Request};
use outpost_common::display::{one_line, shorten};
use outpost_common::progress::Progress;

/// Max bytes of an answer.
const MAX_ANSWER_BYTES: u64 = 16 << 20;
/// Max files of a repository.
const MAX_FILES: usize = 50_000;
/// Characters that need no escape in a segment of a path.
const SEGMENT: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'_').remove(b'.').remove(b'~').remove(b'+');

#[derive(Deserialize)]
struct ModelAnswer {
    sha: String,
    #[serde(default)]
    gated: Value,
    #[serde(rename = "cardData", default)]
    card_data: Value,
    siblings: Vec<Sibling>,
}

#[derive(Deserialize)]
struct Sibling {
    rfilename: String,
    size: Option<u64>,
    #[serde(rename = "blobId")]
    blob_id: Option<String>,
    lfs: Option<Lfs>,
}

#[derive(Deserialize)]
struct Lfs {
    sha256: Option<String>,
    size: Option<u64>,
}

impl Hub {
    /// The files of a repository.
    pub(super) fn hugging_face_repository(
        &self,
        model: &HuggingFaceModel,
        progress: &mut dyn Progress,
    ) -> Result<Repository, HubError> {
        let revision = escape(model.revision.as_deref().unwrap_or("main"));
        let url = format!("{}/api/models/{}/revision/{revision}?blobs=true", self.settings.endpoint, model.repository);
        let (_, body) = self
            .downloader
            .get(&self.request(&url)?, MAX_ANSWER_BYTES, progress)
            .map_err(|error| self.explain_hugging_face(error, model))?;
        let bad = |why: String| HubError::BadAnswer { reference: model.to_string(), why: shorten(&one_line(&why)) };
        let answer: ModelAnswer = serde_json::from_slice(&body).map_err(|error| bad(error.to_string()))?;
        if answer.sha.len() != 40 || !answer.sha.bytes().all(|b| b.is_ascii_hexdigit()) {
            return Err(bad("its commit is no commit".to_owned()));
        }
        if answer.siblings.len() > MAX_FILES {
            return Err(bad(format!("it has more than {MAX_FILES} files")));
        }
        let license = answer.card_data.get("license_name").or_else(|| answer.card_data.get("license"));
        let license = license.and_then(Value::as_str).map(|text| shorten(&one_line(text)));
        let mut files = Vec::new();
        for sibling in answer.siblings.into_iter().filter(|it| is_usable(&it.rfilename, it.size())) {
            let (size, checksum) = (sibling.size(), sibling.checksum());
            let request = self.file_request(model, &answer.sha, &sibling.rfilename)?;
            files.push(HubFile { path: sibling.rfilename, size, checksum, request });
        }
        check_names(&files).map_err(bad)?;
        let is_gated = !matches!(answer.gated, Value::Null | Value::Bool(false));
        Ok(Repository { license, is_gated, ..Repository::new(answer.sha, files) })
    }

    /// A request for a file at a commit.
    fn file_request(&self, model: &HuggingFaceModel, commit: &str, path: &str) -> Result<Request, HubError> {
        // A '/' must stay as it is: '%2F' counts as another, much scarcer class of requests.
        let path = path.split('/').map(escape).collect::<Vec<_>>().join("/");
        self.request(&format!("{}/{}/resolve/{commit}/{path}", self.settings.endpoint, model.repository))
    }

    fn request(&self, url: &str) -> Result<Request, HubError> {
        let bad = |why| DownloadError::BadUrl { url: shorten(&one_line(url)), why };
        Ok(Request::new(Location::parse(url).map_err(bad)?, self.settings.token.clone()))
    }

    /// Translates the hub's refusals. A hub answers 401 for much that is not about tokens, so its own code decides.
    pub(super) fn explain_hugging_face(&self, error: DownloadError, model: &HuggingFaceModel) -> HubError {
        let Some(refusal) = error.refusal() else { return error.into() };
        let endpoint = Location::parse(&self.settings.endpoint);
        if endpoint.is_ok_and(|endpoint| endpoint.origin() != refusal.location.origin()) {
            // A server to which the hub redirects knows nothing about repositories.
            return error.into();
        }
        let repository = model.repository.clone();
        match (refusal.code.as_deref(), refusal.status.as_u16()) {
            (Some("GatedRepo"), _) => HubError::Gated {
                reference: format!("hf:{repository}"),
                page: format!("{}/{repository}", self.settings.endpoint),
                had_token: self.settings.token.is_some(),
            },
            (Some("RevisionNotFound"), _) => HubError::NoRevision {
                repository,
                revision: model.revision.clone().unwrap_or_else(|| "main".to_owned()),
            },
            (Some("RepoNotFound"), _) | (None, 401 | 403 | 404) => HubError::NoRepository { repository },
            (_, 429) => HubError::RateLimit,
            _ => error.into(),
        }
    }
}

fn escape(segment: &str) -> String {
    utf8_percent_encode(segment, SEGMENT).to_string()
}

impl Sibling {
    fn size(&self) -> Option<u64> {
        self.lfs.as_ref().and_then(|lfs| lfs.size).or(self.size)
    }

    fn checksum(&self) -> Checksum {
        let is_git = |id: &&String| id.len() == 40 && id.bytes().all(|b| b.is_ascii_hexdigit());
        match (&self.lfs, self.blob_id.as_ref().filter(is_git)) {
            (Some(lfs), _) => {
                lfs.sha256.clone().filter(|digest| is_sha256(digest)).map_or(Checksum::None, Checksum::Sha256)
            }
            (None, Some(id)) => Checksum::GitBlob(id.clone()),
            (None, None) => Checksum::None,
        }
    }
}
