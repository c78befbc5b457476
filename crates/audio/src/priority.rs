//! The priority of the threads that prepare audio.

/// A thread of this nice value gets a tenth of the time of one of the default value, if both want to run.
#[cfg(target_os = "linux")]
const NICE: i32 = 10;

/// Lets the threads that run models go first. It holds for the calling thread, and for processes that it starts. Only Linux
/// has priorities of threads; elsewhere it does nothing.
pub fn lower_thread_priority() {
    #[cfg(target_os = "linux")]
    if let Err(error) = rustix::process::setpriority_process(None, NICE) {
        tracing::debug!(%error, "the priority of a thread cannot be lowered");
    }
}
