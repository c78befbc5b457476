//! The targets of a model, and which of them gets the next request.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use hyper_util::client::legacy::Client;
use hyper_util::rt::{TokioExecutor, TokioTimer};

use super::breaker::Breaker;
use super::config::{TargetConfig, UpstreamModel};
use super::connector::Connector;
use super::payload::PayloadBody;

/// How long a connection is kept for the next request. Many servers close theirs after five seconds.
const KEEP_CONNECTION: Duration = Duration::from_secs(4);
/// Connections to a target that are kept without a request.
const MAX_IDLE: usize = 64;
/// The longest time for which a target may ask to be left alone.
const MAX_REST: Duration = Duration::from_secs(3600);
/// When a client is to try again if all targets have as many requests as they may have.
const FULL_WAIT: Duration = Duration::from_secs(1);

/// The targets of one model and their states.
pub struct Pool {
    pub model: Arc<UpstreamModel>,
    clients: Vec<Client<Connector, PayloadBody>>,
    states: Mutex<States>,
}

struct States {
    targets: Vec<TargetState>,
    /// The target that is looked at first, so that equal ones take turns.
    next: usize,
}

#[derive(Default)]
struct TargetState {
    breaker: Breaker,
    /// Until when it has asked to be left alone.
    resting_until: Duration,
    outstanding: u32,
    /// Whether it has told a usage that cannot be true.
    is_usage_doubted: bool,
}

/// Why no target can take a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NoTarget {
    /// When one may be able to.
    pub wait: Duration,
    /// Set if the targets work, but are busy.
    pub is_busy: bool,
}

/// The state of a target, for metrics.
pub struct TargetStatus<'a> {
    pub authority: &'a str,
    pub outstanding: u32,
    pub is_open: bool,
}

impl Pool {
    pub fn new(model: Arc<UpstreamModel>) -> Self {
        let client = |target: &TargetConfig| {
            let connector = Connector::new(target.trust.clone(), model.timeouts.connect);
            Client::builder(TokioExecutor::new())
                .pool_idle_timeout(KEEP_CONNECTION)
                .pool_max_idle_per_host(MAX_IDLE)
                .pool_timer(TokioTimer::new())
                .timer(TokioTimer::new())
                .build(connector)
        };
        let clients = model.targets.iter().map(client).collect();
        let targets = model.targets.iter().map(|_| TargetState::default()).collect();
        Self { model, clients, states: Mutex::new(States { targets, next: 0 }) }
    }

    /// Takes a place at the target with the fewest running requests for its weight, of those that may be used and are not
    /// in `tried`.
    pub fn choose(self: &Arc<Self>, now: Duration, tried: &[usize]) -> Result<Permit, NoTarget> {
        let mut states = self.states();
        let States { targets, next } = &mut *states;
        let count = targets.len();
        let candidates = (0..count).map(|step| (*next + step) % count).filter(|index| !tried.contains(index));
        let usable = candidates.filter(|index| self.wait_of(*index, targets, now) == Duration::ZERO);
        let load = |index: &usize| {
            let (outstanding, weight) = (targets[*index].outstanding, self.model.targets[*index].weight);
            // Comparable as a whole number: weights are at most 1000.
            u64::from(outstanding) * 1_000_000 / u64::from(weight.max(1))
        };
        let Some(index) = usable.min_by_key(load) else {
            return Err(self.no_target(targets, now));
        };
        *next = (index + 1) % count;
        let state = &mut targets[index];
        state.outstanding += 1;
        let is_probe = state.breaker.begin();
        drop(states);
        Ok(Permit { pool: Arc::clone(self), index, is_probe, has_answered: false })
    }

    /// Why no target can take a request.
    pub fn refusal(&self, now: Duration) -> NoTarget {
        self.no_target(&self.states().targets, now)
    }

