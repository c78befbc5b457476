//! The wire layer of the engine for databases that speak PostgreSQL's protocol.
//!
//! Every table is a table of the database with the columns `k` and `v`, both `bytea`. A [`Connection`](connection) runs
//! one transaction at a time and sends the statements of one step together, so that a step costs one round trip.
//! Writes run as one transaction at a time per process. It advances the row of its [node](node) first, which makes that
//! row three things: the fence (a process whose row has another epoch cannot commit), the proof of a commit, and the
//! way to find out after a lost connection whether a commit took place. [`snapshot`] reads over [pooled](pool)
//! connections.
//!
//! [`statements`] holds all SQL of the program, in the subset that PostgreSQL 14, CockroachDB and YugabyteDB share. No
//! call waits without a deadline.

mod blocking;
mod change_log;
mod classify;
mod connection;
mod connector;
mod copy_target;
mod engine;
mod error;
mod exchange_task;
mod membership;
mod node;
mod outage;
mod pool;
mod schema;
mod settings;
mod snapshot;
mod statements;
#[cfg(test)]
mod tests;
mod tls;
mod transactions;
mod transfer;
mod turn;
mod url_options;
mod writer_connection;

pub(super) use copy_target::CopyTarget;
pub use engine::PostgresLocation;
pub(super) use engine::open;
pub use error::{PostgresError, PostgresOpenError};
pub use settings::{PostgresSettings, StoreUrlError};
pub(super) use transfer::PostgresCopy;
