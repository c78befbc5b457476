//! Which process does a piece of background work.
//!
//! Several nodes may share a database. A process claims work before it begins: a row names it. Each of the writes that the
//! work consists of [requires](require) the row in its own transaction. So if another process takes the work over, the one
//! before it has no effect any more, even if it was only slow.
//!
//! A lease has no end of its own. It holds while the heartbeat of its process is valid.
//!
//! A process that has the store for itself is granted everything, and no row is written.

use serde::{Deserialize, Serialize};

use crate::cluster::{NodeProcess, Peers};
use crate::codec::Record;
use crate::error::{Code, Error, Result};
use crate::ids::{BatchId, FileId, JobId, ResponseId};
use crate::tables::{Table, WORK_LEASES};
use crate::transaction::{Reader, WriteTx};

/// The message of the error for work that another process has taken over.
const TAKEN_OVER: &str =
    "Another server has taken this work over, because this one did not reach the database. Try again.";

/// Rows that are removed per transaction.
const SWEEP_ROWS: usize = 256;

/// Work that one process does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Work {
    /// The next step of a batch.
    Batch(BatchId),
    /// The generation of a response in the background.
    Response(ResponseId),
    /// The training of a job.
    Job(JobId),
    /// Writing chunks that belong to nothing yet, or removing some that belong to nothing any more.
    Content(FileId),
    /// The removal of what has expired.
    Maintenance,
}

impl Work {
    /// A number for the kind, and the id. The numbers are stored.
    fn key(self) -> Vec<u8> {
        let (kind, id): (u8, &[u8]) = match &self {
            Self::Batch(id) => (1, &id.to_bytes()),
            Self::Response(id) => (2, &id.to_bytes()),
            Self::Job(id) => (3, &id.to_bytes()),
            Self::Content(id) => (4, &id.to_bytes()),
            Self::Maintenance => (5, &[]),
        };
        [&[kind], id].concat()
    }
}

/// The process that does a piece of work.
#[derive(Serialize, Deserialize)]
pub(crate) struct WorkLeaseRecord(NodeProcess);

impl Record for WorkLeaseRecord {
    const TABLE: Table = WORK_LEASES;
    const VERSION: u8 = 1;
}

/// Claims work that is free, or whose process is not alive. Returns whether this process has it now.
pub fn claim(tx: &WriteTx, work: Work, is_alive: impl Fn(NodeProcess) -> bool) -> Result<bool> {
    let Some(process) = tx.process() else { return Ok(true) };
    match holder(tx, &work.key())? {
        Some(holder) if holder == process => Ok(true),
        Some(holder) if is_alive(holder) => Ok(false),
        _ => take(tx, work).map(|()| true),
    }
}

/// Claims work that no other process can have, because it begins in this transaction.
pub fn take(tx: &WriteTx, work: Work) -> Result<()> {
    tx.process().map_or(Ok(()), |process| tx.put(&work.key(), &WorkLeaseRecord(process)))
}

/// Checks that this process still has the work. A transaction that reads more calls this together with its other first
/// reads before it looks at the outcome, so that they share a round trip.
///
/// # Errors
/// 409 if another process has taken it over, or may do so; see [`is_taken_over`].
pub fn require(tx: &WriteTx, work: Work) -> Result<()> {
    let Some(process) = tx.process() else { return Ok(()) };
    match holder(tx, &work.key())? {
        Some(holder) if holder == process => Ok(()),
        _ => Err(taken_over()),
    }
}

/// Gives work up if this process has it.
pub fn release(tx: &WriteTx, work: Work) -> Result<()> {
    let Some(process) = tx.process() else { return Ok(()) };
    match holder(tx, &work.key())? {
        Some(holder) if holder == process => tx.remove::<WorkLeaseRecord>(&work.key()),
        _ => Ok(()),
    }
}

/// True for the error that another process has taken the work over.
pub fn is_taken_over(error: &Error) -> bool {
    error.code() == Code::Conflict && error.message() == TAKEN_OVER
}

fn taken_over() -> Error {
    Error::new(Code::Conflict, TAKEN_OVER)
}

/// Checks, as [`require`] does, without a write.
pub fn check(tx: &impl Reader, work: Work, peers: &Peers) -> Result<()> {
    let Some(process) = peers.process() else { return Ok(()) };
    if holder(tx, &work.key())? == Some(process) { Ok(()) } else { Err(taken_over()) }
}

/// Keeps the items whose work no other live process has.
pub fn retain_available<T>(
    tx: &impl Reader,
    items: &mut Vec<T>,
    work: impl Fn(&T) -> Work,
    peers: &Peers,
) -> Result<()> {
    let Some(process) = peers.process() else { return Ok(()) };
    retain(tx, items, work, |holder| holder == process || !peers.is_alive(holder))
}

/// Keeps the items whose work no live process has, this one included.
pub fn retain_free<T>(tx: &impl Reader, items: &mut Vec<T>, work: impl Fn(&T) -> Work, peers: &Peers) -> Result<()> {
    match peers.process() {
        Some(_) => retain(tx, items, work, |holder| !peers.is_alive(holder)),
        None => Ok(()),
    }
}

/// Keeps the items whose work has no holder or an acceptable one.
fn retain<T>(
    tx: &impl Reader,
    items: &mut Vec<T>,
    work: impl Fn(&T) -> Work,
    is_acceptable: impl Fn(NodeProcess) -> bool,
) -> Result<()> {
    if items.is_empty() {
        return Ok(());
    }
    let keys: Vec<_> = items.iter().map(|item| work(item).key()).collect();
    let mut holders = tx.get_all::<WorkLeaseRecord>(&keys)?.into_iter();
    items.retain(|_| holders.next().flatten().is_none_or(|WorkLeaseRecord(holder)| is_acceptable(holder)));
    Ok(())
}

/// The keys of leases whose processes are not alive; at most as many as [`remove_dead`] takes at once.
pub fn dead(tx: &impl Reader, is_alive: impl Fn(NodeProcess) -> bool) -> Result<Vec<Vec<u8>>> {
    let mut rows = tx.newest::<WorkLeaseRecord>(&[], None, usize::MAX)?;
    rows.retain(|(_, WorkLeaseRecord(holder))| !is_alive(*holder));
    rows.truncate(SWEEP_ROWS);
    Ok(rows.into_iter().map(|(key, _)| key).collect())
}

/// Removes leases whose processes are still not alive. The next process that does the work needs no row of an earlier one.
pub fn remove_dead(tx: &WriteTx, keys: &[Vec<u8>], is_alive: impl Fn(NodeProcess) -> bool) -> Result<()> {
    for (key, found) in keys.iter().zip(tx.get_all::<WorkLeaseRecord>(keys)?) {
        if found.is_some_and(|WorkLeaseRecord(holder)| !is_alive(holder)) {
            tx.remove::<WorkLeaseRecord>(key)?;
        }
    }
    Ok(())
}

fn holder(tx: &impl Reader, key: &[u8]) -> Result<Option<NodeProcess>> {
    Ok(tx.get::<WorkLeaseRecord>(key)?.map(|WorkLeaseRecord(holder)| holder))
}
