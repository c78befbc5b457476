//! The turn: a write transaction that runs while no other node's does, so that it cannot conflict.
//!
//! Every write transaction begins with a lock of the table `turn`, before the database takes its snapshot. Most lock it in a
//! mode that any number of transactions hold at once. One that has its turn locks it in a mode that excludes these, so
//! all nodes wait for it, also those that have not met a conflict: otherwise a node that writes the same rows without a
//! pause would always commit first. A node that does not get the lock in time writes without it, so a process that hangs does
//! not keep the others from writing.
//!
//! Groups of many writes change rows that other nodes change as well, such as the quota usage of projects, so under
//! load nearly all of them would conflict. After a conflict, the next fifty transactions of a node run alone. When only
//! nodes that had met a conflict took turns, a node that met none committed first thirty times in a row, and the other
//! one's clients got 503. `LOCK TABLE` is the one lock that comes before the snapshot of a serializable transaction;
//! behind any other, a transaction that had waited would see the state before. The ordinary lock mode is one that
//! PostgreSQL grants without its shared lock table, so it costs next to nothing.

use std::time::Duration;

use tokio::time::Instant;

use super::statements;

/// Pause after a lock that was not granted in time. A process that hangs has lost its lock by then.
const PAUSE: Duration = Duration::from_secs(10);

/// The lock with which a write transaction begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Turn {
    /// Transactions of other nodes run at the same time, except those that have their turn.
    Shared,
    /// No other transaction that has a lock runs.
    Exclusive,
    /// No lock.
    Unlocked,
}

impl Turn {
    /// The statements that begin the transaction.
    pub fn begin(self) -> &'static str {
        match self {
            Self::Shared => statements::BEGIN_WRITE_SHARED,
            Self::Exclusive => statements::BEGIN_WRITE_EXCLUSIVE,
            Self::Unlocked => statements::BEGIN_WRITE,
        }
    }
}

/// The lock with which the next transaction of this process begins.
#[derive(Default)]
pub(super) struct Turns {
    is_wanted: bool,
    pauses_until: Option<Instant>,
}

impl Turns {
    /// Gives the next transaction its turn.
    pub fn want(&mut self) {
        self.is_wanted = true;
    }

    /// The lock of a transaction that begins now.
    pub fn next(&mut self) -> Turn {
        let is_wanted = std::mem::take(&mut self.is_wanted);
        if self.pauses_until.is_some_and(|until| Instant::now() < until) {
            return Turn::Unlocked;
        }
        if is_wanted { Turn::Exclusive } else { Turn::Shared }
    }

    /// The lock was not granted in time, or the database does not have it.
    pub fn pause(&mut self) {
        self.pauses_until = Some(Instant::now() + PAUSE);
    }
}
