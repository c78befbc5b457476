//! The table `meta`: its keys, and the encoding of its values.

/// Encoded manually and never changed, because every older program must be able to read it.
const META_VERSION: u8 = 1;
pub(super) const LAYOUT_KEY: &[u8] = b"layout";
pub(super) const PEPPER_CHECK_KEY: &[u8] = b"pepper_check";
/// Only in backups.
pub(super) const PEPPER_KEY: &[u8] = b"pepper";

/// Encodes a value of the table `meta`.
pub(super) fn meta(bytes: &[u8]) -> Vec<u8> {
    [&[META_VERSION], bytes].concat()
}
