//! Counts panics of the program under test. The store catches panics of its database, so they are not visible in
//! results.

use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::sync::{Mutex, MutexGuard, Once, PoisonError};

static COUNT: AtomicUsize = AtomicUsize::new(0);
static LOCK: Mutex<()> = Mutex::new(());
static HOOK: Once = Once::new();

/// Counts panics since its creation. Only one exists at a time.
pub struct Watch {
    _lock: MutexGuard<'static, ()>,
    before: usize,
}

/// Starts to count panics, after other tests have stopped.
pub fn watch() -> Watch {
    HOOK.call_once(|| {
        let default_hook = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |info| {
            // Failed assertions of tests are not counted.
            let is_in_test = info.location().is_some_and(|location| location.file().starts_with("tests/"));
            COUNT.fetch_add(usize::from(!is_in_test), SeqCst);
            default_hook(info);
        }));
    });
    let lock = LOCK.lock().unwrap_or_else(PoisonError::into_inner);
    Watch { _lock: lock, before: COUNT.load(SeqCst) }
}

impl Watch {
    /// The number of panics since the creation.
    pub fn count(&self) -> usize {
        COUNT.load(SeqCst) - self.before
    }
}
