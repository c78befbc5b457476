//! Jobs: requests whose results are computed one at a time, such as images, or the sentences of a speech.
//!
//! A scheduler decides which result is computed next. Results wait for the client, but not many of them.

mod events;
mod scheduler;

pub use events::{Events, JobEvent};
pub use scheduler::{Job, JobScheduler, QueuedJob};
