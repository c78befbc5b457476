//! Keeps a connection marked as busy while a response is sent, closes it afterwards if the server is about to stop, and sends
//! the body in chunks so that little is buffered.

use std::pin::Pin;
use std::task::{Context, Poll, ready};

use actix_http::ConnectionType;
use actix_web::Error as ActixError;
use actix_web::body::{BodySize, BoxBody, MessageBody};
use actix_web::dev::{ServiceRequest, ServiceResponse};
use actix_web::middleware::Next;
use actix_web::web::{Bytes, Data};

use super::Api;
use super::connections::{ActiveRequest, Connection};
use super::http1::{ConnectionState, InFlight};
use super::transport::CHUNK_BYTES;

/// A body that is sent in chunks.
struct ChunkedBody {
    body: BoxBody,
    /// Bytes of the body that are not passed on yet.
    rest: Bytes,
    _held: (Option<ActiveRequest>, Option<InFlight>),
}

/// Middleware around everything, from the head of a request to the end of its response.
pub async fn track_in_flight(
    request: ServiceRequest,
    next: Next<impl MessageBody + 'static>,
) -> Result<ServiceResponse<BoxBody>, ActixError> {
    let running = Connection::of(request.request()).map(|connection| connection.run());
    let in_flight = ConnectionState::of(request.request()).map(InFlight::new);
    let mut response = next.call(request).await?;
    if response.request().app_data::<Data<Api>>().is_some_and(|api| api.draining()) {
        response.response_mut().head_mut().set_connection_type(ConnectionType::Close);
    }
    Ok(response.map_body(|_, body| {
        let body = BoxBody::new(body);
        BoxBody::new(ChunkedBody { body, rest: Bytes::new(), _held: (running, in_flight) })
    }))
}

impl MessageBody for ChunkedBody {
    type Error = Box<dyn std::error::Error>;

    fn size(&self) -> BodySize {
        self.body.size()
    }

    fn poll_next(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Bytes, Self::Error>>> {
        let this = self.get_mut();
        while this.rest.is_empty() {
            match ready!(Pin::new(&mut this.body).poll_next(cx)) {
                Some(Ok(bytes)) => this.rest = bytes,
                other => return Poll::Ready(other),
            }
        }
        let chunk = this.rest.split_to(this.rest.len().min(CHUNK_BYTES));
        Poll::Ready(Some(Ok(chunk)))
    }
}

#[cfg(test)]
mod tests {
    use std::future::poll_fn;

    use super::*;

    #[tokio::test]
    async fn a_large_body_is_sent_in_chunks_and_complete() {
        let text: Vec<u8> = (0..3 * CHUNK_BYTES + 5).map(|at| u8::try_from(at % 251).unwrap()).collect();
        let mut chunks = ChunkedBody { body: BoxBody::new(text.clone()), rest: Bytes::new(), _held: (None, None) };
        assert_eq!(chunks.size(), BodySize::Sized(u64::try_from(text.len()).unwrap()));
        let mut read = Vec::new();
        while let Some(chunk) = poll_fn(|cx| Pin::new(&mut chunks).poll_next(cx)).await {
            let chunk = chunk.unwrap();
            assert!((1..=CHUNK_BYTES).contains(&chunk.len()));
            read.extend_from_slice(&chunk);
        }
        assert_eq!(read, text);
    }
}
