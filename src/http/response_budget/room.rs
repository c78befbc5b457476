//! The room that one request takes of the budget, and the body that gives it back.

use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use actix_web::body::{BodySize, MessageBody};
use actix_web::web::Bytes;

use super::{Client, Held, ResponseBudget, SMALL_BYTES};
use crate::error::{Code, Error, Result};
use crate::http::connections::{Connection, SendLimit};
use crate::http::transport::CHUNK_BYTES;
use crate::service::limited_read::LimitedRead;

/// How often a read is repeated if what it reads has grown in the meantime.
const ATTEMPTS: usize = 4;
/// A client that takes a response more slowly than this loses it, because others may wait for its room: the bytes per
/// second, after the first [`LEAST_TIME`].
const LEAST_RATE: u64 = 32 << 10;
const LEAST_TIME: Duration = Duration::from_secs(30);

/// The room of a request. Clones share it.
#[derive(Clone)]
pub struct Room(Arc<Inner>);

struct Inner {
    /// `None` if the response stays in this process.
    budget: Option<Arc<ResponseBudget>>,
    client: Client,
    taken: Mutex<Taken>,
}

#[derive(Default)]
struct Taken {
    held: Option<Held>,
    /// Set for streams, of which only a part is in memory.
    is_stream: bool,
}

impl Room {
    pub fn new(budget: Arc<ResponseBudget>, client: Client) -> Self {
        Self(Arc::new(Inner { budget: Some(budget), client, taken: Mutex::default() }))
    }

    /// For a request without a connection, whose response is not sent.
    pub fn unlimited() -> Self {
        Self(Arc::new(Inner { budget: None, client: Client::default(), taken: Mutex::default() }))
    }

    /// Calls `read` with the most bytes that it may read. If that is not enough, takes room and calls it again. `factor`:
    /// the bytes that a response needs while it is built, for each byte that is read.
    pub async fn read<T, F>(&self, factor: u64, read: impl Fn(u64) -> F) -> Result<T>
    where
        F: Future<Output = Result<LimitedRead<T>>>,
    {
        let mut limit = if self.0.budget.is_some() { SMALL_BYTES } else { u64::MAX };
        for _ in 0..ATTEMPTS {
            match read(limit).await? {
                LimitedRead::Read(value) => return Ok(value),
                LimitedRead::TooLarge { bytes } => {
                    self.take(bytes.saturating_mul(factor), false).await?;
                    limit = bytes;
                }
            }
        }
        Err(Error::new(Code::Overloaded, "What you read grows faster than it can be read. Try again shortly."))
    }

    /// Takes room for a response that is about to be built.
    pub async fn reserve(&self, bytes: u64) -> Result<()> {
        if bytes > SMALL_BYTES { self.take(bytes, false).await } else { Ok(()) }
    }

    /// Takes room for a stream, of which `bytes` are in memory at a time.
    pub async fn reserve_for_stream(&self, bytes: u64) -> Result<()> {
        self.take(bytes, true).await
    }

    async fn take(&self, bytes: u64, is_stream: bool) -> Result<()> {
        let Some(budget) = &self.0.budget else { return Ok(()) };
        // Given back first: a request that holds room does not wait for more.
        drop(self.remove());
        let held = budget.take(self.0.client, bytes).await?;
        *self.0.taken.lock().unwrap_or_else(PoisonError::into_inner) = Taken { held: Some(held), is_stream };
        Ok(())
    }

