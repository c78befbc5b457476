//! A thread that computes only while the compute thread waits for it. A task that takes seconds or hours is written as
//! straight code, and text generation still gets its turn every few milliseconds.

use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use outpost_common::clock_rng::ClockRng;
use outpost_models::ModelError;
use outpost_models::backend::Pause;

/// How long a turn lasts where other workloads have something to do, and where they do not but a request for them may come.
const SLICE: Duration = Duration::from_millis(4);
const SLICE_ALONE: Duration = Duration::from_millis(20);

/// The work of an image or of a training; it calls its pause function often.
pub type Task = Box<dyn FnOnce(Pause) + Send>;

pub struct TurnThread {
    handoff: Arc<Handoff>,
    thread: Option<JoinHandle<()>>,
}

struct Handoff {
    state: Mutex<State>,
    changed: Condvar,
    clock: Arc<dyn ClockRng>,
}

#[derive(Default)]
struct State {
    /// Set while this thread has the turn, and the compute thread waits.
    running: bool,
    task: Option<Task>,
    /// A task was started and has not ended.
    busy: bool,
    /// When the turn ends.
    until: Duration,
    closed: bool,
}

impl Handoff {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits for the thread's turn, or for shutdown.
    fn wait_for_turn<'a>(&self, state: MutexGuard<'a, State>) -> MutexGuard<'a, State> {
        self.changed.wait_while(state, |state| !state.running && !state.closed).unwrap_or_else(PoisonError::into_inner)
    }

    fn yield_turn(&self, state: &mut State) {
        state.running = false;
        self.changed.notify_all();
    }

    /// Called by the task: continues while its turn lasts, else waits for the next.
    fn pause(&self) -> Result<(), ModelError> {
        let mut state = self.lock();
        if !state.closed && self.clock.uptime() >= state.until {
            self.yield_turn(&mut state);
            state = self.wait_for_turn(state);
        }
        if state.closed { Err(ModelError::Interrupted) } else { Ok(()) }
    }

    /// The thread's main loop.
    fn work(self: &Arc<Self>) {
        let mut state = self.lock();
        loop {
            state = self.wait_for_turn(state);
            if state.closed {
                return;
            }
            if let Some(task) = state.task.take() {
                drop(state);
                let handoff = Arc::clone(self);
                task(Arc::new(move || handoff.pause()));
                state = self.lock();
                state.busy = false;
            }
            self.yield_turn(&mut state);
        }
    }
}

impl TurnThread {
    /// Fails if the operating system refuses a thread.
    pub fn spawn(name: &str, clock: Arc<dyn ClockRng>) -> std::io::Result<Self> {
        let handoff = Arc::new(Handoff { state: Mutex::default(), changed: Condvar::new(), clock });
        let own = Arc::clone(&handoff);
        let thread = std::thread::Builder::new().name(name.to_owned()).spawn(move || own.work())?;
        Ok(Self { handoff, thread: Some(thread) })
    }

    /// Starts a task; none may be running.
    pub fn start(&self, task: Task) {
        let mut state = self.handoff.lock();
        (state.task, state.busy) = (Some(task), true);
    }

    pub fn is_busy(&self) -> bool {
        self.handoff.lock().busy
    }

    /// Lets it compute for some milliseconds. `busy`: other workloads have something to do.
    pub fn run_slice(&self, busy: bool) {
        self.run_until(self.handoff.clock.uptime() + if busy { SLICE } else { SLICE_ALONE });
    }

    /// Lets it compute until about `until`.
    pub fn run_until(&self, until: Duration) {
        let mut state = self.handoff.lock();
        (state.running, state.until) = (true, until);
        self.handoff.changed.notify_all();
        let waited = self.handoff.changed.wait_while(state, |state| state.running);
        drop(waited.unwrap_or_else(PoisonError::into_inner));
    }
}

impl Drop for TurnThread {
    fn drop(&mut self) {
        self.handoff.lock().closed = true;
        self.handoff.changed.notify_all();
        if let Some(thread) = self.thread.take() {
            drop(thread.join());
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;
    use outpost_common::clock_rng::StoppedClock;

    fn thread() -> TurnThread {
        TurnThread::spawn("test", Arc::new(StoppedClock)).unwrap()
    }

    #[test]
    fn a_task_runs_in_turns() {
        let (thread, steps) = (thread(), Arc::new(AtomicUsize::new(0)));
        let own = Arc::clone(&steps);
        thread.start(Box::new(move |pause| {
            for _ in 0..5 {
                own.fetch_add(1, Ordering::SeqCst);
                pause().unwrap();
            }
        }));
        assert_eq!(steps.load(Ordering::SeqCst), 0, "it is not its turn");
        for turn in 1..=5 {
            assert!(thread.is_busy());
            // A turn that is over as it begins lasts until the next pause.
            thread.run_until(Duration::ZERO);
            assert_eq!(steps.load(Ordering::SeqCst), turn);
        }
        thread.run_until(Duration::ZERO);
        assert!(!thread.is_busy());
    }

    #[test]
    fn a_dropped_task_stops() {
        let (thread, outcome) = (thread(), Arc::new(Mutex::new(None)));
        let own = Arc::clone(&outcome);
        thread.start(Box::new(move |pause| *own.lock().unwrap() = Some(pause())));
        thread.run_until(Duration::ZERO);
        drop(thread);
        assert_eq!(*outcome.lock().unwrap(), Some(Err(ModelError::Interrupted)));
    }
}
