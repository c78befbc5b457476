//! The log of changes to watched records, which tells other nodes what to drop from their caches.
//!
//! A commit adds its changes under the number of its node and the sequence number of the commit. The commits of a node follow
//! one another, so a reader that has seen the rows of a node up to one of them has missed none. (One log for all nodes would
//! have gaps that fill later.)
//!
//! `LISTEN` and `NOTIFY` would tell nodes sooner, but PostgreSQL takes a lock for each `NOTIFY` that lets only one such
//! transaction commit at a time, CockroachDB does not have them, and the poll is needed anyway: only an answer that is
//! less than 0.75 seconds old shows that no change was missed.

use crate::remote::Row;
use crate::tables::{self, Table};
use crate::transaction::Change;

use super::error::PostgresError;

/// The table's name, without the prefix.
pub(super) const TABLE: &str = "changes";

/// Keys and values.
type Columns = (Vec<Vec<u8>>, Vec<Vec<u8>>);

/// The rows for the changes of a commit.
pub(super) fn rows(node: i64, seq: i64, changes: &[Change]) -> Result<Columns, PostgresError> {
    let start = position(node, seq)?;
    let rows = changes.iter().enumerate().map(|(index, (table, key))| {
        // A commit has fewer changes than a transaction may have bytes.
        let index = u32::try_from(index).unwrap_or(u32::MAX);
        let value = [table.name().as_bytes(), b"\0", key].concat();
        ([&start[..], &index.to_be_bytes()].concat(), value)
    });
    Ok(rows.unzip())
}

/// The first key of the commit `seq` of a node. All keys of its earlier commits are below it.
pub(super) fn position(node: i64, seq: i64) -> Result<Vec<u8>, PostgresError> {
    let numbers = u32::try_from(node).ok().zip(u64::try_from(seq).ok());
    let (node, seq) = numbers.ok_or_else(|| PostgresError::Bug(format!("node {node} at {seq} has no place")))?;
    Ok([&node.to_be_bytes()[..], &seq.to_be_bytes()].concat())
}

/// The change that a row tells of; `None` if another version of the program has written it.
pub(super) fn change(row: &Row) -> Option<Change> {
    let at = row.1.iter().position(|byte| *byte == 0)?;
    let (name, key) = row.1.split_at(at);
    let table = tables::ALL.iter().copied().find(|table: &Table| table.name().as_bytes() == name)?;
    Some((table, key.get(1..)?.to_vec()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_change_is_read_as_it_was_written() {
        let changes = vec![(tables::KEYS, b"a\0b".to_vec()), (tables::LIMITS, Vec::new())];
        let (keys, values) = rows(3, 9, &changes).unwrap();
        let read: Vec<Change> = keys.into_iter().zip(values).filter_map(|row| change(&row)).collect();
        assert_eq!(read, changes);
        assert_eq!(change(&(Vec::new(), b"later_table\0x".to_vec())), None);
    }

    #[test]
    fn the_rows_of_a_node_are_in_the_order_of_its_commits() {
        let first_key = |node, seq| rows(node, seq, &[(tables::KEYS, Vec::new())]).unwrap().0.remove(0);
        let keys = [first_key(1, 255), first_key(1, 256), first_key(2, 1)];
        assert!(keys.is_sorted());
        assert!(keys[0] < position(1, 256).unwrap() && position(1, 256).unwrap() < keys[1]);
    }
}
