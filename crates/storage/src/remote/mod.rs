//! Runs groups of write closures for a database that is reached over a network.
//!
//! Closures are synchronous and never wait for the network. They run against memory: the rows read so far, and the writes
//! of the group. A row that is not there yet is taken as absent, and the outcome of the closure does not count. Everything
//! that the closures of the group lacked is read in one round trip, and all of them run again. A group thus costs as many
//! round trips as its deepest chain of dependent reads has links, and one for the commit, however many closures it has.

mod batch;
mod group;
mod known_rows;
#[cfg(test)]
mod memory;
#[cfg(test)]
mod tests;
mod view;
mod writer;

use super::transaction::Change;
pub(super) use batch::{FIRST_LARGE_ROWS, Fetched, Page, Row, Wanted, Writes, first_rows, next_rows};
pub(super) use writer::{Availability, Writer};

/// The connection of the writer thread. At most one transaction is open.
pub(super) trait Remote: Send {
    /// Reads in the open transaction. Begins one if none is open.
    fn fetch(&mut self, wanted: &Wanted) -> Result<Fetched, RemoteError>;

    /// Writes and commits, and tells other nodes of the changes to watched records. Begins a transaction if none is open.
    /// Returns only if all is durable.
    fn commit(&mut self, writes: &Writes, changes: &[Change]) -> Result<(), RemoteError>;

    /// Discards the open transaction, if there is one. Failures are met by the next call.
    fn rollback(&mut self);

    /// Connects again. Returns whether the last commit was carried out, if it ended with [`RemoteError::Unknown`].
    /// Afterwards, it never will be.
    fn reconnect(&mut self) -> Result<bool, RemoteError>;

    /// Lets the transaction that begins next wait until no other process's is open, and keeps others from beginning until it
    /// ends, so that it does not conflict. If that takes too long, it begins without.
    fn take_turn(&mut self) {}

    /// True if the database is known not to answer, so that another attempt would be useless.
    fn is_unreachable(&self) -> bool {
        false
    }

    /// Called when the writer ends.
    fn close(&mut self) {}
}

/// Why the database did not carry out a call.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum RemoteError {
    /// The transaction conflicted with another one; it must run again.
    #[error("transactions conflicted: {0}")]
    Conflict(String),
    /// Nothing was committed. The connection may be lost.
    #[error("{0}")]
    Unavailable(String),
    /// The connection was lost during the commit, which may have been carried out.
    #[error("the connection was lost during a commit: {0}")]
    Unknown(String),
    /// Another process has taken this one's place. It must not write any more.
    #[error("{0}")]
    Fenced(String),
    /// The database refuses a statement, whenever it is tried.
    #[error("{0}")]
    Refused(String),
}
