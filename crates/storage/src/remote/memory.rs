//! A database in memory, for tests. It fails as it is told to.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex};

use super::{Fetched, Page, Remote, RemoteError, Row, Wanted, Writes};
use crate::tables::Table;
use crate::transaction::Change;

pub(super) type Tables = BTreeMap<Table, BTreeMap<Vec<u8>, Vec<u8>>>;

/// What happens at the next calls.
#[derive(Clone, Debug)]
pub(super) enum Fault {
    None,
    /// The call fails. Nothing is committed.
    Fails(RemoteError),
    /// The connection is lost during a commit, which is carried out.
    LostAfterCommit,
}

#[derive(Default)]
pub(super) struct State {
    pub tables: Tables,
    pub fetches: usize,
    pub commits: usize,
    /// Of the next fetches.
    pub fetch_faults: VecDeque<Fault>,
    /// Of the next commits.
    pub commit_faults: VecDeque<Fault>,
    /// How many attempts to connect will fail.
    pub unreachable: usize,
    /// The open transaction, or the next one, runs while no other process writes.
    has_turn: bool,
    /// For each commit, whether it did.
    pub in_turn: Vec<bool>,
    /// Whether the last commit was carried out.
    last_commit: bool,
}

impl State {
    fn page(&self, page: &Page) -> Vec<Row> {
        let rows = self.tables.get(&page.table).into_iter().flatten();
        let fits = |key: &[u8]| key >= &page.from[..] && page.end.as_deref().is_none_or(|to| key < to);
        let mut rows: Vec<_> = rows.filter(|(key, _)| fits(key)).collect();
        rows.reverse();
        let value = |value: &Vec<u8>| if page.values { value.clone() } else { Vec::new() };
        rows.into_iter()
            .take(usize::try_from(page.rows).unwrap())
            .map(|(key, bytes)| (key.clone(), value(bytes)))
            .collect()
    }

    fn apply(&mut self, writes: &Writes) {
        for (table, rows) in writes.tables() {
            let stored = self.tables.entry(table).or_default();
            for (key, value) in rows {
                match value {
                    Some(value) => drop(stored.insert(key.clone(), value.clone())),
                    None => drop(stored.remove(key)),
                }
            }
        }
        self.commits += 1;
        self.in_turn.push(std::mem::take(&mut self.has_turn));
        self.last_commit = true;
    }
}

/// A connection to it. There is no other writer, so it needs no snapshot.
#[derive(Clone, Default)]
pub(super) struct Memory(pub Arc<Mutex<State>>);

impl Remote for Memory {
    fn fetch(&mut self, wanted: &Wanted) -> Result<Fetched, RemoteError> {
        let mut state = self.0.lock().unwrap();
        state.fetches += 1;
        if let Some(Fault::Fails(error)) = state.fetch_faults.pop_front() {
            return Err(error);
        }
        let value = |table: &Table, key: &Vec<u8>| state.tables.get(table)?.get(key).cloned();
        let values = wanted.keys.iter().map(|(table, keys)| keys.iter().map(|key| value(table, key)).collect());
        Ok(Fetched { values: values.collect(), pages: wanted.pages.iter().map(|page| state.page(page)).collect() })
    }

    fn commit(&mut self, writes: &Writes, _: &[Change]) -> Result<(), RemoteError> {
        let mut state = self.0.lock().unwrap();
        state.last_commit = false;
        match state.commit_faults.pop_front() {
            Some(Fault::Fails(error)) => Err(error),
            Some(Fault::LostAfterCommit) => {
                state.apply(writes);
                Err(RemoteError::Unknown("lost after the commit".to_owned()))
            }
            Some(Fault::None) | None => {
                state.apply(writes);
                Ok(())
            }
        }
    }

    fn rollback(&mut self) {
        self.0.lock().unwrap().has_turn = false;
    }

    fn take_turn(&mut self) {
        self.0.lock().unwrap().has_turn = true;
    }

    fn reconnect(&mut self) -> Result<bool, RemoteError> {
        let mut state = self.0.lock().unwrap();
        if state.unreachable > 0 {
            state.unreachable -= 1;
            return Err(RemoteError::Unavailable("unreachable".to_owned()));
        }
        Ok(state.last_commit)
    }
}
