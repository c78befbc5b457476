//! The free space of a disk, and the part of it that the server keeps back.
//!
//! A full disk stops every project, because each request is metered durably before its response is sent. So content is refused
//! while there is still space: bulk content below the reserve, and other content below half of it. What remains is for
//! records that a running server cannot do without, such as keys, limits, usage and the audit log, and for repairing the
//! database.

use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use crate::display::format_bytes;

/// The default reserve is this share of the disk, within these bounds.
const DEFAULT_PERCENT: u64 = 2;
const SMALLEST_DEFAULT: u64 = 16 << 20;
const LARGEST_DEFAULT: u64 = 1 << 30;

/// Free and total bytes of a file system.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DiskSpace {
    pub free: u64,
    pub total: u64,
}

impl DiskSpace {
    /// The space of the file system of `path`, as far as this user may use it.
    pub fn of(path: &Path) -> io::Result<Self> {
        let found = rustix::fs::statvfs(path)?;
        let bytes = |blocks: u64| blocks.saturating_mul(found.f_frsize);
        Ok(Self { free: bytes(found.f_bavail), total: bytes(found.f_blocks) })
    }
}

/// True if both paths are on the same file system.
pub fn is_same_disk(one: &Path, other: &Path) -> bool {
    let device = |path: &Path| std::fs::metadata(path).map(|found| found.dev()).ok();
    device(one) == device(other)
}

/// The bytes of all files in a folder and in those below it, which may be nested eight levels: npm's cache has six. Files may vanish
/// meanwhile.
pub fn bytes_below(folder: &Path) -> u64 {
    bytes_of_levels(folder, 8)
}

fn bytes_of_levels(folder: &Path, levels: usize) -> u64 {
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    let sizes = entries.map(|entry| match entry.metadata() {
        Ok(found) if found.is_dir() && levels > 0 => bytes_of_levels(&entry.path(), levels - 1),
        Ok(found) if found.is_file() => found.len(),
        _ => 0,
    });
    sizes.sum()
}

/// Classes of stored data, in the order in which a full disk refuses them. The last one is never refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum DataClass {
    /// Uploaded files, generated images, adapters and models.
    Bulk,
    /// Other content of clients, such as conversations and responses, and temporary files.
    Content,
    /// Records without which the server cannot continue: keys, limits, usage, the audit log.
    Essential,
}

/// The writes that the free space of a disk allows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum DiskLevel {
    /// Everything is stored.
    Ample,
    /// Bulk content is refused.
    Low,
    /// All content is refused.
    Critical,
}

impl DiskLevel {
    pub fn as_str(self) -> &'static str {
        match self {
            DiskLevel::Ample => "ample",
            DiskLevel::Low => "low",
            DiskLevel::Critical => "critical",
        }
    }
}

/// Data is refused to keep the reserve free.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "The disk of the server is nearly full: {} are free, and {} of them are kept back so that all projects can go on. \
     Delete content that is not needed and try again; the operator can free space.",
    format_bytes(.0.space.free),
    format_bytes(.0.min_free)
)]
pub struct DiskFull(pub DiskStatus);

/// The reserve of the disk with a folder.
#[derive(Clone, Debug)]
pub struct DiskReserve {
    folder: PathBuf,
    /// `None`: a share of the disk.
    min_free: Option<u64>,
}

/// The space of a disk, and how much of it is kept back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DiskStatus {
    pub space: DiskSpace,
    pub min_free: u64,
}

impl DiskReserve {
    /// `min_free`: the bytes that are kept back; `None`: 2 % of the disk, at least 16 MiB and at most 1 GiB.
    pub fn new(folder: impl Into<PathBuf>, min_free: Option<u64>) -> Self {
        Self { folder: folder.into(), min_free }
    }

    /// The reserve of the same size on the disk with another folder.
    pub fn at(&self, folder: impl Into<PathBuf>) -> Self {
        Self::new(folder, self.min_free)
    }

    /// True if the folder is on the disk that this reserve protects.
    pub fn covers(&self, folder: &Path) -> bool {
        is_same_disk(&self.folder, folder)
    }

