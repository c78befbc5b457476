//! The deltas of a text that a target generates.
//!
//! Texts are always requested as streams: a client that disconnects is noticed at once, the first byte is early, and
//! one timeout between two reads suits responses of any length. The last delta waits for the usage, because encoders
//! send the usage when they have seen the last delta.

use std::task::{Context, Poll};
use std::time::Duration;

use tokio::sync::{mpsc, oneshot};

use super::response_limits::{event_bytes, text_bytes};
use super::told_usage::{ToldUsage, UsageBounds};
use crate::engine::TextDelta;
use crate::upstream::{EventStream, Failure, Task, UpstreamCall, UpstreamClient};

/// Deltas that are kept for a client that reads slowly. Then nothing more is read from the target.
const BUFFER: usize = 64;
/// The last event of a stream.
const DONE: &str = "[DONE]";
/// How long the usage is waited for after every choice has ended.
const USAGE_WAIT: Duration = Duration::from_secs(5);

/// The content of one event of a stream.
pub struct ParsedChunk {
    pub deltas: Vec<TextDelta>,
    pub usage: Option<ToldUsage>,
}

/// Reads the events of one response.
pub trait ChunkReader: Send + 'static {
    /// `None` if the event makes no sense, or if it is an error.
    fn read(&mut self, data: &str) -> Option<ParsedChunk>;
}

/// The expected properties of a response.
pub struct ExpectedText {
    /// The number of its choices.
    pub choices: u32,
    /// Max bytes of its texts and log-probabilities.
    pub max_bytes: u64,
    /// Bounds of its usage.
    pub usage: UsageBounds,
}

/// The deltas of a response. Dropping it closes the connection to the target, which cancels the work.
pub struct UpstreamDeltas {
    receiver: mpsc::Receiver<Result<Item, Failure>>,
    told: Option<ToldUsage>,
    _task: Task<()>,
}

enum Item {
    Delta(Box<TextDelta>),
    Usage(ToldUsage),
}

impl UpstreamDeltas {
    /// Sends the request and waits until the response begins.
    pub async fn start(
        client: &UpstreamClient,
        call: UpstreamCall,
        reader: impl ChunkReader,
        expected: ExpectedText,
    ) -> Result<Self, Failure> {
        let (begun, beginning) = oneshot::channel();
        let (sender, receiver) = mpsc::channel(BUFFER);
        let sending = client.clone();
        let task = client.spawn(async move {
            match sending.events(&call).await {
                Ok(events) => {
                    let is_awaited = begun.send(Ok(())).is_ok();
                    let open = vec![true; expected.choices as usize];
                    let (left, bounds) = (expected.max_bytes, expected.usage);
                    let pump =
                        Pump { events, reader, sender, open, left, received: 0, bounds, usage: None, last: Vec::new() };
                    if is_awaited {
                        pump.run().await;
                    }
                }
                Err(failure) => drop(begun.send(Err(failure))),
            }
        })?;
        beginning.await.unwrap_or(Err(Failure::ShuttingDown))?;
        Ok(Self { receiver, told: None, _task: task })
    }

    /// The next delta; `None` after the last delta of the last choice, or after a failure. Cancel-safe.
    pub fn poll_recv(&mut self, context: &mut Context<'_>) -> Poll<Option<Result<TextDelta, Failure>>> {
        loop {
            return match self.receiver.poll_recv(context) {
                Poll::Pending => Poll::Pending,
                Poll::Ready(None) => Poll::Ready(None),
                Poll::Ready(Some(Err(failure))) => Poll::Ready(Some(Err(failure))),
                Poll::Ready(Some(Ok(Item::Delta(delta)))) => Poll::Ready(Some(Ok(*delta))),
                Poll::Ready(Some(Ok(Item::Usage(usage)))) => {
                    self.told = Some(usage);
                    continue;
                }
            };
        }
    }

