//! IDs in the scheduler.

pub type Tenant = u128;
pub type ModelId = u64;
/// An adapter of a model.
pub type AdapterId = u64;
/// Ascends in the order of submission.
pub type RequestId = u64;

/// One choice of a request. Ordered by age.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SequenceId {
    pub request: RequestId,
    pub choice: u32,
}