    fn remove(&self) -> Taken {
        std::mem::take(&mut *self.0.taken.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Keeps room for the response until it is sent: its size. 503 if that exceeds the room that was taken and no more
    /// is free.
    pub fn settle(&self, size: BodySize) -> Result<Option<Held>> {
        let Taken { held, is_stream } = self.remove();
        let bytes = match size {
            BodySize::Sized(bytes) if !is_stream => bytes,
            BodySize::Stream | BodySize::Sized(_) => return Ok(held),
            BodySize::None => 0,
        };
        match (held, &self.0.budget) {
            (_, _) if bytes <= SMALL_BYTES => Ok(None),
            (Some(held), _) => held.resize(bytes).map(Some),
            (None, Some(budget)) => budget.take_at_once(self.0.client, bytes).map(Some),
            (None, None) => Ok(None),
        }
    }
}

/// A body that holds room until it is dropped. If it does, it is sent in copied parts: a part of its bytes would keep the
/// memory of all, and HTTP/2 keeps parts after the body is dropped.
pub struct RoomBody<B> {
    /// Declared first, so that its bytes are freed before others get their room.
    body: B,
    rest: Bytes,
    held: Option<(Held, SendLimit)>,
}

impl<B: MessageBody> RoomBody<B> {
    /// The body of a response on `connection`.
    pub fn new(body: B, held: Option<Held>, connection: Option<Arc<Connection>>) -> Self {
        let time = match body.size() {
            BodySize::Sized(bytes) => Some(LEAST_TIME + Duration::from_secs(bytes / LEAST_RATE)),
            BodySize::None | BodySize::Stream => None,
        };
        let held = held.map(|held| (held, SendLimit::new(time, connection)));
        Self { body, rest: Bytes::new(), held }
    }
}

impl<B: MessageBody + Unpin> MessageBody for RoomBody<B> {
    type Error = Box<dyn std::error::Error>;

    fn size(&self) -> BodySize {
        self.body.size()
    }

    fn poll_next(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Bytes, Self::Error>>> {
        let this = self.get_mut();
        let Some((_, limit)) = &this.held else {
            return Pin::new(&mut this.body).poll_next(cx).map_err(Into::into);
        };
        if limit.is_over() {
            return Poll::Ready(Some(Err("the client reads too slowly".into())));
        }
        while this.rest.is_empty() {
            match ready!(Pin::new(&mut this.body).poll_next(cx)) {
                Some(Ok(bytes)) => this.rest = bytes,
                other => return Poll::Ready(other.map(|item| item.map_err(Into::into))),
            }
        }
        let part = this.rest.split_to(this.rest.len().min(CHUNK_BYTES));
        Poll::Ready(Some(Ok(Bytes::copy_from_slice(&part))))
    }
}

#[cfg(test)]
mod tests {
    use std::future::poll_fn;

    use actix_web::body::BoxBody;

    use super::*;
    use crate::http::response_budget::ResponseBudget;

    #[tokio::test]
    async fn a_body_that_holds_room_is_sent_in_parts_and_not_for_ever() {
        let budget = ResponseBudget::of_memory(0);
        let body = || BoxBody::new(vec![7; 3 * CHUNK_BYTES + 5]);
        let held = || Some(budget.take_at_once(Client::default(), 1000).unwrap());
        let mut sent = RoomBody::new(body(), held(), None);
        let mut sizes = Vec::new();
        while let Some(part) = poll_fn(|cx| Pin::new(&mut sent).poll_next(cx)).await {
            sizes.push(part.unwrap().len());
        }
        assert_eq!((sizes, budget.usage().0), (vec![CHUNK_BYTES, CHUNK_BYTES, CHUNK_BYTES, 5], 1000));
        drop(sent);
        let mut slow = RoomBody::new(body(), held(), None);
        assert!(poll_fn(|cx| Pin::new(&mut slow).poll_next(cx)).await.is_some_and(|part| part.is_ok()));
        slow.held = slow.held.take().map(|(held, _)| (held, SendLimit::new(Some(Duration::ZERO), None)));
        tokio::time::sleep(Duration::from_millis(5)).await;
        assert!(poll_fn(|cx| Pin::new(&mut slow).poll_next(cx)).await.is_some_and(|part| part.is_err()));
        drop(slow);
        assert_eq!(budget.usage().0, 0);
    }

    #[tokio::test]
    async fn a_response_settles_for_its_size() {
        let budget = ResponseBudget::of_memory(0);
        let room = Room::new(Arc::clone(&budget), Client::default());
        room.reserve(30 << 20).await.unwrap();
        let held = room.settle(BodySize::Sized(10 << 20)).unwrap();
        assert_eq!(budget.usage().0, 10 << 20);
        assert!(room.settle(BodySize::Sized(SMALL_BYTES)).unwrap().is_none(), "it is small");
        assert!(room.settle(BodySize::Sized(100 << 20)).is_err(), "it does not fit");
        drop(held);
        room.reserve_for_stream(1 << 20).await.unwrap();
        let held = room.settle(BodySize::Sized(500 << 20)).unwrap();
        assert_eq!(budget.usage().0, 1 << 20, "only a part of a stream is in memory");
        drop(held);
        assert_eq!(budget.usage().0, 0);
    }

    #[tokio::test]
    async fn a_read_is_repeated_with_room_for_what_it_reads() {
        let budget = ResponseBudget::of_memory(0);
        let room = Room::new(Arc::clone(&budget), Client::default());
        let read = |limit: u64| async move {
            Ok(if limit < 1 << 20 { LimitedRead::TooLarge { bytes: 1 << 20 } } else { LimitedRead::Read(limit) })
        };
        assert_eq!((room.read(3, read).await.unwrap(), budget.usage().0), (1 << 20, 3 << 20));
        let growing = |limit: u64| async move { Ok(LimitedRead::<()>::TooLarge { bytes: limit + 1 }) };
        assert!(room.read(3, growing).await.is_err());
        let whole = |limit: u64| async move { Ok(LimitedRead::Read(limit)) };
        assert_eq!(Room::unlimited().read(3, whole).await.unwrap(), u64::MAX);
    }
}