    /// Cancels the work. Returns the deltas that have arrived and were not received yet.
    pub fn close(&mut self) -> Vec<TextDelta> {
        self.receiver.close();
        let mut deltas = Vec::new();
        while let Ok(item) = self.receiver.try_recv() {
            match item {
                Ok(Item::Delta(delta)) => deltas.push(*delta),
                Ok(Item::Usage(usage)) => self.told = Some(usage),
                Err(_) => {}
            }
        }
        deltas
    }

    /// The usage; `None` until the target reports it. It precedes the last delta.
    pub fn told(&self) -> Option<ToldUsage> {
        self.told
    }
}

/// Passes the deltas of a response on.
struct Pump<R> {
    events: EventStream,
    reader: R,
    sender: mpsc::Sender<Result<Item, Failure>>,
    /// Which choices have not ended.
    open: Vec<bool>,
    /// Bytes that the response may still have.
    left: u64,
    /// Bytes of text that have arrived.
    received: u64,
    bounds: UsageBounds,
    usage: Option<ToldUsage>,
    /// The deltas from the one that ended the last choice on. They wait for the usage.
    last: Vec<TextDelta>,
}

impl<R: ChunkReader> Pump<R> {
    /// Ends when the response does, or when the receiver of the deltas is dropped.
    async fn run(mut self) {
        let sender = self.sender.clone();
        let ended = tokio::select! {
            ended = self.pass_on() => ended,
            () = sender.closed() => return,
        };
        let items = match ended {
            Ok(()) => {
                let usage = self.checked_usage().map(Item::Usage);
                let deltas = self.last.drain(..).map(|delta| Item::Delta(Box::new(delta)));
                usage.into_iter().chain(deltas).map(Ok).collect()
            }
            Err(failure) => vec![Err(failure)],
        };
        for item in items {
            if sender.send(item).await.is_err() {
                return;
            }
        }
    }

    async fn pass_on(&mut self) -> Result<(), Failure> {
        while self.open.contains(&true) {
            let Some(data) = self.events.next().await?.filter(|data| data != DONE) else {
                return Err(self.events.malformed("its event stream ends before the text does"));
            };
            let ParsedChunk { deltas, usage } = self.read(&data)?;
            self.usage = usage.or(self.usage);
            for delta in deltas {
                if let Some(open) = self.open.get_mut(delta.choice as usize).filter(|_| delta.end.is_some()) {
                    *open = false;
                }
                if self.open.contains(&true) {
                    if self.sender.send(Ok(Item::Delta(Box::new(delta)))).await.is_err() {
                        // The receiver was dropped: `run` notices it, too.
                        return Ok(());
                    }
                } else {
                    self.last.push(delta);
                }
            }
        }
        // The text is complete. Without the usage, it is estimated.
        let _ = tokio::time::timeout(USAGE_WAIT, self.await_usage()).await;
        Ok(())
    }

    /// Reads to the end of the stream, so that the connection can be used again.
    async fn await_usage(&mut self) {
        while let Ok(Some(data)) = self.events.next().await {
            if let Some(chunk) = self.reader.read(&data) {
                self.usage = chunk.usage.or(self.usage);
            }
        }
    }

    fn read(&mut self, data: &str) -> Result<ParsedChunk, Failure> {
        let Some(chunk) = self.reader.read(data) else {
            return Err(self.events.malformed("an event of its stream is an error or makes no sense"));
        };
        self.received += text_bytes(&chunk.deltas);
        match self.left.checked_sub(event_bytes(&chunk.deltas)) {
            Some(left) => self.left = left,
            None => return Err(self.events.too_large()),
        }
        Ok(chunk)
    }

    /// The usage that the target has reported, unless it cannot be true.
    fn checked_usage(&self) -> Option<ToldUsage> {
        let told = self.usage?;
        let is_possible = self.bounds.allow(&told, self.received);
        if !is_possible {
            self.events.doubt_usage();
        }
        is_possible.then_some(told)
    }
}
