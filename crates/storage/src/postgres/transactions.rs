//! The transactions of a [`Connection`]: one at a time, each step in one round trip.
//!
//! After an error no transaction is open.

use tokio_postgres::Row;

use super::change_log;
use super::connection::{Answer, Connection, Phase, Request, column, pair};
use super::error::PostgresError;
use super::node::Node;
use super::statements::{self, Order};
use super::turn::{Turn, Turns};
use crate::remote::{Fetched, Page, Wanted, Writes};
use crate::tables::Table;
use crate::transaction::Change;

/// The outcome of a commit whose answer was lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Settled {
    /// It took place.
    Committed,
    /// It did not take place, and never will.
    NotCommitted,
}

impl Connection {
    /// Begins a write transaction with the lock that is next, advances the node's row, and reads, all in one round trip.
    /// Begins again without the lock if that is not granted in time.
    ///
    /// # Errors
    /// [`PostgresError::Fenced`] if the node's row has another epoch. [`PostgresError::Lost`] with `commit_sent` if an
    /// earlier commit must be [settled](Self::settle) first.
    pub(super) async fn begin(
        &mut self,
        node: &Node,
        wanted: &Wanted,
        turns: &mut Turns,
    ) -> Result<Fetched, PostgresError> {
        self.require(Phase::Idle)?;
        let next = node.seq + 1;
        let mut answers = loop {
            let turn = turns.next();
            let mut requests = vec![
                Request::command(turn.begin()),
                Request::count(statements::ADVANCE, vec![&node.number, &node.epoch, &node.seq, &next]),
            ];
            requests.extend(reads(wanted));
            self.phase = Phase::Writing;
            let result = self.run(requests).await;
            let mut answers = self.or_rollback(result)?.into_iter();
            match answers.next() {
                Some(Err(error)) if turn != Turn::Unlocked && !error.is_lost() => {
                    tracing::debug!(%error, "write transactions begin without a lock for now");
                    self.rollback();
                    turns.pause();
                }
                begun => {
                    let answers = begun.into_iter().chain(answers).collect::<Result<Vec<_>, _>>();
                    break self.or_rollback(answers)?.into_iter().skip(1);
                }
            }
        };
        if answers.next().is_some_and(|advanced| advanced.changed() == 1) {
            return self.or_rollback(decode(wanted, answers));
        }
        self.rollback();
        Err(self.why_not_advanced(node).await?)
    }

    /// Why the node's row is not as this process has left it.
    async fn why_not_advanced(&mut self, node: &Node) -> Result<PostgresError, PostgresError> {
        let number = node.number;
        let rows = self.run_one(Request::rows(statements::SEQ, vec![&number])).await?.into_rows();
        let epoch = rows.first().map(|row| column::<i64>(row, 1)).transpose()?;
        Ok(match epoch {
            Some(epoch) if epoch == node.epoch => PostgresError::lost("an earlier commit is not settled").in_commit(),
            _ => PostgresError::Fenced,
        })
    }

    /// Reads more in the open write transaction.
    pub async fn fetch(&mut self, wanted: &Wanted) -> Result<Fetched, PostgresError> {
        self.require(Phase::Writing)?;
        if wanted.is_empty() {
            return Ok(Fetched::default());
        }
        let result = self.run_all(reads(wanted).collect()).await;
        let result = result.and_then(|answers| decode(wanted, answers.into_iter()));
        self.or_rollback(result)
    }

    /// Reads in a snapshot, which the first call begins.
    pub async fn read(&mut self, wanted: &Wanted) -> Result<Fetched, PostgresError> {
        let answers = self.read_rows(reads(wanted).collect()).await;
        let result = answers.and_then(|answers| decode(wanted, answers.into_iter()));
        self.or_rollback(result)
    }

    /// Runs requests in a snapshot, which the first call begins.
    pub(super) async fn read_rows(&mut self, mut requests: Vec<Request<'_>>) -> Result<Vec<Answer>, PostgresError> {
        let begins = self.phase == Phase::Idle;
        if begins {
            requests.insert(0, Request::command(statements::BEGIN_READ));
            self.phase = Phase::Reading;
        }
        self.require(Phase::Reading)?;
        let result = self.run_all(requests).await.map(|mut answers| answers.split_off(usize::from(begins)));
        self.or_rollback(result)
    }

    /// Writes, adds `changes` to the change log and commits, in one round trip. Once this returns, all is durable.
    ///
    /// The database reports success for the COMMIT of a transaction that has failed before. The node's row, read
    /// after it, proves the commit.
    ///
    /// # Errors
    /// [`PostgresError::Lost`] with `commit_sent`: [`settle`](Self::settle) on another connection tells the outcome.
    /// After all other errors nothing was written.
    pub async fn commit(&mut self, node: &mut Node, writes: &Writes, changes: &[Change]) -> Result<(), PostgresError> {
        self.require(Phase::Writing)?;
        let (puts, removes) = (puts(writes), removes(writes));
        let (changed_keys, changed_rows) = change_log::rows(node.number, node.seq + 1, changes)?;
        let mut requests: Vec<Request<'_>> = Vec::with_capacity(puts.len() + removes.len() + 3);
        for Puts { table, keys, values } in &puts {
            requests.push(Request::count(statements::put(table.name()), vec![keys, values]));
        }
        for (table, keys) in &removes {
            requests.push(Request::count(statements::remove(table.name()), vec![keys]));
        }
        if !changes.is_empty() {
            let log = statements::put(change_log::TABLE);
            requests.push(Request::count(log, vec![&changed_keys, &changed_rows]));
        }
        requests.push(Request::command(statements::COMMIT));
        let number = node.number;
        requests.push(Request::rows(statements::SEQ, vec![&number]));
        // If this fails, COMMIT was not sent yet.
        let prepared = self.prepare(&requests).await;
        self.or_rollback(prepared)?;
        let result = self.run_all(requests).await.map_err(PostgresError::in_commit);
        let answers = self.or_rollback(result)?;
        self.phase = Phase::Idle;
        prove(node, answers)
    }

