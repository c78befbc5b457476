//! The table `meta`: its keys, and the encoding of its values.

/// Encoded manually and never changed, because every older program must be able to read it.
const META_VERSION: u8 = 1;
/// Builds before the first release stored the layout under another key, so neither they nor this program take the
/// other's database for one of their own.
pub(super) const LAYOUT_KEY: &[u8] = b"layout_version";
pub(super) const PEPPER_CHECK_KEY: &[u8] = b"pepper_check";
/// Only in backups.
pub(super) const PEPPER_KEY: &[u8] = b"pepper";

/// Layouts from this one on say that a copy into the database has not ended. Older programs refuse them as the layouts of
/// a newer one.
const FIRST_ATTEMPT: u32 = 1 << 31;

/// Encodes a value of the table `meta`.
pub(super) fn meta(bytes: &[u8]) -> Vec<u8> {
    [&[META_VERSION], bytes].concat()
}

/// The state of a database according to the row of the layout.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Layout {
    /// A store with this layout.
    Version(u32),
    /// A copy into the database has not ended. The number of the attempt tells it from those that started over.
    UnfinishedCopy { attempt: u32 },
}

impl Layout {
    /// `None` if no outpost wrote the value.
    pub fn decode(value: &[u8]) -> Option<Self> {
        let number = u32::from_be_bytes(value.get(1..)?.try_into().ok()?);
        Some(match number.checked_sub(FIRST_ATTEMPT) {
            Some(attempt) => Self::UnfinishedCopy { attempt },
            None => Self::Version(number),
        })
    }

    pub fn encode(self) -> Vec<u8> {
        let number = match self {
            Self::Version(version) => version,
            Self::UnfinishedCopy { attempt } => FIRST_ATTEMPT | attempt,
        };
        meta(&number.to_be_bytes())
    }

    /// The layout of a copy that takes the place of an unfinished one.
    pub fn of_next_attempt(attempt: u32) -> Self {
        Self::UnfinishedCopy { attempt: attempt.wrapping_add(1) & (FIRST_ATTEMPT - 1) }
    }
}
