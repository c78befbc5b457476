//! Runs the closures of a group until none of them lacks a row.

use std::cell::RefCell;

use super::batch::{Wanted, Writes};
use super::known_rows::{KeptRows, KnownRows};
use super::view::View;
use super::{Remote, RemoteError};
use crate::shared_state::SharedState;
use crate::transaction::{Change, WriteTx};
use crate::write_queue::Member;

/// Maximum bytes that a transaction writes, unless a single closure writes more.
const MAX_WRITTEN_BYTES: usize = 4 << 20;
/// Maximum bytes that a transaction reads.
const MAX_READ_BYTES: usize = 64 << 20;
/// Maximum round trips of reads in a transaction.
const MAX_PASSES: usize = 1000;

/// The result of a group's members in one transaction.
#[derive(Default)]
pub(super) struct Ran {
    /// How many of the members took part, from the first on. The others did not fit.
    pub members: usize,
    pub writes: Writes,
    /// How many closures wrote.
    pub writers: u64,
    /// Written records whose changes are announced.
    pub changes: Vec<Change>,
}

/// Runs the members in a transaction of `remote`, which stays open if something was read. The outcomes are those of the
/// last pass, in which no row was missing.
pub(super) fn run(
    remote: &mut dyn Remote,
    members: &mut [Member],
    shared: &SharedState,
    kept: &KeptRows,
) -> Result<Ran, RemoteError> {
    let mut known = KnownRows::default();
    for _ in 0..MAX_PASSES {
        let (ran, wanted) = pass(&known, kept, members, shared);
        if wanted.is_empty() {
            return Ok(ran);
        }
        let fetched = remote.fetch(&wanted)?;
        known.add(wanted, fetched);
        if known.bytes() > MAX_READ_BYTES {
            return Err(RemoteError::Refused("a transaction read too much".to_owned()));
        }
    }
    Err(RemoteError::Refused("a transaction read too often".to_owned()))
}

/// Runs all members once. A member that lacks rows does not keep the others from telling what they lack.
fn pass(known: &KnownRows, kept: &KeptRows, members: &mut [Member], shared: &SharedState) -> (Ran, Wanted) {
    let (mut ran, wanted) = (Ran::default(), RefCell::default());
    for member in members {
        let view = View::new(known, kept, &ran.writes, &wanted);
        let tx = WriteTx::new(&view, shared.pepper.clone()).by(shared.process);
        let accepted = member.run(&tx);
        let (lacks_rows, changes) = (view.lacks_rows(), tx.take_changes());
        let writes = view.into_writes();
        if ran.members > 0 && ran.writes.bytes() + writes.bytes() > MAX_WRITTEN_BYTES {
            break;
        }
        ran.members += 1;
        // The writes of a closure that fails are discarded.
        if accepted == Some(true) && !lacks_rows {
            ran.writers += u64::from(!writes.is_empty());
            ran.writes.extend(writes);
            ran.changes.extend(changes);
        }
    }
    (ran, wanted.into_inner())
}