    /// Finds out whether the commit after `node.seq` took place, when its answer was lost. Afterwards it cannot take
    /// place any more. Needs a new connection, because the lost one may still hold locks.
    ///
    /// # Errors
    /// [`PostgresError::Conflict`] while the lost transaction still holds its locks: try again.
    /// [`PostgresError::Fenced`] if another process has taken over the node: the outcome stays unknown.
    pub async fn settle(&mut self, node: &mut Node) -> Result<Settled, PostgresError> {
        self.require(Phase::Idle)?;
        let (number, epoch) = (node.number, node.epoch);
        let rows = self.run_one(Request::rows(statements::SETTLE, vec![&number, &epoch])).await?.into_rows();
        let seq = rows.first().map(|row| column::<i64>(row, 0)).transpose()?.ok_or(PostgresError::Fenced)?;
        match seq - node.seq {
            0 => Ok(Settled::NotCommitted),
            1 => {
                node.seq = seq;
                Ok(Settled::Committed)
            }
            _ => Err(PostgresError::Bug(format!("the node's row is at {seq}, but this process is at {}", node.seq))),
        }
    }

    fn require(&self, phase: Phase) -> Result<(), PostgresError> {
        if self.phase == phase {
            return Ok(());
        }
        Err(PostgresError::Bug(format!("a connection that is {:?} was used as if it were {phase:?}", self.phase)))
    }

    fn or_rollback<T>(&mut self, result: Result<T, PostgresError>) -> Result<T, PostgresError> {
        if result.is_err() {
            self.rollback();
        }
        result
    }
}

/// Compares the node's row after COMMIT with what the transaction has written there.
fn prove(node: &mut Node, mut answers: Vec<Answer>) -> Result<(), PostgresError> {
    let rows = answers.pop().map(Answer::into_rows).unwrap_or_default();
    let row = rows.first().map(|row| Ok((column::<i64>(row, 0)?, column::<i64>(row, 1)?))).transpose()?;
    let Some((seq, _)) = row.filter(|(_, epoch)| *epoch == node.epoch) else {
        return Err(PostgresError::lost("another process took over this node during a commit").in_commit());
    };
    if seq == node.seq {
        return Err(PostgresError::Conflict("the database has rolled the transaction back".to_owned()));
    }
    if seq != node.seq + 1 {
        return Err(PostgresError::Bug(format!("a commit has moved the node's row from {} to {seq}", node.seq)));
    }
    node.seq = seq;
    Ok(())
}

/// The statements that read, in the order of `wanted`.
fn reads(wanted: &Wanted) -> impl Iterator<Item = Request<'_>> {
    let keys = wanted.keys.iter().map(|(table, keys)| Request::rows(statements::get(table.name()), vec![keys]));
    keys.chain(wanted.pages.iter().map(read_page))
}

fn read_page(page: &Page) -> Request<'_> {
    let sql = statements::page(page.table.name(), page.values, page.end.is_some(), Order::Descending);
    match &page.end {
        Some(end) => Request::rows(sql, vec![&page.from, end, &page.rows]),
        None => Request::rows(sql, vec![&page.from, &page.rows]),
    }
}

/// The answers to [`reads`].
fn decode(wanted: &Wanted, mut answers: impl Iterator<Item = Answer>) -> Result<Fetched, PostgresError> {
    let mut next = || answers.next().map(Answer::into_rows).unwrap_or_default();
    let values = wanted.keys.iter().map(|(_, keys)| values_of(keys, &next())).collect::<Result<_, _>>()?;
    let pages = wanted.pages.iter().map(|page| next().iter().map(|row| pair(row, page.values)).collect());
    Ok(Fetched { values, pages: pages.collect::<Result<_, _>>()? })
}

/// The values of `keys` among the rows, which come in any order.
fn values_of(keys: &[Vec<u8>], rows: &[Row]) -> Result<Vec<Option<Vec<u8>>>, PostgresError> {
    let mut found = std::collections::HashMap::with_capacity(rows.len());
    for row in rows {
        found.insert(column::<&[u8]>(row, 0)?, column::<&[u8]>(row, 1)?);
    }
    Ok(keys.iter().map(|key| found.get(key.as_slice()).map(|value| value.to_vec())).collect())
}

/// Keys and values of the rows to store in one table.
struct Puts<'a> {
    table: Table,
    keys: Vec<&'a [u8]>,
    values: Vec<&'a [u8]>,
}

/// The rows to store, by table, in ascending order of keys.
fn puts(writes: &Writes) -> Vec<Puts<'_>> {
    let puts = writes.tables().map(|(table, rows)| {
        let rows = rows.iter().filter_map(|(key, value)| Some((key.as_slice(), value.as_deref()?)));
        let (keys, values) = rows.unzip();
        Puts { table, keys, values }
    });
    puts.filter(|puts| !puts.keys.is_empty()).collect()
}

/// Keys of the rows to remove, by table, in ascending order.
fn removes(writes: &Writes) -> Vec<(Table, Vec<&[u8]>)> {
    let removes = writes.tables().map(|(table, rows)| {
        let removed = rows.iter().filter(|(_, value)| value.is_none());
        (table, removed.map(|(key, _)| key.as_slice()).collect::<Vec<_>>())
    });
    removes.filter(|(_, keys)| !keys.is_empty()).collect()
}
