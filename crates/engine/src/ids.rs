//! IDs that all kinds of requests share.

/// Whom a request is for: requests of different tenants get equal shares of a device. The server's tenants are its projects.
pub type Tenant = u128;
/// A request in a queue. Ascends in the order of submission.
pub type RequestId = u64;
/// A loaded adapter of a model.
pub type AdapterId = u64;
