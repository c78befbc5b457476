//! An estimate of the free pages in the database file.
//!
//! The file does not shrink while a page near its end is in use, so the free space of the disk does not show what deleted
//! content has left. redb counts its free pages only by reading all others. This estimate begins at zero when the database is
//! opened, counts large values only, and is therefore too low rather than too high.

use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;

/// Written by the writer thread only.
#[derive(Default)]
pub(crate) struct FreePages(AtomicU64);

/// Changes of a transaction, in bytes of large values.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct PageChange {
    pub stored: u64,
    pub removed: u64,
}

impl FreePages {
    pub fn bytes(&self) -> u64 {
        self.0.load(Relaxed)
    }

    /// Counts a commit. `returned`: the bytes by which the file takes less of the disk.
    pub(super) fn committed(&self, change: PageChange, returned: u64) {
        let left = self.bytes().saturating_add(change.removed).saturating_sub(change.stored).saturating_sub(returned);
        self.0.store(left, Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::{FreePages, PageChange};

    #[test]
    fn removed_values_leave_pages_until_others_use_them_or_the_file_shrinks() {
        let pages = FreePages::default();
        let commit = |stored, removed, returned| {
            pages.committed(PageChange { stored, removed }, returned);
            pages.bytes()
        };
        assert_eq!(commit(100, 0, 0), 0, "these pages were new");
        assert_eq!(commit(0, 80, 0), 80);
        assert_eq!(commit(30, 0, 0), 50);
        assert_eq!(commit(0, 10, 40), 20);
        assert_eq!(commit(50, 0, 0), 0);
    }
}
