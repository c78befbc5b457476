//! The deltas of a text that a target generates.

use std::task::{Context, Poll};
use std::time::Duration;

use serde::{Deserialize, Deserializer};
use serde_json::Value;
use tokio::sync::{mpsc, oneshot};

use crate::engine::TextDelta;
use crate::upstream::{EventStream, Failure, Task, UpstreamCall, UpstreamClient};

/// Deltas that are kept for a client that reads slowly. Then nothing more is read from the target.
const BUFFER: usize = 64;
/// The last event of a stream.
const DONE: &str = "[DONE]";
/// How long the usage is waited for after every choice has ended.
const USAGE_WAIT: Duration = Duration::from_secs(5);

/// Token counts as a target tells them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ToldUsage {
    pub prompt_tokens: u32,
    pub completion_tokens: u32,
    pub cached_tokens: u32,
    pub reasoning_tokens: u32,
}

impl ToldUsage {
    /// Reads the field `usage` of a text. A usage without the tokens of the prompt or of the text tells nothing: the
    /// tokens are then estimated.
    pub fn of_text<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Self>, D::Error> {
        let usage = Option::<Value>::deserialize(deserializer)?.unwrap_or_default();
        let count = |path: &str| usage.pointer(path).and_then(Value::as_u64).map(saturated);
        let (Some(prompt_tokens @ 1..), Some(completion_tokens)) =
            (count("/prompt_tokens"), count("/completion_tokens"))
        else {
            return Ok(None);
        };
        let cached = count("/prompt_tokens_details/cached_tokens").unwrap_or(0);
        let reasoning_tokens = count("/completion_tokens_details/reasoning_tokens").unwrap_or(0);
        Ok(Some(Self { prompt_tokens, completion_tokens, cached_tokens: cached.min(prompt_tokens), reasoning_tokens }))
    }
}

/// Reads the tokens of the input from a field `usage`; `None` if it tells none.
pub fn input_tokens<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<u32>, D::Error> {
    let usage = Option::<Value>::deserialize(deserializer)?.unwrap_or_default();
    let count = |name: &str| usage.get(name).and_then(Value::as_u64).map(saturated).filter(|count| *count > 0);
    Ok(count("prompt_tokens").or_else(|| count("total_tokens")))
}

fn saturated(count: u64) -> u32 {
    u32::try_from(count).unwrap_or(u32::MAX)
}

/// What one event of a stream says.
pub struct ParsedChunk {
    pub deltas: Vec<TextDelta>,
    pub usage: Option<ToldUsage>,
}

/// Reads the events of one response.
pub trait ChunkReader: Send + 'static {
    /// `None` if the event makes no sense, or if it is an error.
    fn read(&mut self, data: &str) -> Option<ParsedChunk>;
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
    /// Sends the request and waits until the response begins. `choices`: how many it has.
    pub async fn start(
        client: &UpstreamClient,
        call: UpstreamCall,
        reader: impl ChunkReader,
        choices: u32,
    ) -> Result<Self, Failure> {
        let (begun, beginning) = oneshot::channel();
        let (sender, receiver) = mpsc::channel(BUFFER);
        let sending = client.clone();
        let task = client.spawn(async move {
            match sending.events(&call).await {
                Ok(events) => {
                    let is_awaited = begun.send(Ok(())).is_ok();
                    let open = vec![true; choices as usize];
                    let pump = Pump { events, reader, sender, open, usage: None, last: Vec::new() };
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

    /// The usage, once the target has told it. It comes before the last delta.
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
                let usage = self.usage.take().map(Item::Usage);
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
        match self.reader.read(data) {
            Some(chunk) => Ok(chunk),
            None => Err(self.events.malformed("an event of its stream is an error or makes no sense")),
        }
    }
}