    /// # Errors
    /// If the file system does not report its space.
    pub fn status(&self) -> io::Result<DiskStatus> {
        let space = DiskSpace::of(&self.folder)?;
        let share = (space.total / 100).saturating_mul(DEFAULT_PERCENT).clamp(SMALLEST_DEFAULT, LARGEST_DEFAULT);
        Ok(DiskStatus { space, min_free: self.min_free.unwrap_or(share) })
    }

    /// If the file system does not report its space, a full disk is detected later.
    ///
    /// # Errors
    /// If `bytes` more of that class do not leave the reserve free.
    pub fn require(&self, class: DataClass, bytes: u64) -> Result<(), DiskFull> {
        self.status().map_or(Ok(()), |status| status.require(class, bytes))
    }
}

impl DiskStatus {
    pub fn level(&self) -> DiskLevel {
        let has_room = |class| self.room(class) > 0 || self.kept_from(class) == 0;
        match (has_room(DataClass::Bulk), has_room(DataClass::Content)) {
            (true, _) => DiskLevel::Ample,
            (false, true) => DiskLevel::Low,
            (false, false) => DiskLevel::Critical,
        }
    }

    /// Bytes of that class that may still be stored.
    pub fn room(&self, class: DataClass) -> u64 {
        self.space.free.saturating_sub(self.kept_from(class))
    }

    /// As [`DiskReserve::require`].
    pub fn require(&self, class: DataClass, bytes: u64) -> Result<(), DiskFull> {
        if class == DataClass::Essential || self.kept_from(class) == 0 || bytes <= self.room(class) {
            return Ok(());
        }
        Err(DiskFull(*self))
    }

    /// As [`Self::require`], for data that takes `reusable` bytes of a file which are on the disk already. Readers may keep
    /// them for a while, so half of what the class leaves free stays free in any case.
    pub fn require_reusing(&self, class: DataClass, bytes: u64, reusable: u64) -> Result<(), DiskFull> {
        let is_safe = self.space.free >= self.kept_from(class) / 2;
        match is_safe && bytes <= self.room(class).saturating_add(reusable) {
            true => Ok(()),
            false => self.require(class, bytes),
        }
    }

    /// The free bytes that data of this class must leave.
    fn kept_from(&self, class: DataClass) -> u64 {
        match class {
            DataClass::Bulk => self.min_free,
            DataClass::Content => self.min_free / 2,
            DataClass::Essential => 0,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{DataClass, DiskLevel, DiskReserve, DiskSpace, DiskStatus};

    fn status(free: u64, min_free: u64) -> DiskStatus {
        DiskStatus { space: DiskSpace { free, total: 1000 }, min_free }
    }

    #[test]
    fn content_is_refused_by_its_class_and_essential_records_never() {
        let is_refused = |free, class| status(free, 100).require(class, 20).is_err();
        for free in [0, 10, 69, 70, 119, 120, 1000] {
            assert!(!is_refused(free, DataClass::Essential));
            assert_eq!(is_refused(free, DataClass::Content), free < 70, "{free}");
            assert_eq!(is_refused(free, DataClass::Bulk), free < 120, "{free}");
        }
    }

    #[test]
    fn reusable_bytes_are_taken_while_half_of_the_reserve_is_free() {
        let is_refused = |free, reusable| status(free, 100).require_reusing(DataClass::Bulk, 20, reusable).is_err();
        assert!(!is_refused(120, 0) && is_refused(119, 0) && !is_refused(110, 10) && is_refused(110, 9));
        assert!(!is_refused(50, 20) && is_refused(50, 19) && is_refused(49, 1000));
    }

    #[test]
    fn the_level_says_what_is_refused() {
        let level = |free| status(free, 100).level();
        assert_eq!([1000, 101, 100, 51, 50, 0].map(level), {
            use DiskLevel::{Ample, Critical, Low};
            [Ample, Ample, Low, Low, Critical, Critical]
        });
        assert_eq!(status(0, 0).level(), DiskLevel::Ample, "nothing is kept back");
        status(0, 0).require(DataClass::Bulk, 1).unwrap();
    }

    #[test]
    fn the_default_is_a_share_of_the_disk() {
        let folder = tempfile::tempdir().unwrap();
        let found = DiskReserve::new(folder.path(), None).status().unwrap();
        assert!((16 << 20..=1 << 30).contains(&found.min_free));
        assert_eq!(DiskReserve::new(folder.path(), Some(5)).status().unwrap().min_free, 5);
    }
}
