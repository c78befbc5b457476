//! The outcome of a check.

use serde::Serialize;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Status {
    Ok,
    /// The server works, but not as well as it could.
    Warn,
    /// The server will not start, or will fail.
    Fail,
    /// Not checked.
    Skip,
}

impl Status {
    pub fn name(self) -> &'static str {
        match self {
            Self::Ok => "ok",
            Self::Warn => "warn",
            Self::Fail => "FAIL",
            Self::Skip => "-",
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(super) struct Finding {
    pub check: &'static str,
    pub status: Status,
    pub found: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub remedy: Option<String>,
}

impl Finding {
    pub fn ok(check: &'static str, found: impl Into<String>) -> Self {
        Self { check, status: Status::Ok, found: found.into(), remedy: None }
    }

    pub fn skip(check: &'static str, reason: impl Into<String>) -> Self {
        Self { status: Status::Skip, ..Self::ok(check, reason) }
    }

    pub fn warn(check: &'static str, found: impl Into<String>, remedy: impl Into<String>) -> Self {
        Self { status: Status::Warn, remedy: Some(remedy.into()), ..Self::ok(check, found) }
    }

    pub fn fail(check: &'static str, found: impl Into<String>, remedy: impl Into<String>) -> Self {
        Self { status: Status::Fail, ..Self::warn(check, found, remedy) }
    }
}
