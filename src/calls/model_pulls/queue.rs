//! The pulls of this server: those that wait, the one that runs, and the last ones that have ended.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError};

use super::job::Job;
use super::request::PullRequest;
use crate::error::{Code, Error, Result};
use crate::ids::PullId;
use crate::service::access::Access;

/// Pulls that may wait.
const MAX_QUEUED: usize = 16;
/// Pulls that are kept after their end.
const MAX_ENDED: usize = 50;

#[derive(Default)]
pub(super) struct PullQueue(Mutex<Pulls>);

#[derive(Default)]
struct Pulls {
    /// The oldest first.
    all: VecDeque<Arc<Job>>,
    waiting: VecDeque<Arc<Job>>,
    is_closed: bool,
}

impl Pulls {
    fn require_room(&self) -> Result<()> {
        if self.is_closed {
            return Err(Error::new(Code::ShuttingDown, "The server is shutting down. Try again when it is back."));
        }
        if self.waiting.len() >= MAX_QUEUED {
            let text = format!(
                "{MAX_QUEUED} pulls are waiting already, and one runs at a time. Try again later, or cancel some of them."
            );
            return Err(Error::new(Code::Overloaded, text));
        }
        Ok(())
    }
}

impl PullQueue {
    /// The pull of an equal request that has not ended. Its key must be restricted to the same models, because that decides
    /// what the pull may install.
    pub fn find_equal(&self, request: &PullRequest, access: &Access) -> Option<Arc<Job>> {
        let is_equal = |job: &Arc<Job>| job.request == *request && job.access.models() == access.models();
        self.with(|pulls| pulls.all.iter().find(|job| is_equal(job) && job.goes_on()).cloned())
    }

    /// # Errors
    /// If no further pull may wait.
    pub fn require_room(&self) -> Result<()> {
        self.with(|pulls| pulls.require_room())
    }

    pub fn push(&self, job: Arc<Job>) -> Result<()> {
        self.with(|pulls| {
            pulls.require_room()?;
            let ended = pulls.all.iter().filter(|job| job.state().has_ended()).count();
            let mut surplus = (ended + 1).saturating_sub(MAX_ENDED);
            pulls.all.retain(|job| {
                let goes = surplus > 0 && job.state().has_ended();
                surplus -= usize::from(goes);
                !goes
            });
            pulls.all.push_back(Arc::clone(&job));
            pulls.waiting.push_back(job);
            Ok(())
        })
    }

    /// Removes and returns the pull that has waited longest.
    pub fn next(&self) -> Option<Arc<Job>> {
        self.with(|pulls| pulls.waiting.pop_front())
    }

    /// Removes a pull from those that wait. Returns whether it was waiting.
    pub fn take(&self, job: &Arc<Job>) -> bool {
        self.with(|pulls| {
            let before = pulls.waiting.len();
            pulls.waiting.retain(|waiting| !Arc::ptr_eq(waiting, job));
            pulls.waiting.len() < before
        })
    }

    /// Refuses further pulls.
    pub fn close(&self) {
        self.with(|pulls| pulls.is_closed = true);
    }

    /// The pulls that a key may see, the newest first. A key that is restricted to some models sees those of keys that are
    /// restricted to these or fewer.
    pub fn list(&self, access: &Access) -> Vec<Arc<Job>> {
        self.with(|pulls| pulls.all.iter().rev().filter(|job| may_see(access, job)).cloned().collect())
    }

    /// True if the pull exists, even if a key may not see it.
    pub fn has(&self, id: PullId) -> bool {
        self.with(|pulls| pulls.all.iter().any(|job| job.id == id))
    }

    /// # Errors
    /// If there is no such pull, or the key may not see it.
    pub fn find(&self, id: PullId, access: &Access) -> Result<Arc<Job>> {
        let found = self.with(|pulls| pulls.all.iter().find(|job| job.id == id && may_see(access, job)).cloned());
        found.ok_or_else(|| {
            let text = format!(
                "No pull '{id}' exists. A server knows only its own pulls since its start, and the last {MAX_ENDED} that have ended."
            );
            Error::new(Code::NotFound, text)
        })
    }

