//! Runs [exchanges](crate::exchanges) on a connection of its own.
//!
//! One task per node takes all exchanges that wait and runs them in one READ COMMITTED transaction of two round trips: the
//! first locks and reads the rows, the second writes them and commits. Rows are locked in the order of their keys, so the
//! transactions of several nodes wait for one another instead of forming a deadlock. A commit does not wait for the disk
//! (`synchronous_commit = off`): if the database crashes, the last fraction of a second may be undone.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use tokio::runtime::Handle;
use tokio::sync::mpsc::{Receiver, channel};
use tokio::task::JoinSet;
use tokio::time::timeout;

use super::connection::{Answer, Connection, Phase, Request, column, pair};
use super::connector::Connector;
use super::error::PostgresError;
use super::outage::Outage;
use super::statements;
use crate::engine::unavailable;
use crate::error::{Code, Error};
use crate::exchanges::{ExchangeQueue, RowExchange};
use crate::remote::Availability;
use crate::tables::Table;
use outpost_common::clock_rng::Timestamp;

/// Max exchanges that wait. More are refused.
const QUEUE: usize = 16_384;

/// Max exchanges per transaction; bounds how long their rows are locked.
const MAX_BATCH: usize = 256;

/// How long a batch may take, with a new connection if one is needed.
const LIMIT: Duration = Duration::from_secs(1);

/// Attempts of a batch that conflicts.
const ATTEMPTS: usize = 8;

/// The task. Dropping this ends it; exchanges that wait are answered with an error.
pub struct ExchangeTask {
    _task: JoinSet<()>,
}

/// The state of the task.
struct Exchanger {
    connector: Connector,
    availability: Arc<Availability>,
    outage: Outage,
    inbox: Receiver<Box<dyn RowExchange>>,
    connection: Option<Connection>,
}

/// An exchange of the batch that is being committed.
struct Member {
    exchange: Box<dyn RowExchange>,
    /// The reason why exchanges are refused.
    refused: Option<Error>,
}

/// Keys by table, in ascending order.
type Keys = BTreeMap<Table, BTreeSet<Vec<u8>>>;

/// Table and key of a row, and its value.
type PlacedRow<'a> = (&'a (Table, Vec<u8>), &'a Vec<u8>);

/// Keys and values of the rows of a table.
type Columns<'a> = (Vec<&'a [u8]>, Vec<&'a [u8]>);

/// Rows by table and key.
type Rows = BTreeMap<(Table, Vec<u8>), Vec<u8>>;

impl ExchangeTask {
    /// Starts the task on `runtime`. It connects when the first exchange arrives.
    pub(super) fn start(
        runtime: &Handle,
        connector: Connector,
        availability: Arc<Availability>,
        outage: Outage,
    ) -> (Self, ExchangeQueue) {
        let (queue, inbox) = channel(QUEUE);
        let mut task = JoinSet::new();
        task.spawn_on(Exchanger { connector, availability, outage, inbox, connection: None }.run(), runtime);
        (Self { _task: task }, queue)
    }
}

impl Exchanger {
    async fn run(mut self) {
        let mut waiting = Vec::new();
        while self.inbox.recv_many(&mut waiting, MAX_BATCH).await > 0 {
            let mut batch: Vec<Member> = waiting.drain(..).map(|exchange| Member { exchange, refused: None }).collect();
            let outcome = match self.availability.is_fenced() {
                true => Err(PostgresError::Fenced),
                false => {
                    let late = || Err(PostgresError::lost(format!("no answer within {LIMIT:?}")));
                    let outage = self.outage.clone();
                    timeout(LIMIT, outage.bound(self.exchange(&mut batch))).await.unwrap_or_else(|_| late())
                }
            };
            for Member { exchange, refused } in batch {
                exchange.done(match (&outcome, refused) {
                    (Err(error), _) => Err(client_error(error)),
                    (Ok(()), Some(error)) => Err(error),
                    (Ok(()), None) => Ok(()),
                });
            }
        }
    }

    /// Runs a batch, again after conflicts, and again on a new connection if the kept one was lost before the commit. Keeps
    /// the connection for the next batch.
    async fn exchange(&mut self, batch: &mut [Member]) -> Result<(), PostgresError> {
        let kept = self.connection.take().filter(Connection::is_usable);
        let mut was_kept = kept.is_some();
        let mut connection = match kept {
            Some(connection) => connection,
            None => self.connector.connect_without_sync().await?,
        };
        let mut attempts = 1;
        let outcome = loop {
            match transact(&mut connection, batch).await {
                Err(PostgresError::Conflict(_)) if attempts < ATTEMPTS => attempts += 1,
                Err(PostgresError::Lost { commit_sent: false, .. }) if was_kept => {
                    was_kept = false;
                    connection = self.connector.connect_without_sync().await?;
                }
                outcome => break outcome,
            }
        };
        self.connection = Some(connection).filter(Connection::is_usable);
        outcome
    }
}

