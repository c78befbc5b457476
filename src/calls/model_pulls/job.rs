//! A pull and its status.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};

use tokio::sync::watch;

use super::request::PullRequest;
use crate::clock_rng::Timestamp;
use crate::error::{Code, Error};
use crate::ids::PullId;
use crate::service::access::Access;
use crate::service::audit::pull_log::PullEnd;

/// The step at which a pull is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PullState {
    Queued,
    /// The list of files and their headers are read.
    Resolving,
    Downloading,
    Verifying,
    /// Files are unpacked or converted, and moved into the models folder.
    Installing,
    Ended(PullEnd),
}

impl PullState {
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Queued => "queued",
            Self::Resolving => "resolving",
            Self::Downloading => "downloading",
            Self::Verifying => "verifying",
            Self::Installing => "installing",
            Self::Ended(end) => end.as_str(),
        }
    }

    pub fn end(self) -> Option<PullEnd> {
        match self {
            Self::Ended(end) => Some(end),
            _ => None,
        }
    }

    pub fn has_ended(self) -> bool {
        self.end().is_some()
    }
}

/// The progress of a pull.
#[derive(Clone, Debug)]
pub struct PullStatus {
    pub state: PullState,
    /// The name that the model gets, once it is known.
    pub name: Option<String>,
    pub revision: Option<String>,
    pub license: Option<String>,
    /// The file that is downloaded or verified now.
    pub file: Option<String>,
    /// The sha256 of the file, or if there are several, of their names and hashes.
    pub digest: Option<String>,
    pub total_bytes: Option<u64>,
    pub completed_bytes: u64,
    pub bytes_per_second: Option<u64>,
    /// The reason of a wait, or the way in which the pull handles a problem.
    pub message: Option<String>,
    pub error: Option<PullFailure>,
    pub ended_at: Option<Timestamp>,
}

/// Why a pull has not succeeded.
#[derive(Clone, Debug)]
pub struct PullFailure {
    pub code: Code,
    pub message: String,
}

impl From<&Error> for PullFailure {
    fn from(error: &Error) -> Self {
        Self { code: error.code(), message: error.message().to_owned() }
    }
}

/// A pull at a moment.
#[derive(Clone, Debug)]
pub struct Pull {
    pub id: PullId,
    /// The model as it was requested, such as `hf:USER/REPO:Q4_K_M`.
    pub model: String,
    pub created_at: Timestamp,
    pub status: PullStatus,
}

/// A pull that is queued, runs or has ended.
pub(super) struct Job {
    pub id: PullId,
    pub request: PullRequest,
    /// Of the key that has requested it.
    pub access: Access,
    pub created_at: Timestamp,
    pub status: watch::Sender<PullStatus>,
    is_cancelled: AtomicBool,
    /// The key that has cancelled it; `None`: the server stops.
    cancelled_by: Mutex<Option<Access>>,
}

impl Job {
    pub fn new(id: PullId, request: PullRequest, access: Access, created_at: Timestamp) -> Self {
        let status = PullStatus {
            state: PullState::Queued,
            name: request.name.clone(),
            revision: None,
            license: None,
            file: None,
            digest: None,
            total_bytes: None,
            completed_bytes: 0,
            bytes_per_second: None,
            message: None,
            error: None,
            ended_at: None,
        };
        let (status, _) = watch::channel(status);
        let (is_cancelled, cancelled_by) = (AtomicBool::new(false), Mutex::new(None));
        Self { id, request, access, created_at, status, is_cancelled, cancelled_by }
    }

    pub fn snapshot(&self) -> Pull {
        let status = self.status.borrow().clone();
        Pull { id: self.id, model: self.request.model(), created_at: self.created_at, status }
    }

    pub fn state(&self) -> PullState {
        self.status.borrow().state
    }

    /// True while the pull is queued or runs, and was not cancelled.
    pub fn goes_on(&self) -> bool {
        !self.is_cancelled() && !self.state().has_ended()
    }

    /// `by`: the key that cancels it; `None`: the server stops.
    pub fn cancel(&self, by: Option<Access>) {
        if !self.is_cancelled.swap(true, Ordering::SeqCst) {
            *self.cancelled_by.lock().unwrap_or_else(PoisonError::into_inner) = by;
        }
    }

    pub fn is_cancelled(&self) -> bool {
        self.is_cancelled.load(Ordering::SeqCst)
    }

    pub fn cancelled_by(&self) -> Option<Access> {
        self.cancelled_by.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}
