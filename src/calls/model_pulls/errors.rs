//! Turns errors of hubs and of the catalog into API errors.

use crate::catalog::{FolderError, PullError};
use crate::download::DownloadError;
use crate::error::{Code, Error};
use crate::hub::HubError;

/// Words in messages of the command line, and those that replace them in the API.
const API_TERMS: [(&str, &str); 7] = [
    ("--allow-host", "--pull-allowed-host"),
    ("use --force", "send 'force'"),
    ("--force pulls it all the same", "'force' pulls it all the same"),
    ("--name", "'name'"),
    ("--sha256", "'sha256'"),
    ("run the same command", "send the same request"),
    ("this command can", "a pull can"),
];

/// Max characters of a message. It is kept with the pull and in the audit log.
const MAX_CHARS: usize = 4000;

pub(super) fn from_hub(error: &HubError) -> Error {
    let param = match error {
        HubError::BadName(_) | HubError::Exists { .. } => "name",
        HubError::OtherHash { .. } => "sha256",
        _ => "model",
    };
    let code = match error {
        HubError::NoRepository { .. } | HubError::NoRevision { .. } | HubError::NoManifest { .. } => Code::NotFound,
        HubError::Exists { .. } => Code::Conflict,
        HubError::Download(DownloadError::DiskFull(_) | DownloadError::Io { .. }) => Code::StorageUnavailable,
        HubError::RateLimit | HubError::BadAnswer { .. } | HubError::Download(_) => Code::PullFailed,
        HubError::Folder(error) => of_folder(error),
        HubError::Io { .. } => Code::StorageUnavailable,
        _ => Code::InvalidParameter,
    };
    error_about(code, &error.to_string(), param)
}

pub(super) fn from_catalog(error: &PullError) -> Error {
    let code = match error {
        PullError::Folder(error) => of_folder(error),
        PullError::InTheWay { .. } => Code::Conflict,
        _ => Code::PullFailed,
    };
    error_about(code, &error.to_string(), "model")
}

fn of_folder(error: &FolderError) -> Code {
    match error {
        FolderError::Busy(_) => Code::Conflict,
        _ => Code::StorageUnavailable,
    }
}

fn error_about(code: Code, text: &str, param: &str) -> Error {
    let text = API_TERMS.iter().fold(text.to_owned(), |text, (there, here)| text.replace(there, here));
    // Names in it are those of the source.
    let text = match text.char_indices().nth(MAX_CHARS) {
        Some((cut, _)) => format!("{}…", text.get(..cut).unwrap_or_default()),
        None => text,
    };
    let end = if text.ends_with('.') { "" } else { "." };
    let error = Error::new(code, format!("{text}{end}"));
    // Other errors are not about the request.
    if code.status() < 500 { error.param(param) } else { error }
}

/// The error of a pull that was cancelled. `by_key`: by a key; else the server stops.
pub(super) fn cancelled(by_key: bool) -> Error {
    let why = if by_key { "The pull was cancelled." } else { "The server was stopped." };
    let text = format!("{why} What has arrived is kept: the same request goes on from there.");
    Error::new(if by_key { Code::Conflict } else { Code::ShuttingDown }, text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_have_the_terms_of_the_api() {
        let exists = from_hub(&HubError::Exists { path: "models/a".into() });
        assert_eq!((exists.code(), exists.param_name()), (Code::Conflict, Some("name")));
        assert_eq!(
            exists.message(),
            "models/a exists already; send 'force' to replace it, or 'name' for another name."
        );
        let limit = from_hub(&HubError::RateLimit);
        assert_eq!((limit.code(), limit.param_name()), (Code::PullFailed, None));
        assert!(limit.message().contains("send the same request later"), "{limit}");
        let busy = from_catalog(&PullError::Folder(FolderError::Busy("a".to_owned())));
        assert_eq!(busy.code(), Code::Conflict);
        for error in [exists, limit, busy] {
            assert!(!error.message().contains("--"), "{error}");
        }
    }
}