    pub fn statuses(&self) -> Vec<TargetStatus<'_>> {
        let states = self.states();
        let pairs = self.model.targets.iter().zip(&states.targets);
        pairs
            .map(|(config, state)| TargetStatus {
                authority: config.address.authority(),
                outstanding: state.outstanding,
                is_open: state.breaker.is_open(),
            })
            .collect()
    }

    fn no_target(&self, targets: &[TargetState], now: Duration) -> NoTarget {
        let waits = (0..targets.len()).map(|index| self.wait_of(index, targets, now));
        let is_busy = targets.iter().any(|state| !state.breaker.is_open());
        NoTarget { wait: waits.min().unwrap_or_default(), is_busy }
    }

    /// How long a target must not get a request; zero if it may get one now.
    fn wait_of(&self, index: usize, targets: &[TargetState], now: Duration) -> Duration {
        let (state, config) = (&targets[index], &self.model.targets[index]);
        let full = if state.outstanding >= config.max_outstanding { FULL_WAIT } else { Duration::ZERO };
        state.breaker.wait(now).max(state.resting_until.saturating_sub(now)).max(full)
    }

    fn states(&self) -> MutexGuard<'_, States> {
        self.states.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A place at a target. It counts as one of the target's running requests until it is dropped.
pub struct Permit {
    pool: Arc<Pool>,
    index: usize,
    /// Set for the request that tries a target whose breaker is open, until its outcome is known.
    is_probe: bool,
    /// Set once the response has begun. It counts as a success when the permit is dropped, unless it fails before.
    has_answered: bool,
}

impl Permit {
    pub fn index(&self) -> usize {
        self.index
    }

    pub fn model(&self) -> &Arc<UpstreamModel> {
        &self.pool.model
    }

    pub fn target(&self) -> &TargetConfig {
        &self.pool.model.targets[self.index]
    }

    pub fn client(&self) -> &Client<Connector, PayloadBody> {
        &self.pool.clients[self.index]
    }

    /// The response has begun. It is a success unless [`Self::fail`] is called before the permit is dropped.
    pub fn answer(&mut self) {
        self.has_answered = true;
        let is_probe = std::mem::take(&mut self.is_probe);
        self.pool.states().targets[self.index].breaker.answer(is_probe);
    }

    /// The target has answered all that is needed of it.
    pub fn succeed(&mut self) {
        self.has_answered = false;
        let is_probe = std::mem::take(&mut self.is_probe);
        self.pool.states().targets[self.index].breaker.succeed(is_probe);
    }

    /// The target has closed a connection before it answered. Returns whether that is no failure.
    pub fn forgive_close(&mut self) -> bool {
        self.pool.states().targets[self.index].breaker.forgive_close(self.is_probe)
    }

    /// The request has failed because of the target. `uptime`: now.
    pub fn fail(&mut self, uptime: Duration) {
        self.has_answered = false;
        let is_probe = std::mem::take(&mut self.is_probe);
        let opens = self.pool.states().targets[self.index].breaker.fail(uptime, is_probe);
        if opens {
            let (model, target) = (self.model().id.as_str(), self.target().address.authority());
            tracing::warn!(model, target, "the target fails; requests are kept away from it for a while");
        }
    }

    /// Notes that the target tells a usage that cannot be true. Returns whether this is the first time.
    pub fn doubt_usage(&self) -> bool {
        let was_doubted = std::mem::replace(&mut self.pool.states().targets[self.index].is_usage_doubted, true);
        !was_doubted
    }

