//! Freeing the memory of a card on any thread.
//!
//! CUDA frees memory only on a thread with a current context. cudarc's `CudaSlice` does not bind the thread when it is
//! dropped, and reports the failure as an error of the next computation: a model that an HTTP thread dropped last
//! leaked its memory and failed another request with a 503. `Backend::ThreadBinding` is therefore the first field of
//! every structure with tensors that may be dropped on any thread, because fields are dropped in their order. Dropping
//! everything on the device's own thread was rejected, because a request would then have to wait for it.

use candle_core::Device;

/// Binds the thread that drops it to the device.
///
/// CUDA frees memory only on a thread that is bound to the card; elsewhere it fails, and cudarc reports the failure as an
/// error of the next computation. Threads that have computed are bound. A structure with tensors that may be dropped on
/// any thread has a binding as its first field, because fields are dropped in their order.
#[derive(Debug)]
#[cfg_attr(not(feature = "cuda"), expect(dead_code, reason = "other devices free memory on any thread"))]
pub struct ThreadBinding(Device);

impl ThreadBinding {
    pub(super) fn new(device: &Device) -> Self {
        Self(device.clone())
    }
}

impl Drop for ThreadBinding {
    fn drop(&mut self) {
        #[cfg(feature = "cuda")]
        if let Device::Cuda(card) = &self.0 {
            let stream = card.cuda_stream();
            // The first call may report an earlier failure instead.
            if stream.context().bind_to_thread().is_err() {
                let bound = stream.context().bind_to_thread();
                bound.unwrap_or_else(|error| tracing::warn!(?error, "memory of a card may not have been freed"));
            }
        }
    }
}
