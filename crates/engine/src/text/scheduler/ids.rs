//! IDs in the scheduler.

use crate::ids::RequestId;

pub type ModelId = u64;

/// One choice of a request. Ordered by age.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SequenceId {
    pub request: RequestId,
    pub choice: u32,
}
