//! Sends several requests before it waits for the first answer.

use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::task::Poll;

use futures_util::future::{MaybeDone, maybe_done};

/// The outputs of all futures, in order.
///
/// The first poll of a request of tokio-postgres sends it, so the requests are sent in this order, all of them before
/// the first answer is awaited. The answers arrive in the same order. Each one is read to its end, even after an
/// error, because an error may follow rows.
pub(super) async fn in_order<F: Future + Unpin>(requests: Vec<F>) -> Vec<F::Output> {
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
