//! Waiting for the database on threads that block.

use std::future::Future;

use tokio::runtime::{Builder, Handle, Runtime};
use tokio::task::unconstrained;

/// Runs a future whose connections and timers belong to `runtime`, and waits for it. The threads of `runtime` must run by
/// themselves.
///
/// Unlike [`Handle::block_on`], it may be called on a thread of another runtime, which it blocks, as reading a file
/// would. There, tokio limits how often a task may proceed before it yields; this one never yields.
pub(super) fn block_on<T>(runtime: &Handle, future: impl Future<Output = T>) -> T {
    let _entered = runtime.enter();
    pollster::block_on(unconstrained(future))
}

/// A runtime for connections, which may be dropped on any thread.
pub(super) struct NetworkRuntime {
    handle: Handle,
    /// `None` while it is dropped.
    runtime: Option<Runtime>,
}

impl NetworkRuntime {
    /// # Errors
    /// If the system has no more threads.
    pub fn new(threads: usize) -> std::io::Result<Self> {
        let mut builder = Builder::new_multi_thread();
        let runtime = builder.worker_threads(threads).thread_name("outpost-store").enable_all().build()?;
        Ok(Self { handle: runtime.handle().clone(), runtime: Some(runtime) })
    }

    pub fn handle(&self) -> &Handle {
        &self.handle
    }
}

impl Drop for NetworkRuntime {
    fn drop(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            // Waiting for its threads would not be allowed on a thread of another runtime.
            runtime.shutdown_background();
        }
    }
}
