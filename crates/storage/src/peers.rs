//! Which processes may still do what they have claimed.

use std::sync::Arc;

use super::cluster::{Cluster, NodeProcess};

/// The processes that share the database, as one of them sees them.
#[derive(Clone)]
pub struct Peers(Option<Arc<Cluster>>);

impl Peers {
    pub(super) fn new(cluster: Option<Arc<Cluster>>) -> Self {
        Self(cluster)
    }

    /// Whether a process may still do what it has claimed. If this one does not follow the others, each of them may.
    ///
    /// A process that has just started may look dead for as long as the last answer of the database is old. If it loses
    /// work by that, the work is still done once.
    pub fn is_alive(&self, process: NodeProcess) -> bool {
        self.0.as_ref().is_some_and(|cluster| cluster.is_alive(process) || !cluster.is_current())
    }

    /// This process; `None` if it has the store for itself.
    pub(super) fn process(&self) -> Option<NodeProcess> {
        self.0.as_ref().map(|cluster| cluster.process())
    }
}
