//! Points at which tests make the engine panic. Outside of tests they do nothing.

#[cfg(test)]
use std::sync::{Mutex, PoisonError};

/// The armed points. Each engine has its own, so that tests do not affect each other.
#[derive(Debug, Default)]
pub struct FaultInjector {
    #[cfg(test)]
    armed: Mutex<Vec<&'static str>>,
}

impl FaultInjector {
    /// Panics if the point is armed, and disarms it.
    #[inline]
    pub fn point(&self, name: &'static str) {
        #[cfg(test)]
        self.panic_if_armed(name);
        #[cfg(not(test))]
        let _ = name;
    }
}

#[cfg(test)]
impl FaultInjector {
    /// Makes the point `name` panic the next time it is reached.
    pub fn arm(&self, name: &'static str) {
        self.lock().push(name);
    }

    /// True until the armed point is reached.
    pub fn is_armed(&self) -> bool {
        !self.lock().is_empty()
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Vec<&'static str>> {
        self.armed.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn panic_if_armed(&self, name: &'static str) {
        let mut armed = self.lock();
        if let Some(at) = armed.iter().position(|one| *one == name) {
            armed.remove(at);
            drop(armed);
            panic!("the fault {name}");
        }
    }
}
