//! What writes of all resources have in common: idempotency keys, the version that a write expects, changes of single fields, and
//! the server's own writes, which are repeated until they are stored.

pub mod idempotency;
pub mod patch;
pub(super) mod persistent_write;
pub mod precondition;
