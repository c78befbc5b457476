//! Shares of the disk that temporary audio files may take.
//!
//! Together they leave half of the reserve of the disk free, so that stored content, which leaves all of it, does not stop
//! transcriptions. The files of one project take at most half of what all of them may take, so
//! that endless uploads of one project do not keep out the others.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::disk_space::{DataClass, DiskReserve};
use crate::error::{Code, Error, Result};
use crate::ids::ProjectId;

/// Counts the bytes of temporary files per project.
pub(super) struct TemporarySpace {
    reserve: DiskReserve,
    taken: Mutex<HashMap<ProjectId, u64>>,
}

/// The share of a file. Released when it is dropped.
pub struct SpaceShare {
    space: Arc<TemporarySpace>,
    project: ProjectId,
    bytes: u64,
}

impl TemporarySpace {
    pub fn new(reserve: DiskReserve) -> Arc<Self> {
        Arc::new(Self { reserve, taken: Mutex::default() })
    }

    /// The share of a file that is still empty.
    pub fn share(self: &Arc<Self>, project: ProjectId) -> SpaceShare {
        SpaceShare { space: self.clone(), project, bytes: 0 }
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<ProjectId, u64>> {
        self.taken.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl SpaceShare {
    /// Takes `bytes` more, which are written to the disk next.
    ///
    /// # Errors
    /// With `insufficient_storage` if the disk or the project's share is full.
    pub fn take(&mut self, bytes: u64) -> Result<()> {
        let Ok(status) = self.space.reserve.status() else { return Ok(()) };
        status.require(DataClass::Content, bytes)?;
        let mut taken = self.space.lock();
        let all: u64 = taken.values().sum();
        let own = taken.entry(self.project).or_default();
        let max = all.saturating_add(status.room(DataClass::Content)) / 2;
        if own.saturating_add(bytes) > max {
            let text = format!(
                "The audio files of your project that are being transcribed take {own} bytes of the server's disk, and may take \
                 {max}. Try again when some have ended; the operator can free space."
            );
            return Err(Error::new(Code::InsufficientStorage, text));
        }
        *own += bytes;
        self.bytes += bytes;
        Ok(())
    }
}

impl Drop for SpaceShare {
    fn drop(&mut self) {
        let mut taken = self.space.lock();
        if let Some(own) = taken.get_mut(&self.project) {
            *own = own.saturating_sub(self.bytes);
            if *own == 0 {
                taken.remove(&self.project);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::TemporarySpace;
    use crate::disk_space::{DataClass, DiskReserve};
    use crate::error::Code;
    use crate::ids::ProjectId;

    #[test]
    fn one_project_takes_at_most_half_and_gives_it_back() {
        let folder = tempfile::tempdir().unwrap();
        let space = TemporarySpace::new(DiskReserve::new(folder.path(), Some(0)));
        let [first, second] = [1, 2].map(|number| ProjectId::from_bytes([number; 16]));
        // Nothing is written, so only other programs change the room, by little.
        let part = space.reserve.status().unwrap().room(DataClass::Content) / 5 * 2;
        let mut share = space.share(first);
        share.take(part).unwrap();
        let refused = share.take(part).unwrap_err();
        assert_eq!(refused.code(), Code::InsufficientStorage);
        let mut other = space.share(second);
        other.take(part).unwrap();
        drop(share);
        space.share(first).take(part).unwrap();
        drop(other);
        assert!(space.lock().is_empty());
    }

    #[test]
    fn the_reserve_stays_free() {
        let folder = tempfile::tempdir().unwrap();
        let space = TemporarySpace::new(DiskReserve::new(folder.path(), Some(u64::MAX)));
        let refused = space.share(ProjectId::from_bytes([1; 16])).take(1).unwrap_err();
        assert_eq!(refused.code(), Code::InsufficientStorage);
        assert!(refused.message().contains("nearly full"), "{refused}");
    }
}