/// Runs a batch in one transaction. After an error none is open.
async fn transact(connection: &mut Connection, batch: &mut [Member]) -> Result<(), PostgresError> {
    connection.phase = Phase::Writing;
    let outcome = try_transact(connection, batch).await;
    match outcome {
        Ok(()) => connection.phase = Phase::Idle,
        Err(_) => connection.rollback(),
    }
    outcome
}

async fn try_transact(connection: &mut Connection, batch: &mut [Member]) -> Result<(), PostgresError> {
    let (mut rows, now) = lock(connection, keys(batch)).await?;
    let found: BTreeSet<(Table, Vec<u8>)> = rows.keys().cloned().collect();
    let mut changed = BTreeSet::new();
    for member in batch {
        let place = (member.exchange.table(), member.exchange.key().to_vec());
        match member.exchange.change(now, rows.get(&place).map(Vec::as_slice)) {
            Ok(value) => {
                rows.insert(place.clone(), value);
                changed.insert(place);
                member.refused = None;
            }
            Err(error) => member.refused = Some(error),
        }
    }
    rows.retain(|place, _| changed.contains(place));
    store(connection, &rows, &found).await
}

fn keys(batch: &[Member]) -> Keys {
    let mut keys = Keys::new();
    for Member { exchange, .. } in batch {
        keys.entry(exchange.table()).or_default().insert(exchange.key().to_vec());
    }
    keys
}

/// Begins the transaction, locks and reads rows, and reads the database's clock, all in one round trip.
async fn lock(connection: &mut Connection, keys: Keys) -> Result<(Rows, Timestamp), PostgresError> {
    let keys: Vec<(Table, Vec<Vec<u8>>)> =
        keys.into_iter().map(|(table, keys)| (table, keys.into_iter().collect())).collect();
    let mut requests = vec![Request::command(statements::BEGIN_READ_COMMITTED)];
    requests.extend(keys.iter().map(|(table, keys)| Request::rows(statements::lock(table.name()), vec![keys])));
    requests.push(Request::rows(statements::NOW, Vec::new()));
    let mut answers = connection.run_all(requests).await?.into_iter().skip(1).map(Answer::into_rows);
    let mut rows = Rows::new();
    for ((table, _), found) in keys.iter().zip(&mut answers) {
        for row in &found {
            let (key, value) = pair(row, true)?;
            rows.insert((*table, key), value);
        }
    }
    let now = answers.next().unwrap_or_default().first().map(|row| column::<i64>(row, 0)).transpose()?;
    let now = now.ok_or_else(|| PostgresError::Bug("the database has no clock".to_owned()))?;
    Ok((rows, Timestamp::from_millis(now)))
}

/// Writes rows, of which those in `found` existed, and commits.
async fn store(
    connection: &mut Connection,
    rows: &Rows,
    found: &BTreeSet<(Table, Vec<u8>)>,
) -> Result<(), PostgresError> {
    let (old, new): (Vec<_>, Vec<_>) = rows.iter().partition(|(place, _)| found.contains(*place));
    let (old, new) = (by_table(&old), by_table(&new));
    let puts = old.iter().map(|(table, rows)| (statements::put(table.name()), rows));
    let fills = new.iter().map(|(table, rows)| (statements::fill(table.name()), rows));
    let mut requests: Vec<Request<'_>> =
        puts.chain(fills).map(|(sql, (keys, values))| Request::count(sql, vec![keys, values])).collect();
    let is_new = !new.is_empty();
    if !is_new {
        requests.push(Request::command(statements::COMMIT));
    }
    connection.prepare(&requests).await?;
    let answers = connection.run_all(requests).await;
    let answers = if is_new { answers? } else { answers.map_err(PostgresError::in_commit)? };
    if !is_new {
        return Ok(());
    }
    // Rows that another node has inserted meanwhile must be read first.
    let inserted = answers.iter().skip(old.len()).map(Answer::changed).sum::<u64>();
    let expected = new.values().map(|(keys, _)| keys.len()).sum::<usize>();
    if u64::try_from(expected) != Ok(inserted) {
        return Err(PostgresError::Conflict("another node has inserted a row".to_owned()));
    }
    connection.run_one(Request::command(statements::COMMIT)).await.map(drop).map_err(PostgresError::in_commit)
}

/// Keys and values by table, in ascending order of keys.
fn by_table<'a>(rows: &[PlacedRow<'a>]) -> BTreeMap<Table, Columns<'a>> {
    let mut tables: BTreeMap<Table, Columns<'_>> = BTreeMap::new();
    for ((table, key), value) in rows {
        let (keys, values) = tables.entry(*table).or_default();
        keys.push(key);
        values.push(value);
    }
    tables
}

fn client_error(error: &PostgresError) -> Error {
    match error {
        PostgresError::Conflict(_) => {
            Error::new(Code::Overloaded, "Too many servers change the same records. Try again shortly, with backoff.")
        }
        error => unavailable(error.to_string()),
    }
}
