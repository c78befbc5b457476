//! Points at which tests make the engine panic. Outside of tests they do nothing.

#[cfg(test)]
use std::sync::{Mutex, PoisonError};

/// The points that are armed; one engine's tests do not disturb another's.
#[derive(Debug, Default)]
pub struct Faults {
    #[cfg(test)]
    armed: Mutex<Vec<&'static str>>,
}

impl Faults {
    /// Panics if the point is armed. It is disarmed by that.
    #[inline]
    pub fn point(&self, name: &'static str) {
        #[cfg(test)]
        self.strike(name);
        #[cfg(not(test))]
        let _ = name;
    }
}

#[cfg(test)]
impl Faults {
    /// The next time that `name` is reached, it panics.
    pub fn arm(&self, name: &'static str) {
        self.lock().push(name);
    }

    /// Whether an armed point has not been reached yet.
    pub fn is_armed(&self) -> bool {
        !self.lock().is_empty()
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Vec<&'static str>> {
        self.armed.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn strike(&self, name: &'static str) {
        let mut armed = self.lock();
        if let Some(at) = armed.iter().position(|one| *one == name) {
            armed.remove(at);
            drop(armed);
            panic!("the fault {name}");
        }
    }
}
