//! Jobs: requests whose results are computed one at a time, such as images, or the parts of a spoken text.
//!
//! A scheduler decides which result is computed next. A thread computes it, in turns of some milliseconds. Results wait for
//! the client, but not many of them.

mod events;
mod job;
mod queue;
mod scheduler;
mod tenant_costs;
mod workload;

pub use events::{Events, JobEvent, Sender};
pub use job::{ComputedJob, Job};
pub use queue::JobQueue;
pub use tenant_costs::TenantCosts;
pub use workload::JobWorkload;
