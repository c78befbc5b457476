//! A budget for the bytes of responses that are built and not yet sent.
//!
//! A client that does not read leaves its response in memory. The budget bounds what all clients together can leave
//! there. A handler whose response may be large takes room before it builds the response ([`Room::read`]). The room
//! is given back when the last bytes are passed on to the connection, or when the connection ends. A client that does
//! not read, or reads very slowly, loses its connection ([`super::connections`]), so no room is held without end. Responses of
//! at most [`SMALL_BYTES`] take no room.
//!
//! A project may take half of the budget, a key a quarter and a connection an eighth. A client that holds nothing may exceed
//! its share with one response, so no response is too large to be sent.
//!
//! A response whose size is known only when it is built takes its room then, and may exceed these limits by a quarter.
//!
//! A request takes its room at once and waits for it at most [`WAIT`], while it holds none. So requests cannot wait for
//! each other. Those that wait are served in the order in which they came, except that one whose client has used up its
//! share does not hold up others.
//!
//! Conversations are not streamed from the store: a snapshot that is held for a slow client keeps old pages, and
//! reading in parts would break off when the conversation changes. The allocator stays glibc's, because bounded
//! responses leave it little to retain.

mod room;

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::oneshot;
use tokio::time::timeout;

pub use self::room::{Room, RoomBody};
use crate::error::{Code, Error, Result};
use crate::ids::{KeyId, ProjectId};

/// The largest response that takes no room.
pub const SMALL_BYTES: u64 = crate::service::limited_read::SMALL_BYTES;

/// How long a request waits for room.
const WAIT: Duration = Duration::from_secs(10);

/// The least and the largest budget.
const LEAST: u64 = 64 << 20;
const LARGEST: u64 = 1 << 30;

/// Bytes that a response needs while it is built, for each byte of JSON that is read and passed on as text: as a record, as
/// text, and in a buffer that grows.
pub const BUILT_FROM_TEXT: u64 = 3;

/// Like [`BUILT_FROM_TEXT`], if the JSON is parsed.
pub const BUILT_FROM_VALUES: u64 = 12;

/// The owner for which an amount is counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Owner {
    Project(ProjectId),
    Key(KeyId),
    Connection(u64),
}

impl Owner {
    /// The part of the budget that it may take.
    fn divisor(self) -> u64 {
        match self {
            Self::Project(_) => 2,
            Self::Key(_) => 4,
            Self::Connection(_) => 8,
        }
    }
}

/// The client of a response.
#[derive(Clone, Copy, Debug, Default)]
pub struct Client {
    /// `None` if the request needs no key.
    pub key: Option<(ProjectId, KeyId)>,
    /// The number of its connection.
    pub connection: Option<u64>,
}

impl Client {
    fn owners(self) -> impl Iterator<Item = Owner> {
        let (project, key) = self.key.unzip();
        let of_key = [project.map(Owner::Project), key.map(Owner::Key)];
        of_key.into_iter().chain([self.connection.map(Owner::Connection)]).flatten()
    }
}

/// The budget of the process.
pub struct ResponseBudget {
    bytes: u64,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    held: u64,
    by_owner: HashMap<Owner, u64>,
    /// The one that came first is first.
    waiting: VecDeque<Waiting>,
}

struct Waiting {
    client: Client,
    bytes: u64,
    granted: oneshot::Sender<Held>,
}

/// A part of the budget, until it is dropped.
pub struct Held {
    budget: Arc<ResponseBudget>,
    client: Client,
    bytes: u64,
}

/// Whether an amount fits.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Fit {
    Fits,
    /// The client has used up a share of its own.
    ShareIsFull,
    Full,
}

impl ResponseBudget {
    /// The budget of a process whose models may take `memory` bytes.
    pub fn of_memory(memory: u64) -> Arc<Self> {
        Self::new((memory / 8).clamp(LEAST, LARGEST))
    }

    fn new(bytes: u64) -> Arc<Self> {
        Arc::new(Self { bytes, state: Mutex::default() })
    }

    /// Bytes that are held, and the size of the budget.
    pub fn usage(&self) -> (u64, u64) {
        (self.lock().held, self.bytes)
    }

    /// Takes `bytes`, and waits for them if needed. 503 if they are not free in time.
    pub async fn take(self: &Arc<Self>, client: Client, bytes: u64) -> Result<Held> {
        let granted = match self.try_or_wait(client, bytes) {
            Ok(held) => return Ok(held),
            Err(granted) => granted,
        };
        match timeout(WAIT, granted).await {
            Ok(Ok(held)) => Ok(held),
            _ => Err(self.overloaded(client, bytes)),
        }
    }

    /// Takes `bytes` for a response that is built already, which does not wait: it may exceed the budget and the shares by
    /// a quarter, because its work is done. 503 if that is not enough.
    fn take_at_once(self: &Arc<Self>, client: Client, bytes: u64) -> Result<Held> {
        let mut state = self.lock();
        match state.fit(self.bytes + self.bytes / 4, client, bytes) {
            Fit::Fits => Ok(self.hold(&mut state, client, bytes)),
            Fit::ShareIsFull | Fit::Full => {
                drop(state);
                Err(self.overloaded(client, bytes))
            }
        }
    }

