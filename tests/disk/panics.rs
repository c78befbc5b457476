//! Panics of the program under test. The store catches those of its database, so a test that
//! looks at answers alone would not see them.

use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::sync::{Mutex, MutexGuard, Once, PoisonError};

static COUNT: AtomicUsize = AtomicUsize::new(0);
static ALONE: Mutex<()> = Mutex::new(());
static HOOK: Once = Once::new();

/// While it lives, no other test of this program watches.
pub struct Watch {
    _alone: MutexGuard<'static, ()>,
    before: usize,
}

/// Waits for its turn.
pub fn watch() -> Watch {
    HOOK.call_once(|| {
        let usual = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |info| {
            // A failing assertion of a test is not what is counted.
            let ours = info.location().is_some_and(|place| place.file().starts_with("tests/"));
            COUNT.fetch_add(usize::from(!ours), SeqCst);
            usual(info);
        }));
    });
    let alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    Watch { _alone: alone, before: COUNT.load(SeqCst) }
}

impl Watch {
    /// How many panics there were since the watch began.
    pub fn count(&self) -> usize {
        COUNT.load(SeqCst) - self.before
    }
}
