//! Reads that stop before they hold more bytes than the caller has room for.

/// Bytes for which every caller has room.
pub const SMALL_BYTES: u64 = 64 << 10;

/// Where a page of a list ends if its items are large.
pub const PAGE_BYTES: u64 = 4 << 20;

/// The result of a read, or the room that it needs.
#[derive(Debug)]
pub enum LimitedRead<T> {
    Read(T),
    /// The read needs room for this many bytes.
    TooLarge {
        bytes: u64,
    },
}

/// Whether a page that has up to `bytes` needs room. `limit`: the room that the caller has.
pub(super) fn needs_page(bytes: u64, limit: u64) -> bool {
    bytes > limit && limit < PAGE_BYTES
}

impl<T> LimitedRead<T> {
    /// What is read.
    pub fn read(self) -> Option<T> {
        match self {
            Self::Read(value) => Some(value),
            Self::TooLarge { .. } => None,
        }
    }
}
