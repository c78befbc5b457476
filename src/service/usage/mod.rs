//! Usage: metering of every request, and exact reports.
//!
//! [`Meter`] writes; [`Usage`] reads: totals and buckets of any window, exact to the millisecond, and exports of the
//! raw records. Sums over minutes, hours and days cover the inside of a window, raw records its two ends.

mod export;
mod prune;
mod recorder;
mod report;
mod reported_sums;
pub(super) mod window;

pub use crate::storage::usage::{Amounts, Outcome, Width};
pub use export::{ExportFilter, UsageRow, seconds};
pub use prune::Retention;
pub(in crate::service) use recorder::Entry as UsageEntry;
pub use recorder::{Meter, UsageRecorder};
pub use report::{Bucket, BucketWidth, Dimension, Group, Report, ReportQuery, Usage};
pub use reported_sums::{AudioMillis, ReportedSums};