    fn try_or_wait(self: &Arc<Self>, client: Client, bytes: u64) -> Result<Held, oneshot::Receiver<Held>> {
        let mut state = self.lock();
        if state.waiting.is_empty() && state.fit(self.bytes, client, bytes) == Fit::Fits {
            return Ok(self.hold(&mut state, client, bytes));
        }
        let (sender, granted) = oneshot::channel();
        state.waiting.push_back(Waiting { client, bytes, granted: sender });
        self.grant(state);
        Err(granted)
    }

    /// Gives those that wait what fits.
    fn grant(self: &Arc<Self>, mut state: MutexGuard<'_, State>) {
        let (mut left, mut granted) = (VecDeque::new(), Vec::new());
        while let Some(next) = state.waiting.pop_front() {
            match state.fit(self.bytes, next.client, next.bytes) {
                _ if next.granted.is_closed() => {}
                Fit::Fits => granted.push((next.granted, self.hold(&mut state, next.client, next.bytes))),
                Fit::ShareIsFull => left.push_back(next),
                Fit::Full => {
                    left.push_back(next);
                    break;
                }
            }
        }
        left.append(&mut state.waiting);
        state.waiting = left;
        drop(state);
        // One that has stopped waiting in the meantime gives its part back.
        granted.into_iter().for_each(|(sender, held)| drop(sender.send(held)));
    }

    fn hold(self: &Arc<Self>, state: &mut State, client: Client, bytes: u64) -> Held {
        state.add(client, bytes);
        Held { budget: Arc::clone(self), client, bytes }
    }

    fn overloaded(&self, client: Client, bytes: u64) -> Error {
        let state = self.lock();
        let is_own = state.fit(self.bytes, client, bytes) == Fit::ShareIsFull;
        let whose = if is_own { "your API key, project or connection" } else { "all clients" };
        let text = format!(
            "The response has up to {bytes} bytes, and responses to {whose} that are not read yet take its place in memory. \
             Read them to their end or close them, and try again."
        );
        Error::new(Code::Overloaded, text).retry_after(WAIT)
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn fit(&self, budget: u64, client: Client, bytes: u64) -> Fit {
        let exceeds = |held: u64, limit: u64| held > 0 && held.saturating_add(bytes) > limit;
        let mut owners = client.owners();
        if owners.any(|owner| exceeds(self.held_by(owner), budget / owner.divisor())) {
            return Fit::ShareIsFull;
        }
        if exceeds(self.held, budget) { Fit::Full } else { Fit::Fits }
    }

    fn held_by(&self, owner: Owner) -> u64 {
        self.by_owner.get(&owner).copied().unwrap_or_default()
    }

    fn add(&mut self, client: Client, bytes: u64) {
        self.held += bytes;
        client.owners().for_each(|owner| *self.by_owner.entry(owner).or_default() += bytes);
    }

    fn subtract(&mut self, client: Client, bytes: u64) {
        self.held = self.held.saturating_sub(bytes);
        for owner in client.owners() {
            if let Some(held) = self.by_owner.get_mut(&owner) {
                *held = held.saturating_sub(bytes);
                if *held == 0 {
                    self.by_owner.remove(&owner);
                }
            }
        }
    }
}

impl Held {
    /// Holds `bytes` from now on. 503 if that is more than before and not free.
    fn resize(mut self, bytes: u64) -> Result<Self> {
        let more = bytes.saturating_sub(self.bytes);
        if more > 0 {
            let mut added = self.budget.take_at_once(self.client, more)?;
            self.bytes += std::mem::take(&mut added.bytes);
        } else {
            self.release(self.bytes - bytes);
        }
        Ok(self)
    }

