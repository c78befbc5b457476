//! Exclusive file locks, across processes.

use std::fs::{File, TryLockError};

/// The exclusive advisory lock on a file. It is released when this value is dropped or the process ends.
#[derive(Debug)]
pub struct FileLock(File);

impl FileLock {
    /// Does not wait; `WouldBlock` means that the lock is held.
    pub fn try_acquire(file: File) -> Result<Self, TryLockError> {
        file.try_lock()?;
        Ok(Self(file))
    }
}

impl Drop for FileLock {
    fn drop(&mut self) {
        // Closing alone releases the lock only with the last descriptor, and a child process that is being started
        // holds one until it execs.
        let _closed_next = self.0.unlock();
    }
}

#[cfg(test)]
mod tests {
    use std::fs::{File, TryLockError};

    use super::FileLock;

    #[test]
    fn a_lock_ends_with_its_holder_whoever_else_has_the_descriptor() {
        let dir = tempfile::tempdir().unwrap();
        let open = || File::create(dir.path().join("lock")).unwrap();
        let file = open();
        // As a child process has it between fork and exec.
        let inherited = file.try_clone().unwrap();
        let held = FileLock::try_acquire(file).unwrap();
        assert!(matches!(FileLock::try_acquire(open()), Err(TryLockError::WouldBlock)));
        drop(held);
        let again = FileLock::try_acquire(open()).unwrap();
        drop(inherited);
        assert!(matches!(FileLock::try_acquire(open()), Err(TryLockError::WouldBlock)));
        drop(again);
    }
}