    fn with<T>(&self, work: impl FnOnce(&mut Pulls) -> T) -> T {
        work(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

fn may_see(access: &Access, job: &Job) -> bool {
    access.covers_models(job.access.models())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::calls::model_pulls::job::PullState;
    use crate::clock_rng::Timestamp;
    use crate::ids::{KeyId, ProjectId};
    use crate::service::access::Scopes;
    use crate::service::audit::pull_log::PullEnd;

    fn access(models: Option<&str>) -> Access {
        let (key, project) = (KeyId::from_bytes([1; 16]), ProjectId::from_bytes([1; 16]));
        Access::for_tests(key, project, Scopes::ALL, models.map(|model| vec![model.to_owned()]))
    }

    fn job(number: u8) -> Arc<Job> {
        let request = PullRequest::new(&format!("hf:u/r{number}"), None, false, None).unwrap();
        Arc::new(Job::new(PullId::from_bytes([number; 16]), request, access(None), Timestamp::ORIGIN))
    }

    #[test]
    fn only_so_many_pulls_wait() {
        let queue = PullQueue::default();
        (0..16).for_each(|number| queue.push(job(number)).unwrap());
        assert_eq!(queue.push(job(16)).unwrap_err().code(), Code::Overloaded);
        let first = queue.next().unwrap();
        assert_eq!(first.id, PullId::from_bytes([0; 16]));
        assert!(!queue.take(&first), "it does not wait any more");
        queue.push(job(16)).unwrap();
        queue.close();
        assert_eq!(queue.push(job(17)).unwrap_err().code(), Code::ShuttingDown);
    }

    #[test]
    fn the_oldest_of_those_that_have_ended_are_forgotten() {
        let queue = PullQueue::default();
        let running = job(0);
        queue.push(Arc::clone(&running)).unwrap();
        queue.next();
        for number in 1..100 {
            let job = job(number);
            queue.push(Arc::clone(&job)).unwrap();
            queue.next();
            job.status.send_modify(|status| status.state = PullState::Ended(PullEnd::Failed));
        }
        let find = |id| queue.find(id, &access(None)).map(|job| job.id);
        assert_eq!(queue.list(&access(None)).len(), 51);
        assert!(find(running.id).is_ok() && find(PullId::from_bytes([99; 16])).is_ok());
        assert_eq!(find(PullId::from_bytes([40; 16])).unwrap_err().code(), Code::NotFound);
    }

    #[test]
    fn a_restricted_key_sees_only_pulls_of_keys_with_its_models() {
        let queue = PullQueue::default();
        let id = |number| PullId::from_bytes([number; 16]);
        for (number, models) in [(1, None), (2, Some("a")), (3, Some("b"))] {
            let request = PullRequest::new("hf:u/r", None, false, None).unwrap();
            queue.push(Arc::new(Job::new(id(number), request, access(models), Timestamp::ORIGIN))).unwrap();
        }
        for (models, visible) in [(None, [3, 2, 1].as_slice()), (Some("a"), &[2]), (Some("c"), &[])] {
            let access = access(models);
            let listed: Vec<_> = queue.list(&access).iter().map(|job| job.id).collect();
            assert_eq!(listed, visible.iter().map(|number| id(*number)).collect::<Vec<_>>());
            for number in 1..=3 {
                assert_eq!(queue.find(id(number), &access).is_ok(), visible.contains(&number));
            }
        }
    }

    #[test]
    fn an_equal_request_finds_the_pull_until_it_ends() {
        let queue = PullQueue::default();
        let first = job(1);
        queue.push(Arc::clone(&first)).unwrap();
        let is_found = |job: &Job, models| queue.find_equal(&job.request, &access(models)).is_some();
        assert!(is_found(&first, None) && !is_found(&job(2), None));
        assert!(!is_found(&first, Some("r1")), "a restricted key does not join the pull of one that is not");
        first.cancel(None);
        assert!(!is_found(&first, None));
    }
}
