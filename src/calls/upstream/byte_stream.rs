//! The bytes of a file that a target sends, as they arrive.

use hyper::body::Bytes;
use tokio::sync::{mpsc, oneshot};

use crate::upstream::{Failure, Task, UpstreamCall, UpstreamClient};

/// Pieces that are kept for a client that reads slowly. Then nothing more is read from the target.
const BUFFER: usize = 16;

/// The bytes of a response. Dropping it closes the connection to the target, which cancels the work.
pub struct ByteStream {
    receiver: mpsc::Receiver<Result<Bytes, Failure>>,
    _task: Task<()>,
}

impl ByteStream {
    /// Sends the request and waits until the response begins.
    pub async fn start(client: &UpstreamClient, call: UpstreamCall) -> Result<Self, Failure> {
        let (begun, beginning) = oneshot::channel();
        let (sender, receiver) = mpsc::channel(BUFFER);
        let sending = client.clone();
        let task = client.spawn(async move {
            let mut response = match sending.bytes(&call).await {
                Ok(response) => response,
                Err(failure) => return drop(begun.send(Err(failure))),
            };
            if begun.send(Ok(())).is_err() {
                return;
            }
            loop {
                let next = tokio::select! {
                    next = response.next() => next,
                    () = sender.closed() => return,
                };
                let Some(piece) = next.transpose() else { return };
                let has_failed = piece.is_err();
                if sender.send(piece).await.is_err() || has_failed {
                    return;
                }
            }
        })?;
        beginning.await.unwrap_or(Err(Failure::ShuttingDown))?;
        Ok(Self { receiver, _task: task })
    }

    /// The next bytes; `None` at the end of the file or after a failure. Cancel-safe.
    pub async fn next(&mut self) -> Option<Result<Bytes, Failure>> {
        self.receiver.recv().await
    }

    /// Cancels the work. Returns the number of bytes that have arrived and were not received.
    pub fn close(&mut self) -> usize {
        self.receiver.close();
        let mut bytes = 0;
        while let Ok(piece) = self.receiver.try_recv() {
            bytes += piece.map_or(0, |piece| piece.len());
        }
        bytes
    }
}