    /// The target asks to be left alone for a while. It works otherwise.
    pub fn rest(&mut self, uptime: Duration, wait: Duration) {
        self.succeed();
        let mut states = self.pool.states();
        let state = &mut states.targets[self.index];
        state.resting_until = state.resting_until.max(uptime + wait.min(MAX_REST));
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        let mut states = self.pool.states();
        let state = &mut states.targets[self.index];
        state.outstanding = state.outstanding.saturating_sub(1);
        if self.is_probe {
            state.breaker.cancel_probe();
        } else if self.has_answered {
            state.breaker.succeed(false);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    const NOW: Duration = Duration::from_secs(100);

    /// A pool of targets with these weights, each with at most three requests.
    fn pool(weights: &[u32]) -> Arc<Pool> {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("upstream.toml");
        let target = |(index, weight)| {
            format!("[[target]]\nurl = \"http://t{index}\"\nweight = {weight}\nmax_outstanding = 3\n")
        };
        let targets: String = weights.iter().enumerate().map(target).collect();
        fs::write(&path, format!("kind = \"chat\"\n{targets}")).unwrap();
        Arc::new(Pool::new(UpstreamModel::read("m", &path).unwrap()))
    }

    fn take(pool: &Arc<Pool>, count: usize) -> (Vec<Permit>, Vec<usize>) {
        let permits: Vec<Permit> = (0..count).map(|_| pool.choose(NOW, &[]).ok().unwrap()).collect();
        let indices = permits.iter().map(Permit::index).collect();
        (permits, indices)
    }

    #[test]
    fn equal_targets_take_turns() {
        let pool = pool(&[1, 1, 1]);
        let one_by_one: Vec<usize> = (0..6).map(|_| take(&pool, 1).1[0]).collect();
        assert_eq!(one_by_one, [0, 1, 2, 0, 1, 2]);
        assert_eq!(take(&pool, 3).1, [0, 1, 2]);
    }

    #[test]
    fn a_target_with_twice_the_weight_gets_twice_the_requests() {
        let (permits, indices) = take(&pool(&[1, 2]), 3);
        assert_eq!(indices.iter().filter(|index| **index == 1).count(), 2, "{indices:?}");
        drop(permits);
    }

    #[test]
    fn a_full_pool_is_busy() {
        let pool = pool(&[1, 5]);
        let (permits, _) = take(&pool, 6);
        assert_eq!(pool.choose(NOW, &[]).err(), Some(NoTarget { wait: FULL_WAIT, is_busy: true }));
        drop(permits);
        assert!(pool.choose(NOW, &[0]).is_ok_and(|permit| permit.index() == 1));
        assert!(pool.choose(NOW, &[0, 1]).is_err());
    }

    #[test]
    fn an_answer_that_breaks_off_is_a_failure() {
        let pool = pool(&[1]);
        let begun = || {
            let mut permit = pool.choose(NOW, &[]).ok().unwrap();
            permit.answer();
            permit
        };
        (0..4).for_each(|_| begun().fail(NOW));
        drop(begun());
        (0..5).for_each(|_| begun().fail(NOW));
        assert!(pool.choose(NOW, &[]).is_err());
    }

    #[test]
    fn a_doubtful_usage_is_new_once_for_each_target() {
        let pool = pool(&[1, 1]);
        let doubt = |tried: &[usize]| pool.choose(NOW, tried).ok().unwrap().doubt_usage();
        assert_eq!([doubt(&[0]), doubt(&[0]), doubt(&[1]), doubt(&[1])], [true, false, true, false]);
    }

    #[test]
    fn targets_that_fail_or_rest_get_no_requests() {
        let pool = pool(&[1, 1]);
        for _ in 0..5 {
            pool.choose(NOW, &[1]).ok().unwrap().fail(NOW);
        }
        assert_eq!(take(&pool, 2).1, [1, 1]);
        pool.choose(NOW, &[]).ok().unwrap().rest(NOW, Duration::from_secs(7));
        assert_eq!(pool.choose(NOW, &[]).err(), Some(NoTarget { wait: Duration::from_secs(1), is_busy: true }));
        let later = NOW + Duration::from_secs(1);
        let probe = pool.choose(later, &[]).ok().unwrap();
        assert_eq!(probe.index(), 0);
        assert!(pool.choose(later, &[]).is_err());
        // The client left before the target answered.
        drop(probe);
        assert_eq!(pool.choose(later, &[]).ok().unwrap().index(), 0);
        assert_eq!(pool.choose(NOW + Duration::from_secs(7), &[0]).ok().unwrap().index(), 1);
    }
}
