//! A thread that computes only while the worker waits for it: a network that takes seconds is written as if it were
//! alone, and yet answers being generated have their turn every few milliseconds.

use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use crate::clock_rng::ClockRng;
use crate::models::diffusion::pipeline::Interrupted;

/// What is called between pieces of work.
pub(in crate::engine) type Pause<'a> = &'a dyn Fn() -> Result<(), Interrupted>;
/// A picture's work; it is told to pause often.
pub(in crate::engine) type Task = Box<dyn FnOnce(Pause<'_>) + Send>;

pub(in crate::engine) struct Painter {
    turn: Arc<Turn>,
    thread: Option<JoinHandle<()>>,
}

struct Turn {
    state: Mutex<State>,
    changed: Condvar,
    clock: Arc<dyn ClockRng>,
}

#[derive(Default)]
struct State {
    /// Whose turn it is: the worker's otherwise.
    painters: bool,
    task: Option<Task>,
    /// A task was given and has not ended.
    busy: bool,
    /// When the painter's turn ends.
    until: Duration,
    closed: bool,
}

impl Turn {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until the turn is the painter's, or nobody's any more.
    fn wait<'a>(&self, state: MutexGuard<'a, State>) -> MutexGuard<'a, State> {
        self.changed.wait_while(state, |state| !state.painters && !state.closed).unwrap_or_else(PoisonError::into_inner)
    }

    fn pass(&self, state: &mut State) {
        state.painters = false;
        self.changed.notify_all();
    }

    /// The painter's: goes on while his turn lasts, else waits for the next one.
    fn pause(&self) -> Result<(), Interrupted> {
        let mut state = self.lock();
        if !state.closed && self.clock.uptime() >= state.until {
            self.pass(&mut state);
            state = self.wait(state);
        }
        if state.closed { Err(Interrupted::Cancelled) } else { Ok(()) }
    }

    /// The painter's thread.
    fn work(&self) {
        let mut state = self.lock();
        loop {
            state = self.wait(state);
            if state.closed {
                return;
            }
            if let Some(task) = state.task.take() {
                drop(state);
                task(&|| self.pause());
                state = self.lock();
                state.busy = false;
            }
            self.pass(&mut state);
        }
    }
}

impl Painter {
    /// Errors come from the operating system refusing a thread.
    pub fn start(clock: Arc<dyn ClockRng>) -> std::io::Result<Self> {
        let turn = Arc::new(Turn { state: Mutex::default(), changed: Condvar::new(), clock });
        let own = Arc::clone(&turn);
        let thread = std::thread::Builder::new().name("painter".to_owned()).spawn(move || own.work())?;
        Ok(Self { turn, thread: Some(thread) })
    }

    /// Gives it something to do, where it has nothing.
    pub fn begin(&self, task: Task) {
        let mut state = self.turn.lock();
        (state.task, state.busy) = (Some(task), true);
    }

    pub fn is_busy(&self) -> bool {
        self.turn.lock().busy
    }

    /// Lets it compute until about then.
    pub fn go_on(&self, until: Duration) {
        let mut state = self.turn.lock();
        (state.painters, state.until) = (true, until);
        self.turn.changed.notify_all();
        let waited = self.turn.changed.wait_while(state, |state| state.painters);
        drop(waited.unwrap_or_else(PoisonError::into_inner));
    }
}

impl Drop for Painter {
    fn drop(&mut self) {
        self.turn.lock().closed = true;
        self.turn.changed.notify_all();
        if let Some(thread) = self.thread.take() {
            drop(thread.join());
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;
    use crate::clock_rng::Timestamp;

    /// Time stands still.
    struct Still;

    impl ClockRng for Still {
        fn now(&self) -> Timestamp {
            Timestamp::ORIGIN
        }

        fn uptime(&self) -> Duration {
            Duration::ZERO
        }

        fn fill(&self, _: &mut [u8]) {}
    }

    fn painter() -> Painter {
        Painter::start(Arc::new(Still)).unwrap()
    }

    #[test]
    fn a_task_goes_on_turn_by_turn() {
        let (painter, steps) = (painter(), Arc::new(AtomicUsize::new(0)));
        let own = Arc::clone(&steps);
        painter.begin(Box::new(move |pause| {
            for _ in 0..5 {
                own.fetch_add(1, Ordering::SeqCst);
                pause().unwrap();
            }
        }));
        assert_eq!(steps.load(Ordering::SeqCst), 0, "it is not its turn");
        for turn in 1..=5 {
            assert!(painter.is_busy());
            // A turn that has ended as it begins lasts until the next pause.
            painter.go_on(Duration::ZERO);
            assert_eq!(steps.load(Ordering::SeqCst), turn);
        }
        painter.go_on(Duration::ZERO);
        assert!(!painter.is_busy());
    }

    #[test]
    fn it_stops_when_nobody_lets_it_go_on() {
        let (painter, outcome) = (painter(), Arc::new(Mutex::new(None)));
        let own = Arc::clone(&outcome);
        painter.begin(Box::new(move |pause| *own.lock().unwrap() = Some(pause())));
        painter.go_on(Duration::ZERO);
        drop(painter);
        assert_eq!(*outcome.lock().unwrap(), Some(Err(Interrupted::Cancelled)));
    }
}
