//! Exchanges: small transactions for records that all nodes of a shared store change all the time.
//!
//! [`Store::write`](crate::Store::write) commits many closures in one serializable transaction. If each group changed a
//! record that other nodes change as well, whole groups would conflict. An exchange reads and replaces one record under a
//! lock on its row instead, on a connection of its own. The exchanges that wait run together in one transaction.
//!
//! Its commits do not wait for the disk. If the database crashes, the exchanges of the last moments may be
//! undone, so it is for records whose loss costs little.

use std::sync::Arc;

use tokio::sync::mpsc::Sender;
use tokio::sync::mpsc::error::TrySendError;

use crate::codec::{self, Record};
use crate::engine::unavailable;
use crate::error::{Code, Error, Result};
use crate::pepper::Pepper;
use crate::shared_state::shutting_down;
use crate::tables::Table;
use outpost_common::clock_rng::Timestamp;

/// An exchange of one row, as the engine runs it.
pub(super) trait RowExchange: Send {
    fn table(&self) -> Table;

    fn key(&self) -> &[u8];

    /// The new value of the row, from its value at a time of the database's clock. May run more than once; the last run
    /// counts.
    fn change(&mut self, now: Timestamp, old: Option<&[u8]>) -> Result<Vec<u8>>;

    /// The transaction has ended. After an error it may have been committed nevertheless.
    fn done(self: Box<Self>, outcome: Result<()>);
}

/// Queues exchanges for the engine's task.
pub(super) type ExchangeQueue = Sender<Box<dyn RowExchange>>;

/// The exchanges of a shared store.
#[derive(Clone)]
pub struct Exchanges {
    queue: ExchangeQueue,
    pepper: Arc<Pepper>,
}

impl Exchanges {
    pub(super) fn new(queue: ExchangeQueue, pepper: Arc<Pepper>) -> Self {
        Self { queue, pepper }
    }

    /// Queues an exchange of the record under `key`. Does not wait.
    ///
    /// `change` gets the time of the database's clock and the record. It may run more than once; the last run counts. `done`
    /// is called once, on any thread: with what `change` returned, after the commit, or with an error. After an error the
    /// exchange may have been committed nevertheless. The store answers within a second or so.
    pub fn send<R, T, C, D>(&self, key: Vec<u8>, change: C, done: D)
    where
        R: Record + 'static,
        T: Send + 'static,
        C: FnMut(Timestamp, Option<R>) -> (R, T) + Send + 'static,
        D: FnOnce(Result<T>) + Send + 'static,
    {
        let marker = std::marker::PhantomData::<fn() -> R>;
        let exchange =
            RecordExchange { key, pepper: self.pepper.clone(), change, made: None, done: Some(done), marker };
        let (exchange, error) = match self.queue.try_send(Box::new(exchange)) {
            Ok(()) => return,
            Err(TrySendError::Full(exchange)) => {
                let text = "Too many requests wait for the project's rate limit. Try again shortly, with backoff.";
                (exchange, Error::new(Code::Overloaded, text))
            }
            Err(TrySendError::Closed(exchange)) => (exchange, shutting_down()),
        };
        exchange.done(Err(error));
    }
}

/// An exchange of a record of type `R`, which yields a `T`.
struct RecordExchange<R, T, C, D: FnOnce(Result<T>)> {
    key: Vec<u8>,
    pepper: Arc<Pepper>,
    change: C,
    made: Option<T>,
    /// Until it is called.
    done: Option<D>,
    marker: std::marker::PhantomData<fn() -> R>,
}

impl<R, T, C, D> RowExchange for RecordExchange<R, T, C, D>
where
    R: Record,
    T: Send,
    C: FnMut(Timestamp, Option<R>) -> (R, T) + Send,
    D: FnOnce(Result<T>) + Send,
{
    fn table(&self) -> Table {
        R::TABLE
    }

    fn key(&self) -> &[u8] {
        &self.key
    }

    fn change(&mut self, now: Timestamp, old: Option<&[u8]>) -> Result<Vec<u8>> {
        let old = old.map(|bytes| codec::decode::<R>(&self.pepper, &self.key, bytes)).transpose()?;
        let (new, made) = (self.change)(now, old);
        self.made = Some(made);
        codec::encode(&self.pepper, &self.key, &new)
    }

    fn done(mut self: Box<Self>, outcome: Result<()>) {
        let made = self.made.take();
        let outcome = outcome.and_then(|()| made.ok_or_else(|| unavailable("the exchange never ran")));
        if let Some(done) = self.done.take() {
            done(outcome);
        }
    }
}

/// The engine has stopped before it came to this exchange.
impl<R, T, C, D: FnOnce(Result<T>)> Drop for RecordExchange<R, T, C, D> {
    fn drop(&mut self) {
        if let Some(done) = self.done.take() {
            done(Err(shutting_down()));
        }
    }
}
