//! One session: sends requests in order, keeps prepared statements, and waits no longer than its deadline.

use std::borrow::Cow;
use std::collections::HashMap;
use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, OnceLock};
use std::task::Poll;
use std::time::Duration;

use futures_util::FutureExt as _;
use futures_util::future::{MaybeDone, maybe_done};
use tokio::task::JoinSet;
use tokio::time::timeout;
use tokio_postgres::types::{FromSql, ToSql};
use tokio_postgres::{Client, Error, Row, Statement};

use super::classify::{describe, statement_error};
use super::error::PostgresError;
use super::settings::Timeouts;
use super::statements;

/// One parameter of a statement.
pub(super) type Parameter<'a> = &'a (dyn ToSql + Sync);

/// The result of a request.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    /// Nothing. It is not prepared.
    Command,
    Rows,
    Count,
}

/// A statement with its parameters.
pub(super) struct Request<'a> {
    sql: Cow<'static, str>,
    parameters: Vec<Parameter<'a>>,
    kind: Kind,
}

impl<'a> Request<'a> {
    /// A statement without parameters and rows.
    pub fn command(sql: impl Into<Cow<'static, str>>) -> Self {
        Self { sql: sql.into(), parameters: Vec::new(), kind: Kind::Command }
    }

    /// A statement that returns rows.
    pub fn rows(sql: impl Into<Cow<'static, str>>, parameters: Vec<Parameter<'a>>) -> Self {
        Self { sql: sql.into(), parameters, kind: Kind::Rows }
    }

    /// A statement that returns how many rows it has changed.
    pub fn count(sql: impl Into<Cow<'static, str>>, parameters: Vec<Parameter<'a>>) -> Self {
        Self { sql: sql.into(), parameters, kind: Kind::Count }
    }
}

/// The result of a request.
#[derive(Debug)]
pub(super) enum Answer {
    Done,
    Rows(Vec<Row>),
    Count(u64),
}

impl Answer {
    pub fn into_rows(self) -> Vec<Row> {
        match self {
            Self::Rows(rows) => rows,
            Self::Done | Self::Count(_) => Vec::new(),
        }
    }

    /// Number of changed rows.
    pub fn changed(&self) -> u64 {
        match self {
            Self::Count(changed) => *changed,
            Self::Done | Self::Rows(_) => 0,
        }
    }
}

/// The transaction that is open.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Phase {
    Idle,
    Reading,
    Writing,
}

/// A session of the database.
///
/// Its transactions are in [`transactions`](super::transactions). Dropping it closes the connection, which ends an open
/// transaction without a commit.
pub struct Connection {
    client: Client,
    /// Moves bytes between the client and the socket. Ends with this.
    _driver: JoinSet<()>,
    /// The reason why the driver has ended.
    ended: Arc<OnceLock<String>>,
    statements: HashMap<Cow<'static, str>, Statement>,
    pub(super) timeouts: Timeouts,
    pub(super) phase: Phase,
    /// A deadline has passed. What arrives now belongs to nothing.
    is_late: AtomicBool,
}

impl Connection {
    /// Must be called within a runtime, which then runs the driver.
    pub(super) fn new(
        client: Client,
        driver: impl Future<Output = Result<(), Error>> + Send + 'static,
        timeouts: Timeouts,
    ) -> Self {
        let ended = Arc::new(OnceLock::new());
        let mut tasks = JoinSet::new();
        let reason = ended.clone();
        tasks.spawn(async move {
            if let Err(error) = driver.await {
                // Nothing else sets it.
                let _ = reason.set(describe(&error));
            }
        });
        let statements = HashMap::new();
        Self {
            client,
            _driver: tasks,
            ended,
            statements,
            timeouts,
            phase: Phase::Idle,
            is_late: AtomicBool::new(false),
        }
    }

    /// False once this side knows that the connection is closed.
    pub fn is_usable(&self) -> bool {
        !self.is_late.load(Relaxed) && !self.client.is_closed()
    }

    /// Runs requests in one round trip, and returns the outcome of each. Prepares statements that are new before.
    ///
    /// # Errors
    /// If a statement cannot be prepared, or the answers do not arrive in time.
    pub(super) async fn run(
        &mut self,
        requests: Vec<Request<'_>>,
    ) -> Result<Vec<Result<Answer, PostgresError>>, PostgresError> {
        self.run_within(self.timeouts.reply, requests).await
    }

    pub(super) async fn run_within(
        &mut self,
        limit: Duration,
        requests: Vec<Request<'_>>,
    ) -> Result<Vec<Result<Answer, PostgresError>>, PostgresError> {
        self.prepare(&requests).await?;
        let (client, statements) = (&self.client, &self.statements);
        let answers = requests.into_iter().map(|request| answer(client, statements, request)).collect();
        let outcomes = timeout(limit, in_order(answers)).await.map_err(|_| self.late(limit))?;
        Ok(outcomes.into_iter().map(|outcome| outcome.map_err(|error| self.sort(&error))).collect())
    }

