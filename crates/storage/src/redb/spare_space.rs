//! Space that a file in the data folder occupies, until the disk is full.
//!
//! The [reserve](DiskReserve) stops this server from filling its disk, but not other programs. Then no request could be
//! metered and the database could not be repaired. So the file is removed once the disk is full, and the store uses its
//! space. When there is enough free space again, the file is created anew.
//!
//! redb needs free pages even to delete. The file gives the store room for millions of small records, without a second
//! database or a read-only mode.

use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use rustix::fs::FallocateFlags;

use crate::private_files;
use outpost_common::disk_space::{DataClass, DiskReserve};
use outpost_common::display::format_bytes;

const NAME: &str = "spare-space";
/// The file has a quarter of the reserve, and at most this many bytes.
const MAX_BYTES: u64 = 64 << 20;
/// With fewer free bytes than these, the disk is full.
const FULL: u64 = 1 << 20;

pub(crate) struct SpareSpace {
    path: PathBuf,
    reserve: DiskReserve,
}

impl SpareSpace {
    pub fn new(dir: &Path, reserve: DiskReserve) -> Self {
        Self { path: dir.join(NAME), reserve }
    }

    /// Creates the file, if there is room for it beside the reserve.
    pub fn fill(&self) {
        if let Err(cause) = self.try_fill() {
            tracing::debug!(%cause, "no space can be kept back for a full disk");
        }
    }

    fn try_fill(&self) -> io::Result<()> {
        let status = self.reserve.status()?;
        let bytes = (status.min_free / 4).min(MAX_BYTES);
        let held = std::fs::metadata(&self.path).map_or(0, |found| found.blocks().saturating_mul(512));
        if held >= bytes || status.room(DataClass::Bulk) < bytes {
            return Ok(());
        }
        let file = private_files::open_or_create(&self.path)?;
        rustix::fs::fallocate(&file, FallocateFlags::empty(), 0, bytes)?;
        Ok(())
    }

    /// Removes the file if the disk is full.
    pub fn release_if_full(&self) {
        let Ok(status) = self.reserve.status() else { return };
        if status.space.free < FULL && std::fs::remove_file(&self.path).is_ok() {
            let free = self.reserve.status().map_or(0, |status| status.space.free);
            tracing::error!(free = %format_bytes(free), "the disk is full; the store goes on with the space that it has kept back");
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::MetadataExt as _;

    use super::{NAME, SpareSpace};
    use outpost_common::disk_space::DiskReserve;

    #[test]
    fn a_quarter_of_the_reserve_is_occupied_and_stays_while_the_disk_has_space() {
        let dir = tempfile::tempdir().unwrap();
        let spare = SpareSpace::new(dir.path(), DiskReserve::new(dir.path(), Some(4 << 20)));
        spare.fill();
        spare.fill();
        let found = std::fs::metadata(dir.path().join(NAME)).unwrap();
        assert_eq!((found.len(), found.blocks() * 512 >= 1 << 20), (1 << 20, true));
        spare.release_if_full();
        assert!(dir.path().join(NAME).exists());
    }

    #[test]
    fn nothing_is_occupied_without_a_reserve_or_room() {
        let dir = tempfile::tempdir().unwrap();
        for min_free in [0, u64::MAX] {
            SpareSpace::new(dir.path(), DiskReserve::new(dir.path(), Some(min_free))).fill();
            assert!(!dir.path().join(NAME).exists());
        }
    }
}
