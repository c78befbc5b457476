//! The queues of a device: one for each of its workloads.

use std::any::Any;
use std::sync::Arc;

use crate::runtime::Runtime;
use crate::runtime::workload::Workload;

/// The requests of a workload, shared by callers and the compute thread.
pub trait RequestQueue: Any + Send + Sync {
    fn new(runtime: Arc<Runtime>) -> Arc<Self>
    where
        Self: Sized;

    /// The value of the gauge [`KindMetrics::waiting`](crate::runtime::metrics::KindMetrics::waiting), if there is one.
    fn waiting(&self) -> usize {
        0
    }
}

/// A workload that takes its requests from a queue.
pub trait QueuedWorkload: Workload + Sized + 'static {
    type Queue: RequestQueue;

    fn new(queue: Arc<Self::Queue>) -> Self;
}

/// The queues of a device.
#[derive(Default)]
pub struct Queues(Vec<Arc<dyn RequestQueue>>);

impl Queues {
    /// Adds the queue of a workload, and returns the workload.
    pub fn start<W: QueuedWorkload>(&mut self, runtime: &Arc<Runtime>) -> Box<dyn Workload> {
        let queue = W::Queue::new(Arc::clone(runtime));
        self.0.push(Arc::<W::Queue>::clone(&queue));
        Box::new(W::new(queue))
    }

    /// The queue of this type; `None`: the device has none.
    pub fn get<Q: RequestQueue>(&self) -> Option<&Q> {
        self.0.iter().find_map(|queue| (&**queue as &dyn Any).downcast_ref())
    }
}