    fn release(&mut self, bytes: u64) {
        if bytes > 0 {
            self.bytes -= bytes;
            let mut state = self.budget.lock();
            state.subtract(self.client, bytes);
            self.budget.grant(state);
        }
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        self.release(self.bytes);
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use futures_util::FutureExt;

    use super::*;

    const MIB: u64 = 1 << 20;

    /// Shares: 32 MiB for a project, 16 for a key, 8 for a connection.
    fn budget() -> Arc<ResponseBudget> {
        ResponseBudget::new(64 * MIB)
    }

    fn client(project: u8, key: u8, connection: u64) -> Client {
        let key = (ProjectId::from_bytes([project; 16]), KeyId::from_bytes([key; 16]));
        Client { key: Some(key), connection: Some(connection) }
    }

    /// Takes `bytes` if they are free.
    fn take(budget: &Arc<ResponseBudget>, client: Client, bytes: u64) -> Option<Held> {
        budget.take(client, bytes).now_or_never().and_then(Result::ok)
    }

    /// Takes parts of 4 MiB, each for the next connection, until one does not fit.
    fn fill(budget: &Arc<ResponseBudget>, project: u8, key: u8) -> Vec<Held> {
        let first = 1000 * u64::from(project) + 100 * u64::from(key);
        (first..).map_while(|number| take(budget, client(project, key, number), 4 * MIB)).collect()
    }

    fn is_empty(budget: &ResponseBudget) -> bool {
        let state = budget.lock();
        state.held == 0 && state.by_owner.is_empty() && state.waiting.is_empty()
    }

    #[tokio::test]
    async fn a_connection_a_key_and_a_project_take_their_shares_only() {
        let budget = budget();
        let one = client(1, 1, 1);
        let of_connection: Vec<Held> = (0..).map_while(|_| take(&budget, one, 2 * MIB)).collect();
        assert_eq!(of_connection.len(), 4);
        drop(of_connection);
        let of_first = fill(&budget, 1, 1);
        let of_second = fill(&budget, 1, 2);
        assert_eq!((of_first.len(), of_second.len(), fill(&budget, 1, 3).len()), (4, 4, 0));
        let others: Vec<Held> = (2..6).flat_map(|project| fill(&budget, project, project)).collect();
        assert_eq!(others.len(), 8);
        assert_eq!(budget.usage(), (64 * MIB, 64 * MIB));
        drop((of_first, of_second, others));
        assert!(is_empty(&budget));
    }

    #[tokio::test]
    async fn a_response_that_exceeds_every_share_is_sent_alone() {
        let budget = budget();
        let large = budget.take(client(1, 1, 1), 100 * MIB).await.unwrap();
        assert!(take(&budget, client(2, 2, 2), MIB).is_none());
        drop(large);
        assert!(take(&budget, client(2, 2, 2), MIB).is_some());
    }

    #[tokio::test]
    async fn a_request_waits_for_room_and_gets_503_if_there_is_none_in_time() {
        let budget = budget();
        let mut held = fill(&budget, 1, 1);
        let mut waiting = Box::pin(budget.take(client(1, 1, 9), 8 * MIB));
        assert!(waiting.as_mut().now_or_never().is_none());
        held.pop();
        assert!(waiting.as_mut().now_or_never().is_none(), "half of it is free");
        held.pop();
        let granted = waiting.await.unwrap();
        let begun = tokio::time::Instant::now();
        let refused = budget.take(client(1, 1, 9), MIB).await.err().unwrap();
        assert!(refused.code() == Code::Overloaded && begun.elapsed() >= WAIT, "{refused:?}");
        assert!(refused.message().contains("your API key"), "{refused:?}");
        drop((held, granted));
        drop(budget.take(client(1, 1, 9), MIB).await);
        assert!(is_empty(&budget));
    }

    #[tokio::test]
    async fn a_client_that_has_used_up_its_share_does_not_hold_up_others() {
        let budget = budget();
        let held = fill(&budget, 1, 1);
        let mut own = Box::pin(budget.take(client(1, 1, 9), 8 * MIB));
        assert!(own.as_mut().now_or_never().is_none());
        let other = budget.take(client(2, 2, 20), 8 * MIB).now_or_never();
        assert!(other.is_some_and(|taken| taken.is_ok()));
        drop(held);
        assert!(own.await.is_ok());
    }

    #[tokio::test]
    async fn a_large_response_is_not_overtaken_without_end_by_small_ones() {
        let budget = budget();
        let mut held: Vec<Held> = (1..6).flat_map(|project| fill(&budget, project, project)).collect();
        let mut large = Box::pin(budget.take(client(7, 7, 70), 16 * MIB));
        assert!(large.as_mut().now_or_never().is_none());
        held.pop();
        let mut small = Box::pin(budget.take(client(8, 8, 80), MIB));
        assert!(small.as_mut().now_or_never().is_none(), "it came later");
        held.truncate(held.len() - 3);
        let granted = large.as_mut().now_or_never();
        assert!(granted.is_some());
        assert!(small.as_mut().now_or_never().is_none());
        held.pop();
        assert!(small.await.is_ok());
    }

    #[tokio::test]
    async fn a_request_that_is_dropped_while_it_waits_leaves_nothing() {
        let budget = budget();
        let held = fill(&budget, 1, 1);
        let mut left = Box::pin(budget.take(client(1, 1, 9), 8 * MIB));
        assert!(left.as_mut().now_or_never().is_none());
        let mut granted = Box::pin(budget.take(client(1, 1, 10), 8 * MIB));
        assert!(granted.as_mut().now_or_never().is_none());
        drop(left);
        drop(held);
        // The room was given to it, but it leaves before it learns that.
        drop(granted);
        assert!(is_empty(&budget));
        tokio::time::sleep(Duration::ZERO).await;
    }

    #[tokio::test]
    async fn a_part_becomes_smaller_or_larger() {
        let budget = budget();
        let held = budget.take(client(1, 1, 1), 6 * MIB).await.unwrap();
        let held = held.resize(2 * MIB).unwrap();
        assert_eq!(budget.usage().0, 2 * MIB);
        let held = held.resize(10 * MIB).unwrap();
        assert_eq!(budget.usage().0, 10 * MIB, "a built response may exceed the share of its connection by a quarter");
        assert!(held.resize(11 * MIB).is_err());
        assert!(is_empty(&budget));
    }
}