    /// Runs requests in one round trip. Returns the first error, because those after it follow from it.
    pub(super) async fn run_all(&mut self, requests: Vec<Request<'_>>) -> Result<Vec<Answer>, PostgresError> {
        self.run(requests).await?.into_iter().collect()
    }

    /// Runs one request.
    pub(super) async fn run_one(&mut self, request: Request<'_>) -> Result<Answer, PostgresError> {
        Ok(self.run_all(vec![request]).await?.pop().unwrap_or(Answer::Done))
    }

    /// Prepares the statements that this connection has not prepared yet.
    pub(super) async fn prepare(&mut self, requests: &[Request<'_>]) -> Result<(), PostgresError> {
        if self.is_late.load(Relaxed) {
            return Err(PostgresError::lost("an earlier answer did not arrive in time"));
        }
        let mut new: Vec<Cow<'static, str>> = Vec::new();
        for request in requests.iter().filter(|request| request.kind != Kind::Command) {
            if !self.statements.contains_key(&request.sql) && !new.contains(&request.sql) {
                new.push(request.sql.clone());
            }
        }
        if new.is_empty() {
            return Ok(());
        }
        let answers = in_order(new.iter().map(|sql| Box::pin(self.client.prepare(sql))).collect());
        let limit = self.timeouts.reply;
        let prepared = timeout(limit, answers).await.map_err(|_| self.late(limit))?;
        for (sql, statement) in new.into_iter().zip(prepared) {
            let statement = statement.map_err(|error| self.sort(&error))?;
            self.statements.insert(sql, statement);
        }
        Ok(())
    }

    fn late(&self, limit: Duration) -> PostgresError {
        self.is_late.store(true, Relaxed);
        PostgresError::lost(format!("no answer within {limit:?}"))
    }

    /// Ends the open transaction without a commit, if there is one. Does not wait: the server runs ROLLBACK before
    /// whatever is sent next.
    pub fn rollback(&mut self) {
        let was_open = std::mem::replace(&mut self.phase, Phase::Idle) != Phase::Idle;
        if was_open && self.is_usable() {
            // The first poll sends the request. If the connection is lost, the transaction ends anyway.
            let _ = self.client.batch_execute(statements::ROLLBACK).now_or_never();
        }
    }

    /// The reason of a lost connection is known to its driver only.
    fn sort(&self, error: &Error) -> PostgresError {
        match (statement_error(error), self.ended.get()) {
            (PostgresError::Lost { commit_sent, reason }, Some(cause)) if error.is_closed() => {
                PostgresError::Lost { commit_sent, reason: format!("{reason}: {cause}") }
            }
            (sorted, _) => sorted,
        }
    }
}

type Pending<'a> = Pin<Box<dyn Future<Output = Result<Answer, Error>> + Send + 'a>>;

/// The answer to a request whose statement is prepared.
fn answer<'a>(
    client: &'a Client,
    statements: &'a HashMap<Cow<'static, str>, Statement>,
    request: Request<'a>,
) -> Pending<'a> {
    Box::pin(async move {
        let Request { sql, parameters, kind } = request;
        match (kind, statements.get(&sql)) {
            (Kind::Rows, Some(statement)) => Ok(Answer::Rows(client.query(statement, &parameters).await?)),
            (Kind::Count, Some(statement)) => Ok(Answer::Count(client.execute(statement, &parameters).await?)),
            (Kind::Command | Kind::Rows | Kind::Count, _) => {
                client.batch_execute(&sql).await?;
                Ok(Answer::Done)
            }
        }
    })
}

/// The outputs of all futures, in order.
///
/// The first poll of a request of tokio-postgres sends it, so the requests are sent in this order, all of them before
/// the first answer is awaited. The answers arrive in the same order. Each one is read to its end, even after an
/// error, because an error may follow rows.
async fn in_order<F: Future + Unpin>(requests: Vec<F>) -> Vec<F::Output> {
    let mut requests: Vec<MaybeDone<F>> = requests.into_iter().map(maybe_done).collect();
    poll_fn(|context| {
        for request in &mut requests {
            // An output stays in the future until it is taken below.
            let _ = Pin::new(request).poll(context);
        }
        Poll::Ready(())
    })
    .await;
    let mut outputs = Vec::with_capacity(requests.len());
    for mut request in requests {
        (&mut request).await;
        outputs.extend(Pin::new(&mut request).take_output());
    }
    outputs
}

/// Key and value of a row; without the value if it was not read.
pub(super) fn pair(row: &Row, has_value: bool) -> Result<(Vec<u8>, Vec<u8>), PostgresError> {
    Ok((column(row, 0)?, if has_value { column(row, 1)? } else { Vec::new() }))
}

/// A column of a row, counted from 0.
pub(super) fn column<'a, T: FromSql<'a>>(row: &'a Row, at: usize) -> Result<T, PostgresError> {
    row.try_get(at).map_err(|error| PostgresError::Bug(error.to_string()))
}
